// What the entries of the op table point to: the rule for each op's result, and its operation
// count. Only op_table.cc includes this.
#pragma once

#include <span>

#include "absl/status/statusor.h"
#include "server/tensor/op_table.h"

namespace devserver::op_infer {

using Specs = std::span<const TensorSpec>;
using SpecOr = absl::StatusOr<TensorSpec>;

SpecOr Source(const OpDef& op, Specs inputs, const OpAttributes& attributes);
SpecOr Eye(const OpDef& op, Specs inputs, const OpAttributes& attributes);
SpecOr MatMul(const OpDef& op, Specs inputs, const OpAttributes& attributes);
SpecOr Dense(const OpDef& op, Specs inputs, const OpAttributes& attributes);
SpecOr Broadcast(const OpDef& op, Specs inputs, const OpAttributes& attributes);
SpecOr Equal(const OpDef& op, Specs inputs, const OpAttributes& attributes);
SpecOr Same(const OpDef& op, Specs inputs, const OpAttributes& attributes);
SpecOr Cast(const OpDef& op, Specs inputs, const OpAttributes& attributes);
SpecOr Softmax(const OpDef& op, Specs inputs, const OpAttributes& attributes);
SpecOr Reduce(const OpDef& op, Specs inputs, const OpAttributes& attributes);  // sum, mean, norm
SpecOr Max(const OpDef& op, Specs inputs, const OpAttributes& attributes);
SpecOr Argmax(const OpDef& op, Specs inputs, const OpAttributes& attributes);
SpecOr Transpose(const OpDef& op, Specs inputs, const OpAttributes& attributes);
SpecOr Reshape(const OpDef& op, Specs inputs, const OpAttributes& attributes);
SpecOr Slice(const OpDef& op, Specs inputs, const OpAttributes& attributes);
SpecOr Concat(const OpDef& op, Specs inputs, const OpAttributes& attributes);

double MatMulFlops(Specs inputs, const TensorSpec& output, const OpAttributes& attributes);
double DenseFlops(Specs inputs, const TensorSpec& output, const OpAttributes& attributes);
// kPerElement operations for each element of the output, or of the (first) input.
template <int kPerElement>
double OutputFlops(Specs /*inputs*/, const TensorSpec& output, const OpAttributes& /*attributes*/) {
  return kPerElement * static_cast<double>(output.shape.element_count());
}
template <int kPerElement>
double InputFlops(Specs inputs, const TensorSpec& /*output*/, const OpAttributes& /*attributes*/) {
  return kPerElement * static_cast<double>(inputs[0].shape.element_count());
}

}  // namespace devserver::op_infer
