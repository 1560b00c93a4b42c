// The command stream over a network that is slow, stalls and breaks, and servers that go away.
// ctest: timeout=120
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "devserver/client.h"
#include "tests/client/client_fixture.h"
#include "tests/fakes/relay.h"

namespace devserver::client {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

class StreamTest : public ClientTest {
 protected:
  // A second server where the first one was.
  static std::unique_ptr<TestServer> RestartAt(const std::string& address) {
    TestServer::Options restarted;
    restarted.listen = address;
    return std::make_unique<TestServer>(restarted);
  }
};

TEST_F(StreamTest, AThousandDependentCommandsTravelInUnderThreeRoundTrips) {
  constexpr int kCommands = 1000;
  Relay relay(server().address(), std::chrono::milliseconds(5));
  const Client client = ConnectTo(relay.address());
  Tensor x = zeros({16}, *client.gpu(0));
  ASSERT_TRUE(client.sync().ok());
  relay.ResetRoundTrips();
  // One more message, so that the reset has been seen.
  ASSERT_TRUE(Eventually([&] { return relay.round_trips() == 0; }));
  const TimePoint start = Clock::Real()->Now();
  const Tensor one = ones({16}, *client.gpu(0));
  for (int i = 0; i < kCommands; ++i) {
    x = x + one;
  }
  EXPECT_EQ((*x.fetch<float>())[0], kCommands);
  const double milliseconds = SecondsBetween(start, Clock::Real()->Now()) * 1e3;
  std::printf("%d dependent commands: %d round trips, %.1f ms at 10 ms each\n", kCommands,
              static_cast<int>(relay.round_trips()), milliseconds);
  EXPECT_LT(relay.round_trips(), 3);
  EXPECT_LT(milliseconds, kCommands * 10 / 10);  // A round trip each would be ten times as much.
}

// Cuts the connection after each of many counts of bytes: in the middle of frames, of batches, of
// the answer's way back.
TEST_F(StreamTest, ABrokenConnectionIsTakenUpAgainAndNothingRunsTwice) {
  constexpr int kCommands = 300;
  Relay relay(server().address());
  for (int64_t cut = 1; cut < 12000; cut = cut * 5 / 3 + 1) {
    const Client client = ConnectTo(relay.address());
    Tensor x = zeros({}, *client.gpu(0));
    const Tensor one = ones({}, *client.gpu(0));
    const int64_t connections = relay.connections_made();
    relay.CutAfterClientBytes(cut);
    for (int i = 0; i < kCommands; ++i) {
      x = x + one;
    }
    const absl::StatusOr<float> sum = x.item<float>();
    ASSERT_TRUE(sum.ok()) << "cut after " << cut << " bytes: " << sum.status();
    EXPECT_EQ(*sum, kCommands) << "cut after " << cut << " bytes";
    EXPECT_EQ(client.session()->commands_done, 2u + kCommands + 1u)
        << "cut after " << cut << " bytes";
    EXPECT_GT(relay.connections_made(), connections) << "cut after " << cut << " bytes";
  }
}

TEST_F(StreamTest, FetchesUnderWaySurviveABrokenConnection) {
  Relay relay(server().address());
  const Client client = ConnectTo(relay.address());
  std::vector<PendingFetch> pending;
  for (int round = 0; round < 5; ++round) {
    relay.Stall(true);
    for (int i = 0; i < 20; ++i) {
      pending.push_back(full({}, i, *client.gpu(i % 2)).fetch_async());
    }
    relay.CutConnections();
    relay.Stall(false);
  }
  for (size_t i = 0; i < pending.size(); ++i) {
    const absl::StatusOr<std::vector<float>> value = pending[i].get<float>();
    ASSERT_TRUE(value.ok()) << i << ": " << value.status();
    EXPECT_THAT(*value, ElementsAre(static_cast<float>(i % 20)));
  }
}

TEST_F(StreamTest, AFailureWhoseReplyWasLostIsStillReported) {
  options.gpu_memory_bytes = uint64_t{1} << 20;
  Relay relay(server().address(), std::chrono::milliseconds(20));
  const Client client = ConnectTo(relay.address());
  ASSERT_TRUE(client.sync().ok());
  const Tensor too_large = zeros({1 << 20}, *client.gpu(0));
  const Tensor copy = ones({4}, *client.gpu(0)).copy_to(*client.gpu(1));
  // The server has had the commands, and its replies are on the relay.
  ASSERT_TRUE(Eventually([&] { return server().peak_bytes(2) > 0; }));
  relay.CutConnections();
  EXPECT_EQ(ReasonOf(too_large.sync()), ErrorReason::kDeviceMemory) << too_large.status();
  EXPECT_TRUE(copy.receipt().ok()) << copy.receipt().status();
}

TEST_F(StreamTest, ARestartedServerFailsEveryTensorAndNothingHangs) {
  const std::string address = server().address();
  const Client client = Connect();
  const Tensor x = ones({2}, client.cpu());
  ASSERT_TRUE(x.sync().ok());
  StopServer();
  const std::unique_ptr<TestServer> restarted = RestartAt(address);
  const absl::Status status = (x + x).fetch<float>().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_EQ(ReasonOf(status), ErrorReason::kSessionExpired);
  EXPECT_THAT(Message(status), HasSubstr("server restarted"));
  EXPECT_THAT(Message(x.status()), HasSubstr("server restarted"));
  EXPECT_EQ(client.sync().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ones({2}, client.cpu()).status().code(), absl::StatusCode::kFailedPrecondition);
  restarted->CheckBaseline();
  // A new client of the new server is fine.
  EXPECT_THAT(*ones({2}, ConnectTo(address).cpu()).fetch<float>(), ElementsAre(1, 1));
}

TEST_F(StreamTest, AnExpiredLeaseFailsEveryTensorAndSaysSo) {
  Relay relay(server().address());
  ClientOptions client_options;
  client_options.name = "expires";
  client_options.lease = absl::Seconds(1);
  client_options.reconnect_timeout = absl::Seconds(60);
  const Client client = ConnectTo(relay.address(), client_options);
  const Client watcher = Connect();
  const Tensor x = ones({1 << 18}, *client.gpu(0));
  ASSERT_TRUE(x.sync().ok());
  relay.Refuse(true);
  ASSERT_TRUE(Eventually([&] { return watcher.sessions()->size() == 1; }));
  EXPECT_TRUE(server().UsedBytesBecome(0));
  relay.Refuse(false);
  const absl::Status status = x.fetch<float>().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_EQ(ReasonOf(status), ErrorReason::kSessionExpired);
  EXPECT_THAT(Message(status), HasSubstr("lease expired"));
}

TEST_F(StreamTest, AnIdleClientKeepsItsLease) {
  ClientOptions client_options;
  client_options.lease = absl::Seconds(1);
  const Client client = Connect(client_options);
  const Client watcher = Connect();
  const Tensor x = ones({2}, client.cpu());
  ASSERT_TRUE(x.sync().ok());
  // Older than two leases.
  ASSERT_TRUE(Eventually([&] {
    const absl::StatusOr<std::vector<SessionInfo>> sessions = watcher.sessions();
    return sessions.ok() && !sessions->empty() && sessions->front().age_seconds > 2.5;
  }));
  EXPECT_THAT(*x.fetch<float>(), ElementsAre(1, 1));
}

// llama.cpp's clients abort when their server goes.
TEST_F(StreamTest, AServerThatIsGoneIsUnavailableWithItsAddressAndTheLastCommand) {
  const std::string address = server().address();
  ClientOptions client_options;
  client_options.reconnect_timeout = absl::Seconds(2);
  const Client client = Connect(client_options);
  Tensor x = ones({2}, client.cpu());
  ASSERT_TRUE(x.sync().ok());
  StopServer();
  const Tensor later = matmul(ones({2, 2}, client.cpu()), ones({2, 2}, client.cpu()));
  const absl::Status status = later.fetch<float>().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(Message(status), HasSubstr(address));
  EXPECT_THAT(Message(status), HasSubstr("fetch"));
  EXPECT_EQ(x.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client.devices().status().code(), absl::StatusCode::kUnavailable);
  x = Tensor();
}

TEST_F(StreamTest, AWaitEndsAtItsDeadlineAndSaysWhatItWaitedFor) {
  Relay relay(server().address());
  const Client client = ConnectTo(relay.address());
  const Tensor x = ones({2}, client.cpu());
  ASSERT_TRUE(x.sync().ok());
  relay.Stall(true);
  const Tensor y = x + x;
  const absl::Status sync = y.sync(absl::Milliseconds(50));
  EXPECT_EQ(sync.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Message(sync), HasSubstr(absl::StrFormat("50ms for tensor %d", y.id())));
  EXPECT_THAT(Message(sync), HasSubstr(relay.address()));
  EXPECT_THAT(Message(y.fetch<float>(absl::Milliseconds(50)).status()), HasSubstr("fetch"));
  EXPECT_EQ(client.sync(absl::ZeroDuration()).code(), absl::StatusCode::kDeadlineExceeded);
  relay.Stall(false);
  EXPECT_THAT(*y.fetch<float>(), ElementsAre(2, 2));
}

// The network drops every packet and tells nobody: only the silence of the keep-alive can be
// noticed.
TEST_F(StreamTest, AConnectionThatIsDeadWithoutATraceIsReplaced) {
  Relay relay(server().address());
  ClientOptions client_options;
  client_options.lease = absl::Seconds(2);
  client_options.reconnect_timeout = absl::Seconds(60);
  const Client client = ConnectTo(relay.address(), client_options);
  const Tensor x = ones({2}, client.cpu());
  ASSERT_TRUE(x.sync().ok());
  const int64_t connections = relay.connections_made();
  relay.Stall(true);
  ASSERT_TRUE(Eventually([&] { return relay.connections_made() > connections; }));
  relay.Stall(false);
  const absl::Status status = (x + x).fetch<float>().status();
  // In time for the lease or not: it ends, and says which.
  EXPECT_TRUE(status.ok() || ReasonOf(status) == ErrorReason::kSessionExpired) << status;
}

TEST_F(StreamTest, BeyondTheWindowCommandsWaitAndAllAreDone) {
  options.limits.commands_in_flight = 64;
  const Client client = Connect();
  Tensor x = zeros({}, *client.gpu(0));
  for (int i = 0; i < 5000; ++i) {
    x = x + 1.0;
  }
  EXPECT_EQ(*x.item<float>(), 5000);
}

TEST_F(StreamTest, AFullWindowGivesUpAtTheDeadline) {
  options.limits.commands_in_flight = 64;
  Relay relay(server().address());
  ClientOptions client_options;
  client_options.timeout = absl::Milliseconds(100);
  const Client client = ConnectTo(relay.address(), client_options);
  ASSERT_TRUE(client.sync().ok());
  relay.Stall(true);
  std::vector<Tensor> tensors;
  absl::Status status;
  while (status.ok() && tensors.size() < 1000) {
    tensors.push_back(ones({}, client.cpu()));
    status = tensors.back().status();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(Message(status), HasSubstr("window of 64 commands"));
  EXPECT_LE(tensors.size(), 65u);
  relay.Stall(false);
  EXPECT_TRUE(tensors.front().sync(absl::Seconds(20)).ok()) << tensors.front().status();
}

TEST_F(StreamTest, ManyThreadsUseAndDropTheSameTensors) {
  const Client client = Connect();
  const Device devices[] = {*client.gpu(0), *client.gpu(1)};
  const Tensor shared[] = {ones({64}, devices[0]), ones({64}, devices[1])};
  std::vector<std::thread> threads;
  std::vector<absl::Status> statuses(8);
  for (size_t t = 0; t < statuses.size(); ++t) {
    threads.emplace_back([&, t] {
      Tensor x = shared[t % 2];
      for (int i = 0; i < 500; ++i) {
        x = x + shared[t % 2];
      }
      const absl::StatusOr<std::vector<float>> values = x.fetch<float>();
      statuses[t] = !values.ok()           ? values.status()
                    : (*values)[63] == 501 ? absl::OkStatus()
                                           : absl::InternalError("wrong sum");
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_THAT(statuses, testing::Each(absl::OkStatus()));
}

TEST_F(StreamTest, AHundredSessionsLeaveNothing) {
  for (int i = 0; i < 100; ++i) {
    const Client client = Connect();
    const Tensor x = ones({1000}, *client.gpu(i % 2));
    ASSERT_TRUE((x + x).sync().ok());
  }
  EXPECT_TRUE(server().UsedBytesBecome(0));
}

}  // namespace
}  // namespace devserver::client
