// Servers that answer nonsense: the client says so in a status. It never aborts and never waits for
// ever.
#include <gmock/gmock.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "devserver/client.h"
#include "devserver/v1/compute.grpc.pb.h"
#include "devserver/v1/device.grpc.pb.h"
#include "devserver/v1/session.grpc.pb.h"
#include "devserver/v1/tensor.grpc.pb.h"

namespace devserver::client {
namespace {

using testing::HasSubstr;

// Does what is needed to be connected to; what it answers on the stream is the test's.
class HostileServer {
 public:
  // Called for every request; false ends the stream with INTERNAL.
  using Answer = std::function<bool(const v1::ExecuteRequest&, v1::ExecuteReply*)>;
  using Chunks = std::function<std::vector<v1::DownloadReply>()>;

  explicit HostileServer(Answer answer = nullptr) : compute_(std::move(answer)) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    // Else a shutdown may wait ten seconds for an idle thread.
    builder.SetSyncServerOption(grpc::ServerBuilder::CQ_TIMEOUT_MSEC, 100);
    builder.RegisterService(&devices_);
    builder.RegisterService(&sessions_);
    builder.RegisterService(&compute_);
    builder.RegisterService(&tensors_);
    server_ = builder.BuildAndStart();
    address_ = absl::StrFormat("127.0.0.1:%d", port);
  }
  ~HostileServer() { server_->Shutdown(std::chrono::system_clock::now()); }

  v1::ListDevicesReply& devices_reply() { return devices_.reply; }
  v1::OpenSessionReply& open_reply() { return sessions_.open; }
  v1::AttachSessionReply& attach_reply() { return sessions_.attach; }
  void set_chunks(Chunks chunks) { tensors_.chunks = std::move(chunks); }
  const std::string& address() const { return address_; }

 private:
  struct Devices final : v1::DeviceService::Service {
    Devices() {
      reply.add_devices()->set_name("cpu:0");
      reply.mutable_devices(0)->set_kind(v1::Device::CPU);
    }
    grpc::Status ListDevices(grpc::ServerContext*, const v1::ListDevicesRequest*,
                             v1::ListDevicesReply* answer) override {
      *answer = reply;
      return grpc::Status::OK;
    }
    v1::ListDevicesReply reply;
  };
  struct Sessions final : v1::SessionService::Service {
    Sessions() {
      open.set_token("token");
      open.set_protocol(1);
      open.set_server_id("hostile");
      open.mutable_session()->set_lease_seconds(3);
      open.mutable_limits()->set_inline_bytes(64);
      attach.set_server_id("hostile");
    }
    grpc::Status OpenSession(grpc::ServerContext*, const v1::OpenSessionRequest*,
                             v1::OpenSessionReply* answer) override {
      *answer = open;
      return grpc::Status::OK;
    }
    grpc::Status AttachSession(grpc::ServerContext*, const v1::AttachSessionRequest*,
                               v1::AttachSessionReply* answer) override {
      *answer = attach;
      return grpc::Status::OK;
    }
    grpc::Status KeepAlive(grpc::ServerContext*, const v1::KeepAliveRequest*,
                           v1::KeepAliveReply*) override {
      return grpc::Status::OK;
    }
    grpc::Status CloseSession(grpc::ServerContext*, const v1::CloseSessionRequest*,
                              v1::CloseSessionReply*) override {
      return grpc::Status::OK;
    }
    v1::OpenSessionReply open;
    v1::AttachSessionReply attach;
  };
  struct Compute final : v1::ComputeService::Service {
    explicit Compute(Answer given) : answer(std::move(given)) {}
    grpc::Status Execute(
        grpc::ServerContext*,
        grpc::ServerReaderWriter<v1::ExecuteReply, v1::ExecuteRequest>* stream) override {
      v1::ExecuteRequest request;
      while (stream->Read(&request)) {
        v1::ExecuteReply reply;
        if (answer != nullptr && !answer(request, &reply)) {
          return grpc::Status(grpc::StatusCode::INTERNAL, "no");
        }
        if (answer != nullptr && !stream->Write(reply)) {
          break;
        }
      }
      return grpc::Status::OK;
    }
    const Answer answer;
  };
  struct Tensors final : v1::TensorService::Service {
    grpc::Status Download(grpc::ServerContext*, const v1::DownloadRequest*,
                          grpc::ServerWriter<v1::DownloadReply>* writer) override {
      for (const v1::DownloadReply& reply : chunks()) {
        writer->Write(reply);
      }
      return grpc::Status::OK;
    }
    grpc::Status Upload(grpc::ServerContext*, grpc::ServerReader<v1::UploadRequest>*,
                        v1::TensorReply*) override {
      return grpc::Status::OK;  // Before the first byte, naming no tensor.
    }
    Chunks chunks;
  };

  Devices devices_;
  Sessions sessions_;
  Compute compute_;
  Tensors tensors_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

uint64_t LastNumber(const v1::ExecuteRequest& request) {
  return request.commands_size() == 0 ? 0 : request.commands(request.commands_size() - 1).number();
}

absl::Status FetchFrom(HostileServer* server, int64_t elements) {
  const absl::StatusOr<Client> client = Client::connect(server->address());
  EXPECT_TRUE(client.ok()) << client.status();
  return ones({elements}, client->cpu()).fetch<float>().status();
}

v1::DownloadReply Chunk(size_t size) {
  v1::DownloadReply reply;
  reply.set_chunk(std::string(size, 'x'));
  return reply;
}

TEST(HostileServer, OneThatOpensASessionWithoutATokenIsRefused) {
  HostileServer server;
  server.open_reply().clear_token();
  EXPECT_EQ(Client::connect(server.address()).status().code(), absl::StatusCode::kInternal);
}

TEST(HostileServer, OneThatSpeaksAnotherProtocolIsRefused) {
  HostileServer server;
  server.open_reply().set_protocol(7);
  EXPECT_EQ(Client::connect(server.address()).status().code(), absl::StatusCode::kInternal);
}

TEST(HostileServer, OneWithoutACpuIsRefused) {
  HostileServer server;
  server.devices_reply().clear_devices();
  EXPECT_EQ(Client::connect(server.address()).status().code(), absl::StatusCode::kInternal);
}

TEST(HostileServer, OneThatFinishesWhatWasNeverSentLosesTheSession) {
  HostileServer server([](const v1::ExecuteRequest&, v1::ExecuteReply* reply) {
    reply->set_done_through(UINT64_MAX);
    return true;
  });
  const absl::Status status = FetchFrom(&server, 4);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("is finished"));
}

TEST(HostileServer, AFetchThatIsFinishedWithoutValuesFails) {
  HostileServer server([](const v1::ExecuteRequest& request, v1::ExecuteReply* reply) {
    reply->set_done_through(LastNumber(request));
    return true;
  });
  EXPECT_EQ(FetchFrom(&server, 4).code(), absl::StatusCode::kInternal);
}

TEST(HostileServer, ValuesOfAnotherSizeFail) {
  HostileServer server([](const v1::ExecuteRequest& request, v1::ExecuteReply* reply) {
    for (const v1::Command& command : request.commands()) {
      v1::CommandReply* fetched = reply->add_replies();
      fetched->set_number(command.number());
      fetched->mutable_fetched()->mutable_values()->set_raw("short");
    }
    return true;
  });
  const absl::Status status = FetchFrom(&server, 4);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("sent 5 bytes for f32[4], which has 16"));
}

TEST(HostileServer, RepliesToUnknownCommandsAreIgnoredAndAnErrorWithoutACodeIsOne) {
  HostileServer server([](const v1::ExecuteRequest& request, v1::ExecuteReply* reply) {
    for (const uint64_t number : {uint64_t{0}, UINT64_MAX, LastNumber(request)}) {
      v1::CommandReply* error = reply->add_replies();
      error->set_number(number);
      error->mutable_error()->set_code(99);
      error->mutable_error()->set_message(std::string("a\0b", 3));
      error->mutable_error()->set_device(std::string("c\0d", 3));
    }
    return true;
  });
  const absl::StatusOr<Client> client = Client::connect(server.address());
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ(ones({4}, client->cpu()).sync().code(), absl::StatusCode::kUnknown);
}

TEST(HostileServer, OneThatEndsEveryStreamIsGivenUp) {
  HostileServer server([](const v1::ExecuteRequest&, v1::ExecuteReply*) { return false; });
  server.attach_reply().set_received_through(0);
  const absl::Status status = FetchFrom(&server, 4);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("times in a row"));
}

TEST(HostileServer, OneThatHasHadWhatWasNeverGivenLosesTheSession) {
  HostileServer server([](const v1::ExecuteRequest&, v1::ExecuteReply*) { return false; });
  server.attach_reply().set_received_through(1 << 30);
  EXPECT_EQ(FetchFrom(&server, 4).code(), absl::StatusCode::kInternal);
}

TEST(HostileServer, AnUploadThatNamesNoTensorFails) {
  HostileServer server;
  const absl::StatusOr<Client> client = Client::connect(server.address());
  ASSERT_TRUE(client.ok()) << client.status();
  const std::vector<float> values(1 << 20);
  EXPECT_EQ(from(values, {1 << 20}, client->cpu()).status().code(), absl::StatusCode::kInternal);
}

class HostileDownloadTest : public testing::TestWithParam<std::vector<v1::DownloadReply>> {};

TEST_P(HostileDownloadTest, Fails) {
  HostileServer server([](const v1::ExecuteRequest& request, v1::ExecuteReply* reply) {
    reply->set_done_through(LastNumber(request));
    return true;
  });
  server.set_chunks([] { return GetParam(); });
  EXPECT_EQ(FetchFrom(&server, 1000).code(), absl::StatusCode::kInternal);
}

INSTANTIATE_TEST_SUITE_P(
    Replies, HostileDownloadTest,
    testing::Values(std::vector<v1::DownloadReply>{},                       // nothing
                    std::vector<v1::DownloadReply>{Chunk(3999)},            // a byte short
                    std::vector<v1::DownloadReply>{Chunk(4001)},            // a byte long
                    std::vector<v1::DownloadReply>{Chunk(4000), Chunk(1)},  // one more
                    std::vector<v1::DownloadReply>{v1::DownloadReply()}));  // no part at all

}  // namespace
}  // namespace devserver::client
