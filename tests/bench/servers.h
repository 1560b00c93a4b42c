// The processes that the benchmarks talk to: devserverd as it is shipped, and the controls' bare
// gRPC server (bare_server.h), started when they are first asked for.
// Thread safety: all on the main thread.
#pragma once

#include <grpcpp/client_context.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/transport.h"

namespace devserver::bench {

// "127.0.0.1:PORT" of devserverd, which has cpu:0 and two simulated GPUs.
absl::StatusOr<std::string> SubjectAddress();
// "127.0.0.1:PORT" of the bare server.
absl::StatusOr<std::string> ControlAddress();

// CPU time of this process and of both servers.
double OurCpuSeconds();

// Ends both servers and waits for them.
void StopServers();

// One client's connection, with the client library's channel arguments, and its session.
class Caller {
 public:
  // A session on devserverd, closed at the end.
  static absl::StatusOr<std::unique_ptr<Caller>> OpenSubject();
  // The bare server knows no sessions.
  static absl::StatusOr<std::unique_ptr<Caller>> OpenControl();
  ~Caller();
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  const client::Transport& transport() const { return *transport_; }
  // What every call needs.
  void Prepare(grpc::ClientContext* context) const;

 private:
  Caller(std::shared_ptr<const client::Transport> transport, std::string token)
      : transport_(std::move(transport)), token_(std::move(token)) {}

  const std::shared_ptr<const client::Transport> transport_;
  const std::string token_;
};

// `status` as ours; OK stays OK.
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace devserver::bench
