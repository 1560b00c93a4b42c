// The server that devserverctl talks to. Calls carry no session token, so they run in the caller's
// default session: tensors stay between commands, and grpcurl from the same host sees the same
// ones. Thread safety: one thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/ctl/program.h"
#include "devserver/client.h"
#include "devserver/v1/compute.grpc.pb.h"
#include "devserver/v1/device.grpc.pb.h"
#include "devserver/v1/session.grpc.pb.h"
#include "devserver/v1/tensor.grpc.pb.h"

namespace devserver::ctl {

class Server {
 public:
  // Unreachable() unless something answers at program.server; a refused connection is known at
  // once.
  static absl::StatusOr<Server> Connect(const Program& program);

  // Returns once a server there serves, or DEADLINE_EXCEEDED after `patience`.
  static absl::Status WaitUntilServing(const Program& program, absl::Duration patience);

  // One unary call, such as Call(server.devices(), &v1::DeviceService::Stub::ListDevices, request).
  template <typename Stub, typename Request, typename Reply>
  absl::StatusOr<Reply> Call(Stub& stub,
                             grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                          Reply*),
                             const Request& request) const {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout_));
    Reply reply;
    if (const grpc::Status status = (stub.*method)(&context, request, &reply); !status.ok()) {
      return Refusal(status);
    }
    return reply;
  }

  v1::DeviceService::Stub& devices() const { return *devices_; }
  v1::SessionService::Stub& sessions() const { return *sessions_; }
  v1::TensorService::Stub& tensors() const { return *tensors_; }
  v1::ComputeService::Stub& compute() const { return *compute_; }

  // Whether the standard health service calls `service` ("": the whole server) serving.
  absl::StatusOr<bool> IsServing(const std::string& service) const;

  // How a call failed, for the caller: the server's words, or Unreachable() where there are none.
  absl::Status Refusal(const grpc::Status& status) const;

 private:
  Server(std::shared_ptr<grpc::Channel> channel, const Program& program);

  // Constant after construction.
  std::shared_ptr<grpc::Channel> channel_;
  std::string address_;
  absl::Duration timeout_;
  std::unique_ptr<v1::DeviceService::Stub> devices_;
  std::unique_ptr<v1::SessionService::Stub> sessions_;
  std::unique_ptr<v1::TensorService::Stub> tensors_;
  std::unique_ptr<v1::ComputeService::Stub> compute_;
};

// The client library on the same server: in the caller's default session for put and get, with a
// session of its own for bench.
absl::StatusOr<client::Client> ConnectClient(const Program& program, bool default_session);

}  // namespace devserver::ctl
