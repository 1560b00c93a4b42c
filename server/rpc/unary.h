// How a unary call ends: at once, or when a tensor is done.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <utility>

#include "devserver/v1/compute.pb.h"
#include "server/rpc/backend.h"
#include "server/rpc/wire.h"

namespace devserver {

inline grpc::ServerUnaryReactor* FinishWith(grpc::CallbackServerContext* context,
                                            const absl::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

// Queues work by `launch(session, request)`, which returns StatusOr<TensorRef>, and ends the call
// when its tensor is done: with `fill(tensor)`, which returns a Status, or with the tensor's
// failure. A tensor that failed is taken out of the table again: the caller has the status and
// never sees the handle. The call may end with a tensor that it did not make, `source` (0: none):
// that one stays, and its failure is an input's.
template <typename Launch, typename Fill>
grpc::ServerUnaryReactor* FinishWhenDone(const BackendSlot& slot,
                                         grpc::CallbackServerContext* context, Launch launch,
                                         Fill fill, uint64_t source = 0) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  absl::StatusOr<SessionRef> session = slot.FindSession(*context);
  if (!session.ok()) {
    reactor->Finish(ToGrpc(session.status()));
    return reactor;
  }
  Session::Request request;
  request.measure_time = true;
  request.done = [reactor, owner = *session, fill = std::move(fill),
                  source](Tensor& tensor) mutable {
    if (tensor.status().ok()) {
      reactor->Finish(ToGrpc(fill(tensor)));
      return;
    }
    if (tensor.id() == source) {
      reactor->Finish(ToGrpc(tensor.InputFailed("ensure_on")));
      return;
    }
    if (tensor.command_number() == 0) {
      const uint64_t id = tensor.id();
      owner->Delete({&id, 1}).IgnoreError();  // Not there any more if the session was closed.
    }
    reactor->Finish(ToGrpc(tensor.status()));
  };
  const absl::Status launched = launch(**session, std::move(request));
  if (!launched.ok()) {
    reactor->Finish(ToGrpc(launched));
  }
  return reactor;
}

// The usual `fill`.
inline absl::Status FillTensorReply(const Tensor& tensor, v1::TensorReply* reply) {
  TensorToWire(tensor, reply->mutable_tensor());
  reply->set_measured_seconds(tensor.measured_seconds());
  reply->set_simulated_seconds(tensor.simulated_seconds());
  if (tensor.is_copy()) {
    ReceiptToWire(tensor.quote(), tensor.measured_seconds(), tensor.simulated_seconds(),
                  reply->mutable_receipt());
  }
  return absl::OkStatus();
}

}  // namespace devserver
