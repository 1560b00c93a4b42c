#include "server/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <pthread.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "grpc/health/v1/health.pb.h"
#include "server/base/status_macros.h"
#include "server/device/discover.h"
#include "server/listen_address.h"
#include "server/rpc/services.h"

namespace devserver {
namespace {

// Leases are kept to a fifth of a second: "within lease + 1 s" leaves room for a busy machine.
constexpr std::chrono::milliseconds kTickPeriod{200};
constexpr std::chrono::seconds kTickLateMax{5};
// Messages up to this are read and refused with our own words ("use the stream"); larger ones gRPC
// itself refuses.
constexpr uint64_t kMessageSlack = 2;
// Calls of one connection at once, so that unread messages of one client are bounded.
constexpr int kCallsPerConnection = 256;
// How long replies that gRPC still holds may keep tensors alive after the last call has ended.
constexpr std::chrono::seconds kLastReferencesMax{2};

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 && name[0] != '\0' ? name : "devserverd";
}

// For bulk streams: frames and buffers as large as a chunk, no probing pings.
void TuneChannels(const Limits& limits, grpc::ServerBuilder* builder) {
  constexpr int kMiB = 1 << 20;
  builder->AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 8 * kMiB);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 4 * kMiB);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, 4 * kMiB);
  builder->AddChannelArgument(GRPC_ARG_TCP_READ_CHUNK_SIZE, kMiB);
  builder->AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 4 * kMiB);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kCallsPerConnection);
  // Two servers on one port would share its calls at random.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // A peer that is gone without a word is noticed in half a minute; clients may ping every 5 s.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder->SetMaxReceiveMessageSize(static_cast<int>(
      std::min<uint64_t>(limits.message_bytes * kMessageSlack, std::numeric_limits<int>::max())));
  builder->SetMaxSendMessageSize(-1);
  // gRPC reads a message whole before it compares its length with the maximum.
  grpc::ResourceQuota quota("devserverd");
  quota.Resize(limits.transport_bytes);
  builder->SetResourceQuota(quota);
}

}  // namespace

Server::Server(const ServerConfig& config)
    : config_(config),
      host_memory_(std::make_unique<HostMemory>(HostMemoryLimit(config.devices))),
      stalls_(Seconds(config.limits.stall_seconds)),
      slot_(&config_.limits),
      last_tick_(Clock::Real()->Now().time_since_epoch().count()) {
  services_.push_back(NewDeviceService(&slot_));
  services_.push_back(NewSessionService(&slot_));
  services_.push_back(NewTensorService(&slot_, &stalls_));
  services_.push_back(NewComputeService(&slot_));
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerConfig& config) {
  RETURN_IF_ERROR(CheckConfig(config));
  std::unique_ptr<Server> server(new Server(config));
  RETURN_IF_ERROR(server->Listen());
  server->timer_ = std::thread([raw = server.get()] { raw->TimerLoop(); });
  pthread_setname_np(server->timer_.native_handle(), "timer");
  return server;
}

absl::Status Server::Listen() {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  // Links the descriptor in, so that reflection can describe the health service too.
  grpc::health::v1::HealthCheckRequest::descriptor();
  grpc::ServerBuilder builder;
  TuneChannels(config_.limits, &builder);
  std::vector<ListenAddress> addresses;
  for (const std::string& text : config_.listen_addresses) {
    ASSIGN_OR_RETURN(ListenAddress address, ParseListenAddress(text));
    addresses.push_back(std::move(address));
  }
  if (!config_.unix_socket.empty()) {
    ListenAddress address;
    address.unix_path = config_.unix_socket;
    addresses.push_back(std::move(address));
  }
  std::vector<int> ports(addresses.size(), 0);
  for (size_t i = 0; i < addresses.size(); ++i) {
    builder.AddListeningPort(addresses[i].ToString(), grpc::InsecureServerCredentials(), &ports[i]);
  }
  for (const std::unique_ptr<grpc::Service>& service : services_) {
    builder.RegisterService(service.get());
  }
  grpc_server_ = builder.BuildAndStart();
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (grpc_server_ == nullptr || ports[i] == 0) {
      return absl::UnavailableError(
          absl::StrFormat("can't listen on %s: in use, or not an address of this machine; choose "
                          "another with --listen, or port 0 for any",
                          addresses[i].ToString()));
    }
    if (addresses[i].unix_path.empty()) {
      addresses[i].port = static_cast<uint16_t>(ports[i]);
    } else {
      // Whoever may log in here may use loopback too; a socket that only root can open would be of
      // no use.
      chmod(addresses[i].unix_path.c_str(), 0666);
    }
    addresses_.push_back(addresses[i].ToString());
  }
  SetServing(false);
  return absl::OkStatus();
}

void Server::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* const health = grpc_server_->GetHealthCheckService();
  health->SetServingStatus(serving);  // of the server as a whole: ""
  for (const char* const service :
       {"DeviceService", "SessionService", "TensorService", "ComputeService"}) {
    health->SetServingStatus(absl::StrFormat("devserver.v1.%s", service), serving);
  }
}

absl::Status Server::OpenDevices() {
  ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Device>> devices,
                   devserver::OpenDevices(config_.devices, host_memory_.get()));
  Fabric fabric = BuildFabric(devices);
  OpenDevices(std::move(devices), std::move(fabric), NoGpuReason());
  return absl::OkStatus();
}

void Server::OpenDevices(std::vector<std::unique_ptr<Device>> devices, Fabric fabric,
                         std::string no_gpu_reason) {
  for (const std::unique_ptr<Device>& device : devices) {
    spdlog::info("device {}: {}, {} MiB", device->properties().name, device->properties().model,
                 device->properties().memory_limit_bytes >> 20);
  }
  backend_ = std::make_unique<Backend>(
      config_.name.empty() ? HostName() : config_.name,
      new DeviceSet(std::move(devices), std::move(fabric), std::move(no_gpu_reason)),
      &config_.limits, Clock::Real());
  slot_.Set(backend_.get());
  ticking_.store(backend_.get(), std::memory_order_release);
  SetServing(true);
}

void Server::Drain(absl::Duration grace) {
  if (std::exchange(drained_, true)) {
    return;
  }
  const TimePoint deadline =
      Clock::Real()->Now() + std::chrono::nanoseconds(absl::ToInt64Nanoseconds(grace));
  SetServing(false);
  slot_.Close();
  if (backend_ != nullptr) {
    // Queued work first: its callers get their results. Then the sessions: their streams end, what
    // is left does not start.
    const MutexLock lock(&timer_mu_);
    const auto busy = [this] {
      uint64_t queued = 0;
      for (size_t i = 0; i < backend_->devices->size(); ++i) {
        queued += backend_->devices->queue(i).queued();
      }
      return queued > 0;
    };
    while (busy() && Clock::Real()->Now() < deadline) {
      timer_wake_.WaitUntil(&timer_mu_,
                            std::chrono::steady_clock::now() + std::chrono::milliseconds(10));
    }
  }
  if (backend_ != nullptr) {
    for (const SessionRef& session : backend_->sessions.List()) {
      const uint64_t bytes = session->account().bytes();
      if (bytes > 0) {
        spdlog::info("session '{}' of {} still held {} bytes", session->options().name,
                     session->options().peer, bytes);
      }
    }
    backend_->sessions.CloseAll();
  }
  // Bulk streams and watches that are still open get what is left of the grace time, then they are
  // cancelled.
  const auto left = std::max(deadline - Clock::Real()->Now(), TimePoint::duration::zero());
  grpc_server_->Shutdown(std::chrono::system_clock::now() + left);
}

Server::~Server() {
  if (grpc_server_ != nullptr) {
    Drain(absl::ZeroDuration());
  }
  {
    const MutexLock lock(&timer_mu_);
    stopping_ = true;
  }
  timer_wake_.NotifyAll();
  if (timer_.joinable()) {
    timer_.join();
  }
  grpc_server_.reset();
  WaitForLastReferences();
  for (const std::string& address : addresses_) {
    const absl::StatusOr<ListenAddress> parsed = ParseListenAddress(address);
    if (parsed.ok() && !parsed->unix_path.empty()) {
      unlink(parsed->unix_path.c_str());
    }
  }
}

// gRPC may still hold slices over tensors' memory for connections that it is closing in the
// background.
void Server::WaitForLastReferences() {
  if (backend_ == nullptr) {
    return;
  }
  backend_->sessions.CloseAll();
  const auto held = [this] {
    uint64_t bytes = 0;
    for (size_t i = 0; i < backend_->devices->size(); ++i) {
      bytes += backend_->devices->queue(i).device().memory().used_bytes;
    }
    return bytes;
  };
  const TimePoint deadline = Clock::Real()->Now() + kLastReferencesMax;
  const MutexLock lock(&timer_mu_);
  while (held() > 0 && Clock::Real()->Now() < deadline) {
    timer_wake_.WaitUntil(&timer_mu_,
                          std::chrono::steady_clock::now() + std::chrono::milliseconds(2));
  }
  if (held() > 0) {
    spdlog::error(
        "{} bytes of tensors are still referenced at the end; they are left to the kernel", held());
    // What is still referenced must not be destroyed.
    [[maybe_unused]] const auto* const backend = backend_.release();
    [[maybe_unused]] const auto* const host_memory = host_memory_.release();
  }
}

void Server::TimerLoop() {
  const MutexLock lock(&timer_mu_);
  while (!stopping_) {
    timer_mu_.Unlock();
    Tick();
    timer_mu_.Lock();
    if (!stopping_) {
      timer_wake_.WaitUntil(&timer_mu_, std::chrono::steady_clock::now() + kTickPeriod);
    }
  }
}

void Server::Tick() {
  const TimePoint now = Clock::Real()->Now();
  last_tick_.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  stalls_.CancelStalled(now);
  Backend* const backend = ticking_.load(std::memory_order_acquire);
  if (backend == nullptr) {
    return;
  }
  backend->utilization.Sample(now);
  const size_t closed = backend->sessions.CloseExpired();
  if (closed > 0) {
    spdlog::info("{} session(s) closed: their leases ran out", closed);
  }
}

bool Server::Healthy() const {
  const TimePoint last(TimePoint::duration(last_tick_.load(std::memory_order_relaxed)));
  return Clock::Real()->Now() - last < kTickLateMax;
}

}  // namespace devserver
