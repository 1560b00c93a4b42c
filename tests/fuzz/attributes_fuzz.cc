// Any bytes as an Op. What is accepted keeps its attributes, and the shape that is inferred for its
// result is one that the server could make: no dimension negative, no size overflown.
#include <cstdint>
#include <vector>

#include "server/rpc/wire.h"
#include "tests/fuzz/require.h"

namespace devserver {
namespace {

// An op's inputs are picked from these by their ids.
std::vector<TensorSpec> MakeSpecs() {
  std::vector<TensorSpec> specs;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kI64, DType::kBool}) {
    for (const Shape& shape :
         {Shape(), Shape::Of({0}), Shape::Of({3}), Shape::Of({2, 3}), Shape::Of({3, 2}),
          Shape::Of({3, 0, 2}), Shape::Of({4, 1, 3, 3}), Shape::Of({int64_t{1} << 59}),
          Shape::Of({1, int64_t{1} << 40}), Shape::Of({int64_t{1} << 40, 1}),
          Shape::Of({1, 1, 1, 1, 1, 1, 1, 2})}) {
      specs.push_back({dtype, shape});
    }
  }
  return specs;
}

void RequireSane(const TensorSpec& spec) {
  Require(DTypeSize(spec.dtype) > 0);
  Require(Shape::Create(spec.shape.dims()).ok());
  Require(spec.shape.element_count() >= 0);
}

void RequireKept(const v1::Attributes& wire, const OpAttributes& attributes) {
  const auto same = [](const google::protobuf::RepeatedField<int64_t>& list, const IntList& kept) {
    return IntList(list.begin(), list.end()) == kept;
  };
  Require(same(wire.axes(), attributes.axes) && same(wire.shape(), attributes.shape));
  Require(same(wire.starts(), attributes.starts) && same(wire.stops(), attributes.stops));
  Require(wire.transpose_a() == attributes.transpose_a &&
          wire.transpose_b() == attributes.transpose_b && wire.keep_dims() == attributes.keep_dims);
  Require(static_cast<int>(wire.activation()) == static_cast<int>(attributes.activation));
  Require(static_cast<int>(wire.dtype()) == static_cast<int>(attributes.dtype));
}

void Check(const uint8_t* data, size_t size) {
  static const std::vector<TensorSpec>& specs = *new std::vector<TensorSpec>(MakeSpecs());
  v1::Op op;
  if (!op.ParseFromArray(data, static_cast<int>(size)) || op.inputs_size() > 16) {
    return;
  }
  const absl::StatusOr<std::unique_ptr<const OpAttributes>> attributes =
      AttributesFromWire(op.attributes());
  if (!attributes.ok()) {
    Require(attributes.status().code() == absl::StatusCode::kInvalidArgument);
    return;
  }
  RequireKept(op.attributes(), **attributes);
  std::vector<TensorSpec> inputs;
  for (const uint64_t id : op.inputs()) {
    inputs.push_back(specs[id % specs.size()]);
  }
  // The op of that name, or all of them.
  const OpDef* const named = FindOp(op.name());
  for (const OpDef& def : AllOps()) {
    if (named != nullptr && named != &def) {
      continue;
    }
    const absl::StatusOr<TensorSpec> result = InferSpec(def.code, inputs, **attributes);
    if (result.ok()) {
      RequireSane(*result);
      Require(def.flops(inputs, *result, **attributes) >= 0);
    } else {
      Require(result.status().code() == absl::StatusCode::kInvalidArgument);
    }
  }
}

}  // namespace
}  // namespace devserver

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  devserver::Check(data, size);
  return 0;
}
