// A running server: its devices, sessions and gRPC services. Built in order, destroyed in reverse.
//
//   Start        the port listens, health says NOT_SERVING, every call is UNAVAILABLE
//   OpenDevices  devices are open, health says SERVING
//   Drain        health says NOT_SERVING, running calls finish within the grace time, sessions are
//   closed
// Thread safety: Start, OpenDevices, Drain and the destructor on one thread; the rest on any.
#pragma once

#include <grpcpp/server.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/mutex.h"
#include "server/config.h"
#include "server/device/memory_pool.h"
#include "server/rpc/backend.h"
#include "server/rpc/stall_watch.h"

namespace devserver {

class Server {
 public:
  // Errors: INVALID_ARGUMENT for what CheckConfig refuses; UNAVAILABLE if an address can't be
  // listened on.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerConfig& config);
  // Drains without grace if that was not done.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // The devices that the configuration asks for.
  absl::Status OpenDevices();
  // These instead. `fabric` holds their links.
  void OpenDevices(std::vector<std::unique_ptr<Device>> devices, Fabric fabric,
                   std::string no_gpu_reason);

  // Where it listens, with the ports that were chosen: "127.0.0.1:50151", "unix:/run/x.sock".
  const std::vector<std::string>& addresses() const { return addresses_; }
  // The budget of real memory that all devices of the configuration share.
  HostMemory* host_memory() { return host_memory_.get(); }

  // Returns when all calls have ended: at the latest a moment after `grace`.
  void Drain(absl::Duration grace);
  // Whether the timer that keeps leases goes on.
  bool Healthy() const;

 private:
  explicit Server(const ServerConfig& config);
  absl::Status Listen();
  void SetServing(bool serving);
  void WaitForLastReferences();
  void TimerLoop();
  void Tick();

  // Constant after construction.
  const ServerConfig config_;
  std::unique_ptr<HostMemory> host_memory_;
  StallWatch stalls_;
  BackendSlot slot_;
  std::unique_ptr<Backend> backend_;
  std::vector<std::unique_ptr<grpc::Service>> services_;
  std::vector<std::string> addresses_;
  std::unique_ptr<grpc::Server> grpc_server_;
  bool drained_ = false;  // touched only by the thread that drains

  std::atomic<Backend*> ticking_ = nullptr;  // Publishes the backend to the timer.
  std::atomic<int64_t> last_tick_;           // Ticks of TimePoint; orders nothing.
  // Guarded by timer_mu_.
  Mutex timer_mu_;
  CondVar timer_wake_;
  bool stopping_ ABSL_GUARDED_BY(timer_mu_) = false;
  std::thread timer_;
};

}  // namespace devserver
