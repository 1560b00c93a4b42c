// The client of one devserverd.
//
//   ASSIGN_OR_RETURN(Client client, Client::connect("127.0.0.1:50151"));
//   const Device gpu = client.try_gpu();
//   const Tensor x = ones({2, 3}, gpu);
//   ASSIGN_OR_RETURN(const std::vector<float> values, (x + x).fetch<float>());
//
// A Client opens a session: a lease that a thread of its own keeps alive, which owns every tensor
// made through it. Commands go over one stream in the order they were given; they are numbered, so
// after a broken connection the client takes the session up again within the lease, resends what
// the server has not had, and nothing runs twice. If the session is gone (the server restarted, the
// lease ran out) every tensor of it fails with FAILED_PRECONDITION and the client stays failed:
// connect again. If the server can't be reached any more that is UNAVAILABLE with its address and
// the last command. The session is closed when the last Client, Device and Tensor of it is gone.
// Thread safety: any thread. Every wait ends: at `timeout` with DEADLINE_EXCEEDED that says what
// was waited for.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "devserver/ops.h"
#include "devserver/tensor.h"
#include "devserver/types.h"

namespace devserver::client {

struct ClientOptions {
  std::string name;  // of the session, for people; "": program, user and host
  absl::Duration lease = absl::ZeroDuration();  // 0: the server's default
  absl::Duration connect_timeout = absl::Seconds(10);
  absl::Duration timeout = absl::Seconds(60);  // of every wait that is not given another
  // After a broken connection: how long to try to get back before every wait fails with
  // UNAVAILABLE. 0: the lease. When nothing listens at the address any more (connection refused) a
  // fifth of it, at most 3 s, is enough.
  absl::Duration reconnect_timeout = absl::ZeroDuration();
  // For tools at a terminal. No session is opened: calls run in the caller's default session on the
  // server, one by one and finished when they return. The server picks the ids (1, 2, 3), and
  // tensors stay until they are deleted by remove().
  bool default_session = false;
};

class Client {
 public:
  // `address`: "host:port", "[::1]:port" or "unix:/path". UNAVAILABLE if nothing answers within
  // connect_timeout.
  static absl::StatusOr<Client> connect(const std::string& address, ClientOptions options = {});

  const std::string& address() const;
  const std::string& server_id()
      const;  // changes when the server restarts; "" in default_session mode
  const ServerLimits& limits() const;  // all 0 in default_session mode
  const ClientOptions& options() const;

  // Devices by name: "gpu:1", "GPU:1", "cuda:1", "gpu", "cpu". NOT_FOUND names those that there
  // are. These don't ask the server: its devices are known since connect().
  absl::StatusOr<Device> device(const std::string& name) const;
  Device cpu() const;
  absl::StatusOr<Device> gpu(int index) const;
  int num_gpus() const;
  // gpu:`index` if it is there, else cpu:0, whose note() says so.
  Device try_gpu(int index = 0) const;
  // All GPUs, or cpu:0 alone if there are none.
  std::vector<Device> try_all_gpus() const;

  // Waits until the server has finished every command given so far. Failed tensors keep their
  // failures: OK all the same.
  absl::Status sync(absl::Duration timeout = kDefaultTimeout) const;

  // The tensor of this session that has this id, such as one that grpcurl made. It is not deleted
  // with its last copy.
  absl::StatusOr<Tensor> get(uint64_t id) const;
  // Deletes by id. Unknown ids are NOT_FOUND, and then none is deleted. Returns the bytes given
  // back.
  absl::StatusOr<uint64_t> remove(std::span<const uint64_t> ids) const;
  absl::StatusOr<std::vector<TensorInfo>> list_tensors(bool all_sessions = false,
                                                       const std::string& device = "") const;

  // As they are now.
  absl::StatusOr<DeviceList> devices() const;
  // Calls `on_list` with the devices again and again until it returns false.
  absl::Status watch_devices(absl::Duration interval,
                             const std::function<bool(const DeviceList&)>& on_list) const;
  absl::StatusOr<SessionInfo> session() const;
  absl::StatusOr<std::vector<SessionInfo>> sessions() const;

 private:
  explicit Client(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}

  std::shared_ptr<Connection> connection_;
};

}  // namespace devserver::client
