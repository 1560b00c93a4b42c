// SessionService over the wire: leases, isolation, quotas, and sessions that come and go by the
// hundred.
#include <gmock/gmock.h>

#include "tests/fakes/test_server.h"
#include "tests/rpc/wire_client.h"

namespace devserver {
namespace {

using testing::HasSubstr;

class SessionCallsTest : public ServerTest {};

TEST_F(SessionCallsTest, OpeningTellsTheTermsOfTheLease) {
  const WireClient client(server().channel());
  const auto opened = client.Open("name: 'me' lease_seconds: 5 protocol_min: 1 protocol_max: 3");
  ASSERT_TRUE(opened.ok()) << opened.message();
  EXPECT_EQ(opened.reply.token().size(), 32u);
  EXPECT_EQ(opened.reply.protocol(), 1u);
  EXPECT_EQ(opened.reply.session().name(), "me");
  EXPECT_EQ(opened.reply.session().lease_seconds(), 5);
  EXPECT_FALSE(opened.reply.server_id().empty());
  EXPECT_EQ(opened.reply.limits().message_bytes(), Limits().message_bytes);
  EXPECT_EQ(opened.reply.limits().session_bytes(), Limits().session_bytes);
  EXPECT_EQ(opened.reply.limits().commands_in_flight(), Limits().commands_in_flight);
  EXPECT_EQ(opened.reply.limits().dims(), 8u);
  const WireClient own(server().channel(), opened.reply.token());
  v1::AttachSessionRequest attach;
  attach.set_token(opened.reply.token());
  const auto attached =
      client.Call(*client.sessions, &v1::SessionService::Stub::AttachSession, attach);
  EXPECT_EQ(attached.reply.server_id(), opened.reply.server_id());
  EXPECT_EQ(attached.reply.received_through(), 0u);
  const auto alive =
      own.Call(*own.sessions, &v1::SessionService::Stub::KeepAlive, v1::KeepAliveRequest());
  EXPECT_GT(alive.reply.lease_remaining_seconds(), 4);
  EXPECT_TRUE(own.Close().ok());
}

TEST_F(SessionCallsTest, LeasesAreBroughtIntoTheLimits) {
  const WireClient client(server().channel());
  const std::pair<std::string, double> wishes[] = {
      {"", 30}, {"lease_seconds: 0.001", 1}, {"lease_seconds: 1e30", 3600}};
  for (const auto& [text, granted] : wishes) {
    const auto opened = client.Open(text);
    EXPECT_EQ(opened.reply.session().lease_seconds(), granted);
    EXPECT_TRUE(WireClient(server().channel(), opened.reply.token()).Close().ok());
  }
}

TEST_F(SessionCallsTest, ALeaseThatRunsOutGivesTheMemoryBackWithinASecond) {
  options.limits.lease_seconds_min = 0.3;
  const WireClient client(server().channel());
  const auto opened = client.Open("lease_seconds: 0.3");
  const WireClient own(server().channel(), opened.reply.token());
  ASSERT_TRUE(own.Create("shape: 1000000 device: 'gpu:0'").ok());
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(server().UsedBytesBecome(0));
  const Seconds took = std::chrono::steady_clock::now() - start;
  EXPECT_GE(took.count(), 0.2);
  EXPECT_LE(took.count(), 0.3 + 1);
  const auto late = own.Fetch(1);
  EXPECT_EQ(late.code(), grpc::NOT_FOUND);
  EXPECT_EQ(late.error().reason(), v1::OpError::SESSION_EXPIRED);
  EXPECT_THAT(late.message(), HasSubstr("OpenSession"));
}

TEST_F(SessionCallsTest, EveryCallRenewsTheLease) {
  options.limits.lease_seconds_min = 0.5;
  const SessionClient client(server().channel(), "lease_seconds: 0.5");
  ASSERT_TRUE(client.Create("id: 1").ok());
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1500);
  ASSERT_TRUE(Eventually([&] {
    EXPECT_TRUE(client.Get(1).ok());
    return std::chrono::steady_clock::now() >= end;
  }));
}

TEST_F(SessionCallsTest, SessionsDoNotSeeEachOthersHandles) {
  const SessionClient first(server().channel());
  const SessionClient second(server().channel());
  const WireClient anybody(server().channel());
  ASSERT_TRUE(first.Create("id: 7 fill: 1").ok());
  ASSERT_TRUE(second.Create("id: 7 fill: 2").ok());
  EXPECT_EQ(first.Numbers(7), (std::vector<double>{1}));
  EXPECT_EQ(second.Numbers(7), (std::vector<double>{2}));
  EXPECT_EQ(anybody.Fetch(7).error().reason(), v1::OpError::NO_SUCH_TENSOR);
  ASSERT_TRUE(second.Delete({7}).ok());
  EXPECT_EQ(first.Numbers(7), (std::vector<double>{1}));
}

TEST_F(SessionCallsTest, ClosingGivesEverythingBack) {
  const SessionClient client(server().channel());
  ASSERT_TRUE(client.Create("shape: 1000 device: 'gpu:0'").ok());
  ASSERT_TRUE(client.Create("shape: 500 device: 'gpu:1'").ok());
  EXPECT_EQ(client.Close().reply.freed_bytes(), 6000u);
  EXPECT_TRUE(server().UsedBytesBecome(0));
  EXPECT_EQ(client.Get(1).error().reason(), v1::OpError::SESSION_EXPIRED);
  EXPECT_EQ(client.Close().error().reason(), v1::OpError::SESSION_EXPIRED);
}

TEST_F(SessionCallsTest, AHundredSessionsLeaveTheBaselineExactly) {
  const WireClient keeper(server().channel());
  ASSERT_TRUE(keeper.Create("shape: 77 device: 'gpu:1'").ok());
  for (int i = 0; i < 100; ++i) {
    const SessionClient client(server().channel());
    ASSERT_TRUE(client.Create("id: 1 shape: [64, 64] device: 'gpu:0' normal { seed: 1 }").ok());
    ASSERT_TRUE(client.MatMul("a: 1 b: 1 id: 2").ok());
    ASSERT_TRUE(client.Copy("source: 2 device: 'gpu:1' id: 3").ok());
    ASSERT_TRUE(client.Create("shape: 100 values {}").code() == grpc::INVALID_ARGUMENT);
  }
  EXPECT_TRUE(server().UsedBytesBecome(4 * 77));
}

TEST_F(SessionCallsTest, AnIdleClientDoesNotKeepASecondFromBeingServed) {
  const SessionClient idle(server().NewChannel());
  grpc::ClientContext context;
  idle.Prepare(context);
  const auto stream = idle.compute->Execute(&context);
  ASSERT_TRUE(stream->Write(Parse<v1::ExecuteRequest>("commands { number: 1 create { id: 9 } }")));
  grpc::ClientContext upload_context;
  idle.Prepare(upload_context);
  v1::TensorReply upload_reply;
  const auto upload = idle.tensors->Upload(&upload_context, &upload_reply);
  for (int i = 0; i < 20; ++i) {
    const SessionClient second(server().NewChannel());
    ASSERT_TRUE(second.Create("id: 1 shape: [32, 32] device: 'gpu:0' eye: true").ok());
    ASSERT_TRUE(second.MatMul("a: 1 b: 1").ok());
  }
  stream->WritesDone();
  for (v1::ExecuteReply reply; stream->Read(&reply);) {
  }
  EXPECT_TRUE(stream->Finish().ok());
  upload_context.TryCancel();
  EXPECT_FALSE(upload->Finish().ok());
}

TEST_F(SessionCallsTest, TooManySessionsAreRefusedWithTheFigures) {
  options.limits.sessions = 3;
  const WireClient client(server().channel());
  ASSERT_TRUE(client.Create("").ok());  // The default session is one of them.
  const SessionClient first(server().channel());
  const SessionClient second(server().channel());
  const auto third = client.Open("");
  EXPECT_EQ(third.code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_EQ(third.error().reason(), v1::OpError::LIMIT);
  EXPECT_EQ(third.error().amount().used(), 3u);
  EXPECT_EQ(third.error().amount().limit(), 3u);
  EXPECT_THAT(third.message(), HasSubstr("limits.sessions"));
  ASSERT_TRUE(first.Close().ok());
  const SessionClient again(server().channel());
  EXPECT_TRUE(again.Create("").ok());
}

TEST_F(SessionCallsTest, QuotasSayAskedUsedAndLimit) {
  options.limits.session_bytes = 1000;
  options.limits.session_tensors = 3;
  const SessionClient client(server().channel(), "name: 'small'");
  ASSERT_TRUE(client.Create("id: 1 shape: 200").ok());
  const auto bytes = client.Create("id: 2 shape: 100 device: 'gpu:0'");
  EXPECT_EQ(bytes.code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_EQ(bytes.error().reason(), v1::OpError::QUOTA);
  EXPECT_EQ(bytes.error().amount().asked(), 400u);
  EXPECT_EQ(bytes.error().amount().used(), 800u);
  EXPECT_EQ(bytes.error().amount().limit(), 1000u);
  EXPECT_THAT(bytes.message(), HasSubstr("'small'"));
  EXPECT_EQ(client.Create("shape: 251").error().reason(), v1::OpError::QUOTA);  // Could never fit.
  ASSERT_TRUE(client.Create("id: 3").ok());
  ASSERT_TRUE(client.Create("id: 4").ok());
  const auto handles = client.Create("id: 5");
  EXPECT_EQ(handles.error().reason(), v1::OpError::QUOTA);
  EXPECT_EQ(handles.error().amount().used(), 3u);
  EXPECT_EQ(handles.error().amount().limit(), 3u);
  EXPECT_THAT(handles.message(), HasSubstr("limits.session_tensors"));
  ASSERT_TRUE(client.Delete({3}).ok());
  EXPECT_TRUE(client.Create("id: 5").ok());
}

}  // namespace
}  // namespace devserver
