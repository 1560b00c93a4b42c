// What the services serve: devices and sessions, once they are open.
//
// The port listens before the devices are open, which takes seconds on real GPUs: until then every
// call is UNAVAILABLE and health says NOT_SERVING. Thread safety: any thread.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/mutex.h"
#include "server/session/device_set.h"
#include "server/session/limits.h"
#include "server/session/session_table.h"

namespace grpc {
class CallbackServerContext;
class ServerContextBase;
}  // namespace grpc

namespace devserver {

// How busy each device was over the last second or so. Sample is called by one timer.
class UtilizationMeter {
 public:
  explicit UtilizationMeter(const DeviceSet& devices) : devices_(devices) {}
  void Sample(TimePoint now);
  double Utilization(size_t device_index) const;  // 0 to 1

 private:
  struct Reading {
    TimePoint time;
    std::vector<double> busy_seconds;
  };

  // Constant after construction.
  const DeviceSet& devices_;
  // Guarded by mu_.
  mutable Mutex mu_;
  std::deque<Reading> readings_ ABSL_GUARDED_BY(mu_);
};

struct Backend {
  Backend(std::string name, DeviceSet* set, const Limits* limits, const Clock* clock)
      : server_name(std::move(name)),
        devices(set),
        sessions({set, limits, clock}),
        utilization(*set) {}

  const std::string server_name;
  const std::unique_ptr<DeviceSet> devices;  // declared before what uses it
  SessionTable sessions;
  UtilizationMeter utilization;
};

class BackendSlot {
 public:
  explicit BackendSlot(const Limits* limits) : limits_(limits) {}

  // Call once. The backend must outlive all calls.
  void Set(Backend* backend) { backend_.store(backend, std::memory_order_release); }
  // From now on every call is UNAVAILABLE.
  void Close() { closed_.store(true, std::memory_order_release); }

  // UNAVAILABLE before the devices are open and when the server is shutting down.
  absl::StatusOr<Backend*> Get() const;
  // The session that a call names by its metadata, or the caller's default session. Its lease is
  // renewed.
  absl::StatusOr<SessionRef> FindSession(const grpc::ServerContextBase& context) const;

  const Limits& limits() const { return *limits_; }

 private:
  const Limits* const limits_;
  std::atomic<Backend*> backend_ = nullptr;
  std::atomic<bool> closed_ = false;
};

// The address of the caller without its port: "127.0.0.1", "unix".
std::string PeerAddress(const grpc::ServerContextBase& context);

}  // namespace devserver
