// The one command vocabulary: what a message of the wire does to a session. The unary calls, Run
// and Execute all come through here, so that a command means the same on each road. Thread safety:
// any thread. For `request` and errors see session.h.
#pragma once

#include "devserver/v1/compute.pb.h"
#include "server/session/session.h"

namespace devserver {

absl::StatusOr<TensorRef> RunCreate(Session& session, const v1::Create& create,
                                    Session::Request request);
absl::StatusOr<TensorRef> RunOp(Session& session, const v1::Op& op, Session::Request request);
absl::StatusOr<TensorRef> RunCopy(Session& session, const v1::Copy& copy, Session::Request request);

// The tensor of a Fetch, if it is small enough for one reply; RESOURCE_EXHAUSTED (kLimit) says to
// use Download.
absl::StatusOr<TensorRef> FindForFetch(Session& session, const v1::Fetch& fetch);
// Fills `fetched` from a ready tensor; a simulated device's clock is charged with the way to the
// host.
absl::Status FillFetched(const DeviceSet& devices, const Tensor& tensor, bool raw,
                         v1::FetchedTensor* fetched);

}  // namespace devserver
