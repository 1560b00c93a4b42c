// Between messages and the core's types. Messages come from outside: every From function checks all
// it reads, so that the core behind it needs no checks of form. Errors name the values and the
// cure. Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "devserver/v1/compute.pb.h"
#include "devserver/v1/session.pb.h"
#include "devserver/v1/tensor.pb.h"
#include "devserver/v1/types.pb.h"
#include "grpcpp/support/status.h"
#include "server/fabric/fabric.h"
#include "server/session/limits.h"
#include "server/session/session.h"
#include "server/session/tensor.h"
#include "server/tensor/op_table.h"

namespace devserver {

// Unspecified is F32.
absl::StatusOr<DType> DTypeFromWire(v1::DType dtype);
absl::StatusOr<TensorSpec> SpecFromWire(std::span<const int64_t> dims, v1::DType dtype);
absl::StatusOr<std::unique_ptr<const OpAttributes>> AttributesFromWire(
    const v1::Attributes& attributes);
absl::StatusOr<Activation> ActivationFromWire(v1::Activation activation);
// The beginning of a text from outside, for a message: at most 64 bytes, cut between characters, so
// that it stays valid UTF-8.
std::string Shown(const std::string& text);
absl::Status CheckLabel(const std::string& label, const Limits& limits);

// A Create is a source op with its attributes, or packed values.
struct CreateContent {
  TensorSpec spec;
  OpCode source = OpCode::kFull;
  std::unique_ptr<const OpAttributes> attributes;  // null: `values`
  std::vector<std::byte> values;
};
absl::StatusOr<CreateContent> ContentFromWire(const v1::Create& create, const Limits& limits);

// An Upload message, parsed from the wire without a copy of the chunk: `header` is set if the
// message held one, and `on_chunk` is called for each piece of a chunk in order. Whatever it
// returns that is not OK ends the parsing.
absl::Status ParseUploadMessage(
    google::protobuf::io::ZeroCopyInputStream* input, v1::UploadHeader* header, bool* has_header,
    absl::FunctionRef<absl::Status(std::span<const std::byte>)> on_chunk);

void TensorToWire(const Tensor& tensor, v1::Tensor* wire);
void QuoteToWire(const Quote& quote, v1::Receipt* receipt);
void ReceiptToWire(const Quote& quote, double measured_seconds, double simulated_seconds,
                   v1::Receipt* receipt);
void OpErrorToWire(const absl::Status& status, v1::OpError* error);
void SessionToWire(const Session& session, v1::Session* wire);
void LimitsToWire(const Limits& limits, v1::Limits* wire);
// The elements of a ready tensor whose device lets the host read them, or of `elements`.
void ValuesToWire(const TensorSpec& spec, std::span<const std::byte> elements, bool raw,
                  v1::Values* values);

// With the typed OpError among the status details.
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace devserver
