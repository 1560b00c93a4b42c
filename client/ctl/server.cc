#include "client/ctl/server.h"

#include <google/protobuf/wrappers.pb.h>
#include <grpcpp/generic/generic_stub.h>

#include <utility>

#include "absl/strings/str_format.h"
#include "client/wire.h"
#include "server/base/error_details.h"
#include "server/base/status_macros.h"

namespace devserver::ctl {
namespace {

constexpr absl::Duration kConnectTimeout = absl::Seconds(10);
constexpr absl::Duration kHealthInterval = absl::Milliseconds(50);  // Between looks of `wait`.
constexpr int kReconnectMsMax = 200;  // `wait` should notice a server soon after its start.
constexpr uint32_t kServing = 1;      // grpc.health.v1.HealthCheckResponse.SERVING

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMsMax);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMsMax);
  arguments.SetMaxReceiveMessageSize(-1);  // The server has its own limit.
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

gpr_timespec GprTime(absl::Time time) {
  gpr_timespec result;
  const timespec unix_time = absl::ToTimespec(time);
  result.tv_sec = unix_time.tv_sec;
  result.tv_nsec = static_cast<int32_t>(unix_time.tv_nsec);
  result.clock_type = GPR_CLOCK_REALTIME;
  return result;
}

absl::Status NothingAnswers(const std::string& address, const std::string& detail) {
  return Unreachable(absl::UnavailableError(absl::StrFormat(
      "no devserverd answers at %s%s%s; start one, or say where it is with --server HOST:PORT or "
      "unix:PATH",
      address, detail.empty() ? "" : ": ", detail)));
}

}  // namespace

Server::Server(std::shared_ptr<grpc::Channel> channel, const Program& program)
    : channel_(std::move(channel)),
      address_(program.server),
      timeout_(program.timeout()),
      devices_(v1::DeviceService::NewStub(channel_)),
      sessions_(v1::SessionService::NewStub(channel_)),
      tensors_(v1::TensorService::NewStub(channel_)),
      compute_(v1::ComputeService::NewStub(channel_)) {}

absl::StatusOr<Server> Server::Connect(const Program& program) {
  std::shared_ptr<grpc::Channel> channel = MakeChannel(program.server);
  const gpr_timespec deadline = GprTime(absl::Now() + std::min(kConnectTimeout, program.timeout()));
  grpc_connectivity_state state = channel->GetState(/*try_to_connect=*/true);
  // The first failure is an answer; gRPC itself would go on trying.
  while (state != GRPC_CHANNEL_READY && state != GRPC_CHANNEL_TRANSIENT_FAILURE) {
    if (!channel->WaitForStateChange(state, deadline)) {
      break;
    }
    state = channel->GetState(/*try_to_connect=*/true);
  }
  if (state != GRPC_CHANNEL_READY) {
    return NothingAnswers(program.server, "");
  }
  return Server(std::move(channel), program);
}

absl::Status Server::Refusal(const grpc::Status& status) const {
  absl::Status refusal = client::StatusFrom(status, "server " + address_);
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE && !DetailsOf(refusal).has_value()) {
    return NothingAnswers(address_, status.error_message());
  }
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return absl::DeadlineExceededError(
        absl::StrFormat("server %s: no reply within %s; give it longer with --timeout SECONDS",
                        address_, absl::FormatDuration(timeout_)));
  }
  return refusal;
}

absl::StatusOr<bool> Server::IsServing(const std::string& service) const {
  // HealthCheckRequest{string service = 1} and HealthCheckResponse{ServingStatus status = 1} have
  // the same bytes as these two, whose code every protobuf has.
  grpc::TemplatedGenericStub<google::protobuf::StringValue, google::protobuf::UInt32Value> stub(
      channel_);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout_));
  google::protobuf::StringValue request;
  request.set_value(service);
  google::protobuf::UInt32Value reply;
  grpc::Status status;
  grpc::CompletionQueue queue;
  const auto call =
      stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
  call->StartCall();
  call->Finish(&reply, &status, &queue);
  void* tag = nullptr;
  bool finished = false;
  queue.Next(&tag, &finished);
  if (!status.ok()) {
    return Refusal(status);
  }
  return reply.value() == kServing;
}

absl::Status Server::WaitUntilServing(const Program& program, absl::Duration patience) {
  const absl::Time deadline = absl::Now() + patience;
  const std::shared_ptr<grpc::Channel> channel = MakeChannel(program.server);
  const Server server(channel, program);
  std::string last = "nothing answers there";
  while (absl::Now() < deadline) {
    if (!channel->WaitForConnected(GprTime(deadline))) {
      break;
    }
    const absl::StatusOr<bool> serving = server.IsServing("");
    if (serving.ok() && *serving) {
      return absl::OkStatus();
    }
    last = serving.ok() ? "it is not serving yet" : std::string(serving.status().message());
    // Until it breaks the connection, or for a moment.
    channel->WaitForStateChange(GRPC_CHANNEL_READY, GprTime(absl::Now() + kHealthInterval));
  }
  return Unreachable(absl::DeadlineExceededError(
      absl::StrFormat("server %s does not serve after %s: %s; wait longer with --for SECONDS",
                      program.server, absl::FormatDuration(patience), last)));
}

absl::StatusOr<client::Client> ConnectClient(const Program& program, bool default_session) {
  client::ClientOptions options;
  options.name = "devserverctl";
  options.connect_timeout = std::min(kConnectTimeout, program.timeout());
  options.timeout = program.timeout();
  options.default_session = default_session;
  absl::StatusOr<client::Client> connected = client::Client::connect(program.server, options);
  if (!connected.ok() && connected.status().code() == absl::StatusCode::kUnavailable) {
    return Unreachable(connected.status());
  }
  return connected;
}

}  // namespace devserver::ctl
