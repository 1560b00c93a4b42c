// Leases, tokens, default sessions, and who sees what.
#include "server/session/session_table.h"

#include "tests/session/session_fixture.h"

namespace devserver {
namespace {

using testing::HasSubstr;

class SessionTableTest : public SessionTest {};

TEST_F(SessionTableTest, ALeaseThatRunsOutFreesEverything) {
  const SessionRef session = Open("short", 5);
  ASSERT_TRUE(Full(*session, 1, 1000, 1).ok());
  ASSERT_TRUE(Full(*session, 2, 1000, 1, "cpu:0").ok());
  Drain();
  EXPECT_EQ(UsedBytes(), 8000u);
  clock.Advance(Seconds(4.999));
  EXPECT_EQ(table().CloseExpired(), 0u);
  EXPECT_EQ(UsedBytes(), 8000u);
  clock.Advance(Seconds(0.001));
  EXPECT_EQ(table().CloseExpired(), 1u);
  EXPECT_EQ(UsedBytes(), 0u);
  EXPECT_EQ(table().List().size(), 0u);
}

TEST_F(SessionTableTest, FindingASessionRenewsItsLease) {
  const SessionRef session = Open("renewed", 5);
  for (int i = 0; i < 10; ++i) {
    clock.Advance(Seconds(4));
    EXPECT_EQ(table().CloseExpired(), 0u);
    const absl::StatusOr<SessionRef> found = table().Find(session->options().token);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(*found, session);
    EXPECT_DOUBLE_EQ(session->lease_remaining().count(), 5);
  }
}

TEST_F(SessionTableTest, AnExpiredSessionIsNotFoundEvenBeforeItIsClosed) {
  const SessionRef session = Open("late", 5);
  ASSERT_TRUE(Full(*session, 1, 1000, 1).ok());
  clock.Advance(Seconds(5));
  const absl::StatusOr<SessionRef> found = table().Find(session->options().token);
  EXPECT_EQ(found.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(DetailsOf(found.status())->reason, ErrorReason::kSessionExpired);
  EXPECT_EQ(session->lease_remaining().count(), 0);
}

TEST_F(SessionTableTest, LeasesAreBroughtIntoTheLimits) {
  limits.lease_seconds = 30;
  limits.lease_seconds_min = 2;
  limits.lease_seconds_max = 100;
  EXPECT_EQ(Open("", 0)->options().lease.count(), 30);
  EXPECT_EQ(Open("", 1)->options().lease.count(), 2);
  EXPECT_EQ(Open("", 1e300)->options().lease.count(), 100);
  for (const double wrong : {-1.0, std::nan("")}) {
    EXPECT_EQ(table().Open("", "", wrong).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(SessionTableTest, TokensAreSecretAndNeverTheSame) {
  const SessionRef first = Open();
  const SessionRef second = Open();
  EXPECT_EQ(first->options().token.size(), 32u);
  EXPECT_NE(first->options().token, second->options().token);
  EXPECT_FALSE(table().Find("").ok());
  EXPECT_FALSE(table().Find(first->options().token.substr(1)).ok());
}

TEST_F(SessionTableTest, EachPeerHasADefaultSessionThatNoTokenReaches) {
  const absl::StatusOr<SessionRef> mine = table().FindDefault("10.0.0.1");
  const absl::StatusOr<SessionRef> again = table().FindDefault("10.0.0.1");
  const absl::StatusOr<SessionRef> other = table().FindDefault("10.0.0.2");
  ASSERT_TRUE(mine.ok() && again.ok() && other.ok());
  EXPECT_EQ(*mine, *again);
  EXPECT_NE(*mine, *other);
  EXPECT_TRUE((*mine)->options().is_default);
  EXPECT_FALSE(table().Find("default 10.0.0.1").ok());
  EXPECT_EQ((*mine)->options().token, "");
}

TEST_F(SessionTableTest, ADefaultSessionLivesForHours) {
  limits.default_session_idle_seconds = 8 * 3600;
  ASSERT_TRUE(Full(**table().FindDefault("10.0.0.1"), 1, 1000, 1).ok());
  clock.Advance(std::chrono::hours(7));
  EXPECT_EQ(table().CloseExpired(), 0u);
  EXPECT_TRUE((*table().FindDefault("10.0.0.1"))->Find(1).ok());
  clock.Advance(std::chrono::hours(8));
  EXPECT_EQ(table().CloseExpired(), 1u);
  Drain();
  EXPECT_EQ(UsedBytes(), 0u);
  // Whoever comes back finds a new one.
  EXPECT_FALSE((*table().FindDefault("10.0.0.1"))->Find(1).ok());
}

TEST_F(SessionTableTest, SessionsDoNotSeeEachOthersTensors) {
  const SessionRef first = Open("first");
  const SessionRef second = Open("second");
  ASSERT_TRUE(Full(*first, 7, 1, 1).ok());
  ASSERT_TRUE(Full(*second, 7, 1, 2).ok());
  ASSERT_TRUE(Full(*first, 8, 1, 3).ok());
  Drain();
  EXPECT_EQ(First(**first->Find(7)), 1);
  EXPECT_EQ(First(**second->Find(7)), 2);
  const absl::StatusOr<TensorRef> foreign = Apply(*second, OpCode::kNeg, {8}, 9);
  EXPECT_EQ(DetailsOf(foreign.status())->reason, ErrorReason::kNoSuchTensor);
  EXPECT_THAT(foreign.status().ToString(), HasSubstr("'second'"));
  const uint64_t id = 8;
  EXPECT_FALSE(second->Delete({&id, 1}).ok());
  EXPECT_TRUE(first->Find(8).ok());
}

TEST_F(SessionTableTest, AClosedSessionRefusesEverything) {
  const SessionRef session = Open();
  ASSERT_TRUE(Full(*session, 1, 1000, 1).ok());
  Drain();
  EXPECT_EQ(table().Close(session), 4000u);
  EXPECT_EQ(UsedBytes(), 0u);
  const uint64_t id = 1;
  for (const absl::Status& status :
       {Full(*session, 2, 1, 1).status(), Apply(*session, OpCode::kNeg, {1}, 3).status(),
        Copy(*session, 1, "gpu:1", 4).status(), session->Find(1).status(),
        session->Delete({&id, 1}).status(),
        session->BeginUpload(TensorSpec(), "gpu:0", 0, "").status(),
        session->EnsureOn(1, "gpu:1", 0, {}).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(DetailsOf(status)->reason, ErrorReason::kSessionExpired);
  }
}

TEST_F(SessionTableTest, AnUploadThatIsUnderWayWhenTheSessionClosesIsNotKept) {
  const SessionRef session = Open();
  TensorSpec spec;
  spec.shape = Shape::Of({1000});
  absl::StatusOr<TensorRef> upload = session->BeginUpload(spec, "gpu:0", 5, "");
  ASSERT_TRUE(upload.ok()) << upload.status();
  EXPECT_EQ(UsedBytes(), 4000u);
  table().Close(session);
  EXPECT_EQ(DetailsOf(session->CommitUpload(*upload))->reason, ErrorReason::kSessionExpired);
  upload->reset();
  EXPECT_EQ(UsedBytes(), 0u);
}

TEST_F(SessionTableTest, TheNumberOfSessionsIsLimited) {
  limits.sessions = 2;
  const SessionRef first = Open();
  const SessionRef second = Open();
  const absl::Status third = table().Open("", "", 0).status();
  EXPECT_EQ(third.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(DetailsOf(third)->used, 2u);
  EXPECT_EQ(DetailsOf(third)->limit, 2u);
  EXPECT_EQ(table().FindDefault("somebody").status().code(), absl::StatusCode::kResourceExhausted);
  table().Close(first);
  EXPECT_TRUE(table().FindDefault("somebody").ok());
}

TEST_F(SessionTableTest, AHundredSessionsLeaveTheBaselineExactly) {
  const SessionRef keeper = Open("keeper");
  ASSERT_TRUE(Full(*keeper, 1, 77, 1).ok());
  for (int i = 0; i < 100; ++i) {
    const SessionRef session = Open();
    ASSERT_TRUE(Full(*session, 1, 4096, 1).ok());
    ASSERT_TRUE(Apply(*session, OpCode::kExp, {1}, 2).ok());
    ASSERT_TRUE(Copy(*session, 2, "gpu:1", 3).ok());
    table().Close(session);
  }
  Drain();
  EXPECT_EQ(UsedBytes(), 4 * 77u);
}

}  // namespace
}  // namespace devserver
