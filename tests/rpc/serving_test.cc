// When the server serves and when not: before the devices are open, while it drains, and on a port
// that is taken.
#include <gmock/gmock.h>
#include <unistd.h>

#include <future>

#include "tests/fakes/test_server.h"
#include "tests/rpc/wire_client.h"

namespace devserver {
namespace {

using testing::HasSubstr;

class ServingTest : public ServerTest {
 protected:
  // SERVING is 1, NOT_SERVING 2 (grpc/health/v1/health.proto).
  int Health() {
    RawStream stream(WireClient(server().NewChannel()), "/grpc.health.v1.Health/Check");
    stream.Write("");
    stream.WritesDone();
    std::string reply;
    EXPECT_TRUE(stream.Read(&reply));
    EXPECT_TRUE(stream.Finish().ok());
    EXPECT_EQ(reply.substr(0, 1), "\x08");
    return reply.size() < 2 ? -1 : reply[1];
  }
};

TEST_F(ServingTest, BeforeTheDevicesAreOpenEveryCallIsUnavailable) {
  options.open_devices = false;
  const WireClient client(server().channel());
  EXPECT_EQ(Health(), 2);
  EXPECT_EQ(client.Create("").code(), grpc::UNAVAILABLE);
  EXPECT_EQ(client.Open("").code(), grpc::UNAVAILABLE);
  EXPECT_EQ(client.Run("").code(), grpc::UNAVAILABLE);
  const auto devices =
      client.Call(*client.devices, &v1::DeviceService::Stub::ListDevices, v1::ListDevicesRequest());
  EXPECT_EQ(devices.code(), grpc::UNAVAILABLE);
  EXPECT_THAT(devices.error().message(), HasSubstr("opening its devices"));
  for (const std::string method : {"TensorService/Upload", "TensorService/Download",
                                   "ComputeService/Execute", "DeviceService/WatchDevices"}) {
    RawStream stream(client, "/devserver.v1." + method);
    stream.Write("");
    stream.WritesDone();
    EXPECT_EQ(stream.Finish().error_code(), grpc::UNAVAILABLE) << method;
  }
  server().OpenDevices();
  EXPECT_EQ(Health(), 1);
  EXPECT_TRUE(client.Create("").ok());
}

TEST_F(ServingTest, DrainingEndsIdleStreamsAndRefusesNewCalls) {
  const SessionClient client(server().channel());
  ASSERT_TRUE(client.Create("shape: 1000 device: 'gpu:0'").ok());
  grpc::ClientContext execute_context;
  client.Prepare(execute_context);
  const auto execute = client.compute->Execute(&execute_context);
  ASSERT_TRUE(execute->Write(Parse<v1::ExecuteRequest>("commands { number: 1 sync {} }")));
  v1::ExecuteReply executed;
  ASSERT_TRUE(execute->Read(&executed));
  grpc::ClientContext watch_context;
  const auto watch = client.devices->WatchDevices(
      &watch_context, Parse<v1::WatchDevicesRequest>("interval_seconds: 0.05"));
  v1::ListDevicesReply watched;
  ASSERT_TRUE(watch->Read(&watched));

  std::future<void> drained =
      std::async(std::launch::async, [&] { server().server().Drain(absl::Seconds(20)); });
  while (execute->Read(&executed)) {
  }
  EXPECT_FALSE(execute->Finish().ok());
  while (watch->Read(&watched)) {
  }
  EXPECT_FALSE(watch->Finish().ok());
  // Idle streams don't make it wait for the grace time.
  EXPECT_EQ(drained.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_EQ(client.Create("").code(), grpc::UNAVAILABLE);
  EXPECT_EQ(server().used_bytes(), 0u);
  StopServer();
}

TEST_F(ServingTest, HealthSaysNotServingOnceDrainingBegins) {
  // A download that is not read on keeps the server draining.
  const WireClient client(server().NewChannel());
  ASSERT_TRUE(client.Create("shape: 25000000 device: 'gpu:0'").ok());
  RawStream download(client, "/devserver.v1.TensorService/Download");
  ASSERT_TRUE(download.Write(Parse<v1::DownloadRequest>("id: 1").SerializeAsString()));
  std::string message;
  ASSERT_TRUE(download.Read(&message));
  RawStream health(client, "/grpc.health.v1.Health/Watch");
  ASSERT_TRUE(health.Write(""));
  ASSERT_TRUE(health.Read(&message));
  EXPECT_EQ(message, "\x08\x01");
  std::future<void> drained =
      std::async(std::launch::async, [&] { server().server().Drain(absl::Seconds(20)); });
  ASSERT_TRUE(health.Read(&message));
  EXPECT_EQ(message, "\x08\x02");
  health.Cancel();
  // What runs is finished within the grace time.
  size_t bytes = 0;
  while (download.Read(&message)) {
    bytes += message.size();
  }
  EXPECT_TRUE(download.Finish().ok());
  EXPECT_GE(bytes, 100'000'000u);
  EXPECT_EQ(drained.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  StopServer();
}

TEST_F(ServingTest, CallsThatOutlastTheGraceTimeAreCut) {
  const WireClient client(server().NewChannel());
  ASSERT_TRUE(client.Create("shape: 25000000 device: 'gpu:0'").ok());
  RawStream download(client, "/devserver.v1.TensorService/Download");
  ASSERT_TRUE(download.Write(Parse<v1::DownloadRequest>("id: 1").SerializeAsString()));
  std::string message;
  ASSERT_TRUE(download.Read(&message));
  const auto start = std::chrono::steady_clock::now();
  server().server().Drain(absl::Milliseconds(300));
  const Seconds took = std::chrono::steady_clock::now() - start;
  EXPECT_GE(took.count(), 0.2);
  EXPECT_LE(took.count(), 3);
  EXPECT_FALSE(download.Finish().ok());
  StopServer();
}

TEST_F(ServingTest, ATakenPortIsRefusedByName) {
  ServerConfig second;
  second.listen_addresses = {server().address()};
  const absl::StatusOr<std::unique_ptr<Server>> refused = Server::Start(second);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr(server().address()));
  EXPECT_TRUE(WireClient(server().NewChannel()).Create("").ok());
}

TEST_F(ServingTest, ARestartOnTheSamePortIsANewServer) {
  const WireClient client(server().channel());
  const auto before = client.Open("");
  ASSERT_TRUE(before.ok());
  options.listen = server().address();
  StopServer();
  const auto start = std::chrono::steady_clock::now();
  const WireClient again(server().NewChannel());
  const auto after = again.Open("");
  ASSERT_TRUE(after.ok()) << after.message();
  EXPECT_LE(Seconds(std::chrono::steady_clock::now() - start).count(), 1);
  EXPECT_NE(before.reply.server_id(), after.reply.server_id());
  EXPECT_EQ(WireClient(server().channel(), before.reply.token()).Close().error().reason(),
            v1::OpError::SESSION_EXPIRED);
  EXPECT_TRUE(WireClient(server().channel(), after.reply.token()).Close().ok());
}

TEST_F(ServingTest, AUnixSocketServesToo) {
  options.unix_socket = absl::StrFormat("/tmp/devserver-serving-test-%d.sock", getpid());
  ASSERT_TRUE(WireClient(server().channel()).Create("id: 1").ok());
  const auto channel =
      grpc::CreateChannel("unix:" + options.unix_socket, grpc::InsecureChannelCredentials());
  const WireClient local(channel);
  EXPECT_EQ(local.Get(1).code(), grpc::NOT_FOUND);  // Another peer, another default session.
  EXPECT_TRUE(local.Create("id: 1").ok());
  EXPECT_TRUE(local.Delete({1}).ok());
}

}  // namespace
}  // namespace devserver
