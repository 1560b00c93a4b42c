// The border between the wire's messages and the client's values. Not installed.
//
// What the server sends comes from outside: it is checked here, once, and a reply that makes no
// sense is INTERNAL. Thread safety: pure functions.
#pragma once

#include <grpcpp/support/status.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "devserver/types.h"
#include "devserver/v1/compute.pb.h"
#include "devserver/v1/device.pb.h"
#include "devserver/v1/session.pb.h"
#include "devserver/v1/tensor.pb.h"
#include "devserver/v1/types.pb.h"
#include "server/tensor/op_table.h"
#include "server/tensor/shape.h"

namespace devserver::client {

// ---- From the wire.
// The failure with its typed reason attached (DetailsOf); never OK.
absl::Status StatusFrom(const v1::OpError& error);
// How a call ended; an error carries what the server attached, and `context`
// ("server 10.0.0.1:50151") in front of errors that are the connection's and not the server's.
absl::Status StatusFrom(const grpc::Status& status, const std::string& context);
DeviceInfo DeviceInfoFrom(const v1::Device& device);
DeviceList DeviceListFrom(const v1::ListDevicesReply& reply);
SessionInfo SessionInfoFrom(const v1::Session& session);
Receipt ReceiptFrom(const v1::Receipt& receipt);
ServerLimits LimitsFrom(const v1::Limits& limits);
absl::StatusOr<TensorSpec> SpecFrom(const v1::Tensor& tensor);
absl::StatusOr<TensorInfo> TensorInfoFrom(const v1::Tensor& tensor);

// ---- To the wire.
v1::DType WireDType(DType dtype);
// Fills the fields of `create` that say what it makes, for a source op.
void EncodeSource(OpCode source, const OpAttributes& attributes, v1::Create* create);
// Sets only what is not a default.
void EncodeAttributes(const OpAttributes& attributes, v1::Op* op);

}  // namespace devserver::client
