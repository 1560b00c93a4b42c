#include "server/rpc/backend.h"

#include <grpcpp/server_context.h>

#include <algorithm>

#include "server/base/error_details.h"
#include "server/base/status_macros.h"

namespace devserver {
namespace {

constexpr char kSessionKey[] = "devserver-session";  // the metadata key; see session.proto
constexpr size_t kReadingsMax = 6;                   // a bit more than a second at five a second

}  // namespace

void UtilizationMeter::Sample(TimePoint now) {
  Reading reading = {now, {}};
  for (size_t i = 0; i < devices_.size(); ++i) {
    reading.busy_seconds.push_back(devices_.queue(i).busy_seconds());
  }
  const MutexLock lock(&mu_);
  readings_.push_back(std::move(reading));
  if (readings_.size() > kReadingsMax) {
    readings_.pop_front();
  }
}

double UtilizationMeter::Utilization(size_t device_index) const {
  const MutexLock lock(&mu_);
  if (readings_.size() < 2) {
    return 0;
  }
  const Reading& first = readings_.front();
  const Reading& last = readings_.back();
  const double seconds = SecondsBetween(first.time, last.time);
  const double busy = last.busy_seconds[device_index] - first.busy_seconds[device_index];
  return seconds > 0 ? std::clamp(busy / seconds, 0.0, 1.0) : 0;
}

absl::StatusOr<Backend*> BackendSlot::Get() const {
  if (closed_.load(std::memory_order_acquire)) {
    return absl::UnavailableError("the server is shutting down");
  }
  Backend* const backend = backend_.load(std::memory_order_acquire);
  if (backend == nullptr) {
    return absl::UnavailableError("the server is opening its devices; try again in a moment");
  }
  return backend;
}

absl::StatusOr<SessionRef> BackendSlot::FindSession(const grpc::ServerContextBase& context) const {
  ASSIGN_OR_RETURN(Backend* const backend, Get());
  const auto token = context.client_metadata().find(kSessionKey);
  if (token == context.client_metadata().end()) {
    return backend->sessions.FindDefault(PeerAddress(context));
  }
  return backend->sessions.Find(std::string_view(token->second.data(), token->second.size()));
}

std::string PeerAddress(const grpc::ServerContextBase& context) {
  std::string peer = context.peer();  // "ipv4:127.0.0.1:4711", "ipv6:[::1]:4711", "unix:/run/..."
  const size_t colon = peer.find(':');
  std::string family = peer.substr(0, colon);
  if (colon == std::string::npos || family == "unix") {
    return family;
  }
  peer = peer.substr(colon + 1);
  return peer.substr(0, peer.rfind(':'));
}

}  // namespace devserver
