#include "server/tensor/op_infer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "server/base/error_details.h"
#include "server/base/status_macros.h"

namespace devserver::op_infer {
namespace {

absl::Status ShapeError(const std::string& message) {
  return MakeError(absl::StatusCode::kInvalidArgument, ErrorReason::kShapeMismatch, message);
}

std::string SpecsToString(Specs inputs) {
  std::string text;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (i == 8) {
      return text + absl::StrFormat(", ... (%d inputs)", inputs.size());
    }
    text += (i == 0 ? "" : ", ") + inputs[i].ToString();
  }
  return text;
}

// Shape::Create for a result, with the op and its inputs in the message.
absl::StatusOr<Shape> ResultShape(const OpDef& op, Specs inputs, std::span<const int64_t> dims) {
  absl::StatusOr<Shape> shape = Shape::Create(dims);
  if (!shape.ok()) {
    const std::string of = inputs.empty() ? "" : " of " + SpecsToString(inputs);
    return ShapeError(
        absl::StrFormat("%s%s: %s", op.name, of, std::string(shape.status().message())));
  }
  return shape;
}

absl::StatusOr<IntList> OpAxes(const OpDef& op, const TensorSpec& input,
                               std::span<const int64_t> axes) {
  absl::StatusOr<IntList> normalized = NormalizeAxes(axes, input.shape.rank());
  if (!normalized.ok()) {
    return ShapeError(absl::StrFormat("%s of %s: %s", op.name, input.ToString(),
                                      std::string(normalized.status().message())));
  }
  return normalized;
}

// The one axis of softmax and concat; `fallback` when none is given.
absl::StatusOr<int> OneAxis(const OpDef& op, const TensorSpec& input,
                            const OpAttributes& attributes, int64_t fallback) {
  if (attributes.axes.size() > 1) {
    return ShapeError(absl::StrFormat("%s of %s: axes %s name %d axes; give one", op.name,
                                      input.ToString(), DimsToString(attributes.axes),
                                      attributes.axes.size()));
  }
  const int64_t axis = attributes.axes.empty() ? fallback : attributes.axes[0];
  ASSIGN_OR_RETURN(const IntList normalized, OpAxes(op, input, {&axis, 1}));
  return static_cast<int>(normalized[0]);
}

bool IsReduced(const IntList& axes, int axis) {
  return std::ranges::find(axes, axis) != axes.end();
}

absl::StatusOr<Shape> ReducedShape(const OpDef& op, const TensorSpec& input,
                                   const OpAttributes& attributes, bool needs_an_element) {
  ASSIGN_OR_RETURN(const IntList axes, OpAxes(op, input, attributes.axes));
  IntList dims;
  for (int axis = 0; axis < input.shape.rank(); ++axis) {
    if (!IsReduced(axes, axis)) {
      dims.push_back(input.shape.dim(axis));
      continue;
    }
    if (needs_an_element && input.shape.dim(axis) == 0) {
      return ShapeError(
          absl::StrFormat("%s of %s: axis %d is empty and an empty %s has no value; reduce other "
                          "axes, or check the "
                          "size first",
                          op.name, input.ToString(), axis, op.name));
    }
    if (attributes.keep_dims) {
      dims.push_back(1);
    }
  }
  return ResultShape(op, {&input, 1}, dims);
}

}  // namespace

SpecOr Source(const OpDef& op, Specs inputs, const OpAttributes& attributes) {
  const DType dtype = attributes.dtype == DType::kUnspecified ? DType::kF32 : attributes.dtype;
  if (!op.dtypes.Contains(dtype)) {
    return MakeError(absl::StatusCode::kInvalidArgument, ErrorReason::kDtypeUnsupported,
                     absl::StrFormat("%s can't make %s%s; it makes %s", op.name, DTypeName(dtype),
                                     DimsToString(attributes.shape), op.dtypes.ToString()));
  }
  ASSIGN_OR_RETURN(const Shape shape, ResultShape(op, inputs, attributes.shape));
  return TensorSpec{dtype, shape};
}

SpecOr Eye(const OpDef& op, Specs inputs, const OpAttributes& attributes) {
  ASSIGN_OR_RETURN(const TensorSpec spec, Source(op, inputs, attributes));
  if (spec.shape.rank() < 2) {
    return ShapeError(
        absl::StrFormat("eye: shape %s has %d dimensions; give 2 or more, as in [3,3]",
                        spec.shape.ToString(), spec.shape.rank()));
  }
  return spec;
}

SpecOr MatMul(const OpDef& op, Specs inputs, const OpAttributes& attributes) {
  const Shape& a = inputs[0].shape;
  const Shape& b = inputs[1].shape;
  const auto failed = [&](const std::string& cause) {
    return ShapeError(absl::StrFormat("matmul: a is %s%s, b is %s%s: %s", inputs[0].ToString(),
                                      attributes.transpose_a ? " transposed" : "",
                                      inputs[1].ToString(),
                                      attributes.transpose_b ? " transposed" : "", cause));
  };
  if (a.rank() < 2 || b.rank() < 2) {
    return failed("both need 2 dimensions or more; reshape a vector to [1,n] or [n,1]");
  }
  int64_t m = a.dim(a.rank() - 2);
  int64_t a_inner = a.dim(a.rank() - 1);
  int64_t b_inner = b.dim(b.rank() - 2);
  int64_t n = b.dim(b.rank() - 1);
  if (attributes.transpose_a) {
    std::swap(m, a_inner);
  }
  if (attributes.transpose_b) {
    std::swap(b_inner, n);
  }
  if (a_inner != b_inner) {
    return failed(absl::StrFormat(
        "inner sizes %d and %d differ; a[..,m,k] needs b[..,k,n], see transpose_a and transpose_b",
        a_inner, b_inner));
  }
  IntList dims;
  if (a.rank() > 2 || b.rank() > 2) {
    // Prefixes of valid shapes are valid.
    const Shape a_batch = *Shape::Create(a.dims().first(static_cast<size_t>(a.rank() - 2)));
    const Shape b_batch = *Shape::Create(b.dims().first(static_cast<size_t>(b.rank() - 2)));
    const absl::StatusOr<Shape> batch = BroadcastShapes(a_batch, b_batch);
    if (!batch.ok()) {
      return failed(absl::StrFormat("batch dimensions: %s", std::string(batch.status().message())));
    }
    dims.assign(batch->dims().begin(), batch->dims().end());
  }
  dims.push_back(m);
  dims.push_back(n);
  ASSIGN_OR_RETURN(const Shape shape, ResultShape(op, inputs, dims));
  return TensorSpec{inputs[0].dtype, shape};
}

SpecOr Dense(const OpDef& op, Specs inputs, const OpAttributes& /*attributes*/) {
  const Shape& x = inputs[0].shape;
  const Shape& w = inputs[1].shape;
  const auto failed = [&](const std::string& cause) {
    const std::string bias = inputs.size() > 2 ? ", b is " + inputs[2].ToString() : "";
    return ShapeError(absl::StrFormat("dense: x is %s, w is %s%s: %s", inputs[0].ToString(),
                                      inputs[1].ToString(), bias, cause));
  };
  if (x.rank() < 1) {
    return failed("x needs 1 dimension or more");
  }
  if (w.rank() != 2) {
    return failed("w needs 2 dimensions, [k,n]");
  }
  const int64_t k = x.dim(x.rank() - 1);
  const int64_t n = w.dim(1);
  if (w.dim(0) != k) {
    return failed(
        absl::StrFormat("inner sizes %d and %d differ; x[..,k] needs w[k,n]", k, w.dim(0)));
  }
  if (inputs.size() > 2 && !(inputs[2].shape.rank() == 1 && inputs[2].shape.dim(0) == n)) {
    return failed(absl::StrFormat("b needs the shape [%d]", n));
  }
  IntList dims(x.dims().begin(), x.dims().end());
  dims.back() = n;
  ASSIGN_OR_RETURN(const Shape shape, ResultShape(op, inputs, dims));
  return TensorSpec{inputs[0].dtype, shape};
}

SpecOr Broadcast(const OpDef& op, Specs inputs, const OpAttributes& /*attributes*/) {
  if (inputs[0].shape == inputs[1].shape) {
    return inputs[0];
  }
  absl::StatusOr<Shape> shape = BroadcastShapes(inputs[0].shape, inputs[1].shape);
  if (!shape.ok()) {
    return ShapeError(absl::StrFormat("%s of %s and %s: %s", op.name, inputs[0].ToString(),
                                      inputs[1].ToString(), std::string(shape.status().message())));
  }
  return TensorSpec{inputs[0].dtype, *shape};
}

SpecOr Equal(const OpDef& op, Specs inputs, const OpAttributes& attributes) {
  ASSIGN_OR_RETURN(TensorSpec spec, Broadcast(op, inputs, attributes));
  spec.dtype = DType::kBool;
  return spec;
}

SpecOr Same(const OpDef& /*op*/, Specs inputs, const OpAttributes& /*attributes*/) {
  return inputs[0];
}

SpecOr Cast(const OpDef& /*op*/, Specs inputs, const OpAttributes& attributes) {
  if (attributes.dtype == DType::kUnspecified) {
    return MakeError(absl::StatusCode::kInvalidArgument, ErrorReason::kDtypeUnsupported,
                     absl::StrFormat("cast of %s: the attribute dtype is missing; set the dtype to "
                                     "cast to",
                                     inputs[0].ToString()));
  }
  return TensorSpec{attributes.dtype, inputs[0].shape};
}

SpecOr Softmax(const OpDef& op, Specs inputs, const OpAttributes& attributes) {
  ASSIGN_OR_RETURN([[maybe_unused]] const int axis, OneAxis(op, inputs[0], attributes, -1));
  return inputs[0];
}

SpecOr Reduce(const OpDef& op, Specs inputs, const OpAttributes& attributes) {
  ASSIGN_OR_RETURN(const Shape shape, ReducedShape(op, inputs[0], attributes, false));
  const DType dtype = IsFloat(inputs[0].dtype) ? inputs[0].dtype : DType::kI64;
  return TensorSpec{dtype, shape};
}

SpecOr Max(const OpDef& op, Specs inputs, const OpAttributes& attributes) {
  ASSIGN_OR_RETURN(const Shape shape, ReducedShape(op, inputs[0], attributes, true));
  return TensorSpec{inputs[0].dtype, shape};
}

SpecOr Argmax(const OpDef& op, Specs inputs, const OpAttributes& attributes) {
  if (attributes.axes.size() > 1) {
    return ShapeError(absl::StrFormat(
        "argmax of %s: axes %s name %d axes; give one, or none for the "
        "index in the flat tensor",
        inputs[0].ToString(), DimsToString(attributes.axes), attributes.axes.size()));
  }
  ASSIGN_OR_RETURN(const Shape shape, ReducedShape(op, inputs[0], attributes, true));
  return TensorSpec{DType::kI64, shape};
}

SpecOr Transpose(const OpDef& op, Specs inputs, const OpAttributes& attributes) {
  const Shape& shape = inputs[0].shape;
  const int rank = shape.rank();
  if (!attributes.axes.empty()) {
    if (attributes.axes.size() != static_cast<size_t>(rank)) {
      return ShapeError(absl::StrFormat(
          "transpose of %s: axes %s have %d entries, the tensor %d dimensions; name each axis "
          "once, "
          "or none to reverse them",
          inputs[0].ToString(), DimsToString(attributes.axes), attributes.axes.size(), rank));
    }
    ASSIGN_OR_RETURN([[maybe_unused]] const IntList unique, OpAxes(op, inputs[0], attributes.axes));
  }
  IntList dims(static_cast<size_t>(rank), 0);
  for (int i = 0; i < rank; ++i) {
    const int64_t axis =
        attributes.axes.empty() ? rank - 1 - i : attributes.axes[static_cast<size_t>(i)];
    dims[static_cast<size_t>(i)] = shape.dim(static_cast<int>(axis < 0 ? axis + rank : axis));
  }
  ASSIGN_OR_RETURN(const Shape result, ResultShape(op, inputs, dims));
  return TensorSpec{inputs[0].dtype, result};
}

SpecOr Reshape(const OpDef& /*op*/, Specs inputs, const OpAttributes& attributes) {
  const int64_t count = inputs[0].shape.element_count();
  const auto failed = [&](const std::string& cause) {
    return ShapeError(absl::StrFormat("reshape of %s to %s: %s", inputs[0].ToString(),
                                      DimsToString(attributes.shape), cause));
  };
  IntList dims = attributes.shape;
  const auto inferred = std::ranges::find(dims, -1);
  if (inferred != dims.end()) {
    if (std::find(inferred + 1, dims.end(), -1) != dims.end()) {
      return failed("only one size may be -1");
    }
    *inferred = 1;
  }
  absl::StatusOr<Shape> shape = Shape::Create(dims);
  if (!shape.ok()) {
    return failed(std::string(shape.status().message()));
  }
  if (inferred != dims.end()) {
    const int64_t known = shape->element_count();
    if (known == 0 || count % known != 0) {
      return failed(absl::StrFormat(
          "%d elements can't be split evenly into %d; the -1 has no value", count, known));
    }
    *inferred = count / known;
    shape = Shape::Create(dims);
    if (!shape.ok()) {
      return failed(std::string(shape.status().message()));
    }
  }
  if (shape->element_count() != count) {
    return failed(absl::StrFormat("it has %d elements and would need %d; one size may be -1", count,
                                  shape->element_count()));
  }
  return TensorSpec{inputs[0].dtype, *shape};
}

SpecOr Slice(const OpDef& op, Specs inputs, const OpAttributes& attributes) {
  const Shape& shape = inputs[0].shape;
  const size_t rank = static_cast<size_t>(shape.rank());
  if (attributes.starts.size() != rank || attributes.stops.size() != rank) {
    return ShapeError(absl::StrFormat(
        "slice of %s: %d starts and %d stops for %d axes; give one of each per axis (0 and the "
        "size "
        "take the whole axis)",
        inputs[0].ToString(), attributes.starts.size(), attributes.stops.size(), rank));
  }
  IntList dims;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    dims.push_back(ResolveSlice(shape, attributes, axis).size);
  }
  ASSIGN_OR_RETURN(const Shape result, ResultShape(op, inputs, dims));
  return TensorSpec{inputs[0].dtype, result};
}

SpecOr Concat(const OpDef& op, Specs inputs, const OpAttributes& attributes) {
  const Shape& first = inputs[0].shape;
  if (first.rank() == 0) {
    return ShapeError(absl::StrFormat(
        "concat of %s: scalars have no axis to join; reshape them to [1]", SpecsToString(inputs)));
  }
  ASSIGN_OR_RETURN(const int axis, OneAxis(op, inputs[0], attributes, 0));
  IntList dims(first.dims().begin(), first.dims().end());
  int64_t& joined = dims[static_cast<size_t>(axis)];
  for (size_t i = 1; i < inputs.size(); ++i) {
    const Shape& shape = inputs[i].shape;
    bool fits = shape.rank() == first.rank();
    for (int other = 0; fits && other < first.rank(); ++other) {
      fits = other == axis || shape.dim(other) == first.dim(other);
    }
    if (!fits) {
      return ShapeError(absl::StrFormat(
          "concat along axis %d: input 0 is %s, input %d is %s; all other axes must agree", axis,
          inputs[0].ToString(), i, inputs[i].ToString()));
    }
    // Each size is below 2^60, so one addition can't overflow; 65536 of them could.
    joined += shape.dim(axis);
    if (joined > std::numeric_limits<int64_t>::max() / 8) {
      return ShapeError(absl::StrFormat("concat along axis %d of %s: the joined axis is too large",
                                        axis, SpecsToString(inputs)));
    }
  }
  ASSIGN_OR_RETURN(const Shape result, ResultShape(op, inputs, dims));
  return TensorSpec{inputs[0].dtype, result};
}

double MatMulFlops(Specs inputs, const TensorSpec& output, const OpAttributes& attributes) {
  const Shape& a = inputs[0].shape;
  const int64_t k = a.dim(attributes.transpose_a ? a.rank() - 2 : a.rank() - 1);
  return 2.0 * static_cast<double>(k) * static_cast<double>(output.shape.element_count());
}

double DenseFlops(Specs inputs, const TensorSpec& output, const OpAttributes& attributes) {
  constexpr double kActivationFlops[] = {0, 1, 18, 10, 12};
  const double per_element = 2.0 * static_cast<double>(inputs[1].shape.dim(0)) +
                             (inputs.size() > 2 ? 1 : 0) +
                             kActivationFlops[static_cast<size_t>(attributes.activation)];
  return per_element * static_cast<double>(output.shape.element_count());
}

}  // namespace devserver::op_infer
