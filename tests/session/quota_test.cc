// Quotas of a session: bytes, handles, commands in flight; and the devices' own memory. What is
// over says asked, used, limit.
#include "tests/session/session_fixture.h"

namespace devserver {
namespace {

using testing::HasSubstr;

class QuotaTest : public SessionTest {
 protected:
  static void ExpectFigures(const absl::Status& status, ErrorReason reason, uint64_t asked,
                            uint64_t used, uint64_t limit) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    const std::optional<ErrorDetails> details = DetailsOf(status);
    ASSERT_TRUE(details.has_value()) << status;
    EXPECT_EQ(details->reason, reason);
    EXPECT_EQ(details->asked, asked);
    EXPECT_EQ(details->used, used);
    EXPECT_EQ(details->limit, limit);
    for (const uint64_t figure : {asked, used, limit}) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrFormat("%d", figure)));
    }
  }
};

TEST_F(QuotaTest, BytesAreCountedOverAllDevices) {
  limits.session_bytes = 10'000;
  const SessionRef session = Open();
  ASSERT_TRUE(Full(*session, 1, 1000, 1, "gpu:0").ok());
  ASSERT_TRUE(Full(*session, 2, 1000, 1, "cpu:0").ok());
  Drain();
  const absl::StatusOr<TensorRef> over = Full(*session, 3, 1000, 1, "gpu:1");
  ASSERT_TRUE(over.ok()) << over.status();  // Known only when its turn comes.
  Drain();
  ExpectFigures((*over)->status(), ErrorReason::kQuota, 4000, 8000, 10'000);
  EXPECT_EQ(session->account().bytes(), 8000u);
  EXPECT_EQ(session->account().bytes_on(0), 4000u);
  EXPECT_EQ(session->account().bytes_on(1), 4000u);
  EXPECT_EQ(session->account().bytes_on(2), 0u);
  // What could never fit is refused at once.
  ExpectFigures(Full(*session, 4, 2501, 1).status(), ErrorReason::kQuota, 10'004, 8000, 10'000);
  // An upload takes its bytes at the start.
  TensorSpec spec;
  spec.shape = Shape::Of({1000});
  ExpectFigures(session->BeginUpload(spec, "gpu:0", 0, "").status(), ErrorReason::kQuota, 4000,
                8000, 10'000);
  // Another session has its own.
  EXPECT_TRUE(Full(*Open(), 1, 2500, 1).ok());
}

TEST_F(QuotaTest, ExactlyTheQuotaFits) {
  limits.session_bytes = 8000;
  const SessionRef session = Open();
  ASSERT_TRUE(Full(*session, 1, 1000, 1).ok());
  ASSERT_TRUE(Full(*session, 2, 1000, 1).ok());
  Drain();
  EXPECT_EQ((*session->Find(2))->state(), Tensor::State::kReady);
}

TEST_F(QuotaTest, HandlesAreCounted) {
  limits.session_tensors = 3;
  const SessionRef session = Open();
  for (uint64_t id = 1; id <= 3; ++id) {
    ASSERT_TRUE(Full(*session, id, 1, 1).ok());
  }
  ExpectFigures(Full(*session, 4, 1, 1).status(), ErrorReason::kQuota, 1, 3, 3);
  ExpectFigures(Apply(*session, OpCode::kNeg, {1}, 4).status(), ErrorReason::kQuota, 1, 3, 3);
  ExpectFigures(Copy(*session, 1, "gpu:1", 4).status(), ErrorReason::kQuota, 1, 3, 3);
  ExpectFigures(session->BeginUpload(TensorSpec(), "gpu:0", 4, "").status(), ErrorReason::kQuota, 1,
                3, 3);
  EXPECT_TRUE(Full(*session, 3, 1, 1).ok());  // A replay makes no handle.
  const uint64_t id = 2;
  ASSERT_TRUE(session->Delete({&id, 1}).ok());
  EXPECT_TRUE(Full(*session, 4, 1, 1).ok());
}

TEST_F(QuotaTest, FailedHandlesCountToo) {
  limits.session_tensors = 2;
  const SessionRef session = Open();
  for (uint64_t id = 1; id <= 10; ++id) {
    session->LeaveFailed(id, id, absl::InvalidArgumentError("bad"));
  }
  EXPECT_EQ(session->tensor_count(), 2u);
}

TEST_F(QuotaTest, CommandsInFlightAreCounted) {
  limits.commands_in_flight = 3;
  const SessionRef session = Open();
  const std::shared_ptr<QueueGate> gate = Hold(1);
  for (uint64_t id = 1; id <= 3; ++id) {
    ASSERT_TRUE(Full(*session, id, 1, 1).ok());
  }
  EXPECT_EQ(session->account().in_flight(), 3u);
  ExpectFigures(Full(*session, 4, 1, 1).status(), ErrorReason::kQuota, 1, 3, 3);
  ExpectFigures(Full(*session, 4, 1, 1, "cpu:0").status(), ErrorReason::kQuota, 1, 3, 3);
  gate->Open();
  Drain();
  EXPECT_EQ(session->account().in_flight(), 0u);
  EXPECT_EQ(session->account().done(), 3u);
  EXPECT_TRUE(Full(*session, 4, 1, 1).ok());
}

TEST_F(QuotaTest, DeviceMemoryIsNeverExceeded) {
  gpu_memory_bytes = 1 << 20;
  const SessionRef first = Open("first");
  const SessionRef second = Open("second");
  ASSERT_TRUE(Full(*first, 1, 200'000, 1).ok());  // 800 kB
  const absl::StatusOr<TensorRef> over = Full(*second, 1, 200'000, 1);
  ASSERT_TRUE(over.ok());
  Drain();
  ExpectFigures((*over)->status(), ErrorReason::kDeviceMemory, 800'000, 800'000, 1 << 20);
  EXPECT_EQ(DetailsOf((*over)->status())->device, "gpu:0");
  EXPECT_EQ(second->account().bytes(), 0u);
  EXPECT_LE(devices().queue(1).device().memory().peak_bytes, uint64_t{1} << 20);
  // The other device has room.
  ASSERT_TRUE(Full(*second, 2, 200'000, 1, "gpu:1").ok());
  Drain();
  EXPECT_EQ((*second->Find(2))->state(), Tensor::State::kReady);
  ExpectFigures(Full(*second, 3, 300'000, 1).status(), ErrorReason::kDeviceMemory, 1'200'000,
                800'000, 1 << 20);
}

// Each temporary is deleted as soon as it was used: a chain needs the memory of two.
TEST_F(QuotaTest, TenThousandTemporariesRunOnADeviceForFour) {
  constexpr int64_t kElements = 16 << 10;  // 64 KiB
  gpu_memory_bytes = 4 * 4 * kElements;
  const SessionRef session = Open();
  ASSERT_TRUE(Full(*session, 1, kElements, 1).ok());
  ASSERT_TRUE(Full(*session, 2, kElements, 0).ok());
  for (uint64_t id = 3; id < 10'003; ++id) {
    const absl::StatusOr<TensorRef> sum = Apply(*session, OpCode::kAdd, {1, id - 1}, id);
    ASSERT_TRUE(sum.ok()) << sum.status();
    const uint64_t previous = id - 1;
    ASSERT_TRUE(session->Delete({&previous, 1}).ok());
  }
  Drain();
  const absl::StatusOr<TensorRef> last = session->Find(10'002);
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(First(**last), 10'000);
  EXPECT_LE(devices().queue(1).device().memory().peak_bytes, uint64_t{4 * 4 * kElements});
}

}  // namespace
}  // namespace devserver
