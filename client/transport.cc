#include "client/transport.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <chrono>

namespace devserver::client {
namespace {

constexpr int kMessageBytesMax =
    64 << 20;  // A reply above it comes from something that is no devserverd.
constexpr int kBulkWindowBytes =
    64 << 20;  // Measured: with large frames 10 to 30 % more than the default.
constexpr int kBulkFrameBytes = 4 << 20;
constexpr int kReadChunkBytes = 1 << 20;
constexpr int kReadChunkBytesMax = 4 << 20;
constexpr absl::Duration kTimeoutMax = absl::Hours(24 * 365);  // Beyond it clocks overflow.

}  // namespace

std::shared_ptr<const Transport> OpenTransport(const std::string& address, Traffic traffic) {
  grpc::ChannelArguments arguments;
  // Else two channels to one address share a connection, and a new one inherits the back-off of the
  // old.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // The smallest back-off is left alone: it bounds how long one connection may take to come about.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // Retries of gRPC's own buffer every message; what is sent again is decided here.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  arguments.SetMaxSendMessageSize(-1);
  if (traffic == Traffic::kBulk) {
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kBulkWindowBytes);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kBulkFrameBytes);
    arguments.SetInt(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, kBulkFrameBytes);
    arguments.SetInt("grpc.experimental.tcp_read_chunk_size", kReadChunkBytes);
    arguments.SetInt("grpc.experimental.tcp_max_read_chunk_size", kReadChunkBytesMax);
  }
  auto transport = std::make_shared<Transport>();
  transport->channel =
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  transport->devices = v1::DeviceService::NewStub(transport->channel);
  transport->sessions = v1::SessionService::NewStub(transport->channel);
  transport->tensors = v1::TensorService::NewStub(transport->channel);
  transport->compute = v1::ComputeService::NewStub(transport->channel);
  return transport;
}

void PrepareCall(grpc::ClientContext* context, const std::string& token, absl::Duration timeout) {
  if (timeout < kTimeoutMax) {
    context->set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(timeout));
  }
  if (!token.empty()) {
    context->AddMetadata("devserver-session", token);
  }
}

}  // namespace devserver::client
