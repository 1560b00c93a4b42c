#include "server/tensor/op_table.h"

#include <algorithm>
#include <cassert>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "server/base/error_details.h"
#include "server/tensor/op_infer.h"

namespace devserver {
namespace {

using op_infer::InputFlops;
using op_infer::OutputFlops;

constexpr DTypeSet kFloats = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16};
constexpr DTypeSet kNumbers = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16,
                               DType::kI32, DType::kI64, DType::kU8};
constexpr DTypeSet kSigned = {DType::kF32,  DType::kF64, DType::kF16,
                              DType::kBF16, DType::kI32, DType::kI64};
constexpr DTypeSet kAll = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16,
                           DType::kI32, DType::kI64, DType::kU8,  DType::kBool};

// In the bounds, u is the unit roundoff of the arithmetic (2^-24 for f32, f16 and bf16, 2^-53 for
// f64) and r that of the dtype (2^-24, 2^-53, 2^-11, 2^-8); every result is rounded once to its
// dtype. Devices may take subnormal numbers of the arithmetic for zero: the smallest normal number
// is always allowed on top.
constexpr std::string_view kExact = "exact";
constexpr std::string_view kRounded = "floats: correctly rounded, r·|out|; integers wrap, exactly";
constexpr std::string_view kSeries = "8·u·(1 + |x|)·|out| + r·|out|";
constexpr std::string_view kProduct =
    "2·(k + 1)·u·Σ|a||b| (Higham, Accuracy and Stability, 2nd ed., sec. 3.5) + r·|out|";
constexpr std::string_view kSumBound =
    "2·n·2^-53·Σ|x| + r·|out|: floats accumulate in double (none where Σ|x| overflows one); "
    "integers wrap, exactly";

constexpr OpDef kOps[] = {
    {OpCode::kFull, "full", 0, 0, kAll, "shape, dtype, value",
     "a tensor of `shape` and `dtype` (none: f32); `value` is converted as cast does",
     "one rounding", op_infer::Source, OutputFlops<0>},
    {OpCode::kArange, "arange", 0, 0, kNumbers, "shape, dtype, start, step",
     "start + i·step over the flat index, in double, then as cast", "one rounding",
     op_infer::Source, OutputFlops<2>},
    {OpCode::kEye, "eye", 0, 0, kAll, "shape, dtype",
     "rank 2 or more: 1 where the last two indices are equal, else 0", kExact, op_infer::Eye,
     OutputFlops<0>},
    {OpCode::kUniform, "uniform", 0, 0, kFloats, "shape, dtype, seed, low, high",
     "Philox4x32-10: low + (high - low)·u, u in [0, 1); the same bits on every device", kExact,
     op_infer::Source, OutputFlops<2>},
    {OpCode::kNormal, "normal", 0, 0, kFloats, "shape, dtype, seed, mean, stddev",
     "Philox4x32-10 through the inverse distribution function: mean + stddev·z; the same bits on "
     "every device",
     kExact, op_infer::Source, OutputFlops<40>},
    {OpCode::kMatMul, "matmul", 2, 2, kFloats, "transpose_a, transpose_b",
     "a[..,m,k], b[..,k,n] -> [..,m,n] of the same dtype; batch dimensions broadcast", kProduct,
     op_infer::MatMul, op_infer::MatMulFlops},
    {OpCode::kDense, "dense", 2, 3, kFloats, "activation",
     "x[..,k], w[k,n], b[n] (may be left out) -> activation(x·w + b)[..,n] of the same dtype",
     "for y = x·w + b: e = 2·(k + 2)·u·(Σ|x||w| + |b|), carried through the activation: 1.2·e + "
     "16·u·(1 + |y|) + r·|out|",
     op_infer::Dense, op_infer::DenseFlops},
    {OpCode::kAdd, "add", 2, 2, kNumbers, "", "a + b, broadcast, of the same dtype", kRounded,
     op_infer::Broadcast, OutputFlops<1>},
    {OpCode::kSub, "sub", 2, 2, kNumbers, "", "a - b, broadcast, of the same dtype", kRounded,
     op_infer::Broadcast, OutputFlops<1>},
    {OpCode::kMul, "mul", 2, 2, kNumbers, "", "a · b, broadcast, of the same dtype", kRounded,
     op_infer::Broadcast, OutputFlops<1>},
    {OpCode::kDiv, "div", 2, 2, kFloats, "", "a / b, broadcast, of the same dtype", kRounded,
     op_infer::Broadcast, OutputFlops<1>},
    {OpCode::kMaximum, "maximum", 2, 2, kNumbers, "",
     "the larger of a and b, broadcast, of the same dtype; NaN if either is", kExact,
     op_infer::Broadcast, OutputFlops<1>},
    {OpCode::kEqual, "equal", 2, 2, kAll, "",
     "a == b, broadcast, bool; NaN equals nothing, -0 equals 0", kExact, op_infer::Equal,
     OutputFlops<1>},
    {OpCode::kNeg, "neg", 1, 1, kSigned, "", "-x; integers wrap", kExact, op_infer::Same,
     OutputFlops<1>},
    {OpCode::kExp, "exp", 1, 1, kFloats, "", "e^x", kSeries, op_infer::Same, OutputFlops<10>},
    {OpCode::kLog, "log", 1, 1, kFloats, "", "ln x; NaN below 0, -inf at 0", "8·u·|out| + r·|out|",
     op_infer::Same, OutputFlops<10>},
    {OpCode::kSqrt, "sqrt", 1, 1, kFloats, "", "√x; NaN below 0", kRounded, op_infer::Same,
     OutputFlops<10>},
    {OpCode::kRelu, "relu", 1, 1, kNumbers, "", "max(x, 0); NaN stays", kExact, op_infer::Same,
     OutputFlops<1>},
    {OpCode::kGelu, "gelu", 1, 1, kFloats, "",
     "the tanh form: x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))",
     "16·u·(1 + |x| + |x|³)·|out| + r·|out|", op_infer::Same, OutputFlops<18>},
    {OpCode::kTanh, "tanh", 1, 1, kFloats, "", "tanh x", "16·u·|out| + r·|out|", op_infer::Same,
     OutputFlops<10>},
    {OpCode::kSigmoid, "sigmoid", 1, 1, kFloats, "", "1 / (1 + e^-x)", kSeries, op_infer::Same,
     OutputFlops<12>},
    {OpCode::kCast, "cast", 1, 1, kAll, "dtype",
     "the same shape in `dtype`. To floats: nearest even, too large becomes infinity. Float to "
     "integer: towards zero, out of range saturates, NaN becomes 0. Integer to integer wraps. To "
     "bool: not 0 (NaN is true)",
     "one rounding", op_infer::Cast, OutputFlops<0>},
    {OpCode::kSoftmax, "softmax", 1, 1, kFloats, "axes",
     "e^(x - max) / Σ e^(x - max) along one axis (none: the last)",
     "(16 + 2·|x - max|)·u·|out| + r·|out|", op_infer::Softmax, OutputFlops<14>},
    {OpCode::kSum, "sum", 1, 1, kAll, "axes, keep_dims",
     "over `axes` (none: all); floats keep their dtype, integers and bool give i64", kSumBound,
     op_infer::Reduce, InputFlops<1>},
    {OpCode::kMean, "mean", 1, 1, kFloats, "axes, keep_dims",
     "over `axes` (none: all); NaN where there is nothing to average",
     "2·n·2^-53·Σ|x|/n + (r + 2^-53)·|out|: accumulates in double", op_infer::Reduce,
     InputFlops<1>},
    {OpCode::kMax, "max", 1, 1, kNumbers, "axes, keep_dims",
     "over `axes` (none: all), which must not be empty; NaN if one is NaN", kExact, op_infer::Max,
     InputFlops<1>},
    {OpCode::kArgmax, "argmax", 1, 1, kNumbers, "axes, keep_dims",
     "i64: index of the first largest along one axis (none: in the flat tensor), which must not be "
     "empty; NaN counts as the largest",
     kExact, op_infer::Argmax, InputFlops<1>},
    {OpCode::kNorm, "norm", 1, 1, kFloats, "axes, keep_dims",
     "Frobenius: √Σx² over `axes` (none: all)",
     "(n + 4)·2^-53·|out| + r·|out|: accumulates in double", op_infer::Reduce, InputFlops<2>},
    {OpCode::kTranspose, "transpose", 1, 1, kAll, "axes",
     "axis i of the result is axis axes[i] of x (none: reversed)", kExact, op_infer::Transpose,
     OutputFlops<0>},
    {OpCode::kReshape, "reshape", 1, 1, kAll, "shape",
     "the same elements in row-major order; one size may be -1", kExact, op_infer::Reshape,
     OutputFlops<0>},
    {OpCode::kSlice, "slice", 1, 1, kAll, "starts, stops",
     "x[starts[i]:stops[i]] on every axis i; negative counts from the end, clipped as NumPy does",
     kExact, op_infer::Slice, OutputFlops<0>},
    {OpCode::kConcat, "concat", 1, kConcatInputsMax, kAll, "axes",
     "joined along one axis (none: the first); all other sizes equal", kExact, op_infer::Concat,
     OutputFlops<0>},
};
static_assert(std::size(kOps) == kOpCount);

constexpr bool InOrder() {
  for (int i = 0; i < kOpCount; ++i) {
    if (static_cast<int>(kOps[i].code) != i) {
      return false;
    }
  }
  return true;
}
static_assert(InOrder(), "GetOp indexes the table by OpCode");

std::string InputsToString(std::span<const TensorSpec> inputs) {
  std::string text;
  for (size_t i = 0; i < inputs.size() && i < 8; ++i) {
    text += (i == 0 ? "" : ", ") + inputs[i].ToString();
  }
  return inputs.size() > 8 ? text + ", ..." : text;
}

absl::Status WrongInputCount(const OpDef& op, std::span<const TensorSpec> inputs) {
  const std::string wanted =
      op.inputs_min == op.inputs_max
          ? absl::StrFormat("%d input%s", op.inputs_min, op.inputs_min == 1 ? "" : "s")
          : absl::StrFormat("%d to %d inputs", op.inputs_min, op.inputs_max);
  return MakeError(absl::StatusCode::kInvalidArgument, ErrorReason::kShapeMismatch,
                   absl::StrFormat("%s takes %s and was given %d (%s)", op.name, wanted,
                                   inputs.size(), InputsToString(inputs)));
}

absl::Status WrongDType(const OpDef& op, std::span<const TensorSpec> inputs, size_t which) {
  const DType dtype = inputs[which].dtype;
  const std::string cure =
      op.dtypes.Contains(dtype)
          ? absl::StrFormat("all inputs must have one dtype: cast one of them to %s",
                            DTypeName(inputs[0].dtype))
          : absl::StrFormat("it takes %s: cast the input first", op.dtypes.ToString());
  return MakeError(absl::StatusCode::kInvalidArgument, ErrorReason::kDtypeUnsupported,
                   absl::StrFormat("%s of %s: input %d is %s; %s", op.name, InputsToString(inputs),
                                   which, DTypeName(dtype), cure));
}

}  // namespace

std::span<const OpDef> AllOps() { return kOps; }

const OpDef& GetOp(OpCode code) {
  assert(static_cast<int>(code) < kOpCount);
  return kOps[static_cast<size_t>(code)];
}

const OpDef* FindOp(std::string_view name) {
  using NameTable = absl::flat_hash_map<absl::string_view, const OpDef*>;
  static const NameTable* const names = [] {
    auto* const table = new NameTable;  // Never destroyed: threads may still look up at exit.
    for (const OpDef& op : kOps) {
      table->emplace(absl::string_view(op.name.data(), op.name.size()), &op);
    }
    return table;
  }();
  const auto found = names->find(absl::string_view(name.data(), name.size()));
  return found == names->end() ? nullptr : found->second;
}

absl::StatusOr<TensorSpec> InferSpec(OpCode code, std::span<const TensorSpec> inputs,
                                     const OpAttributes& attributes) {
  const OpDef& op = GetOp(code);
  if (inputs.size() < static_cast<size_t>(op.inputs_min) ||
      inputs.size() > static_cast<size_t>(op.inputs_max)) {
    return WrongInputCount(op, inputs);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!op.dtypes.Contains(inputs[i].dtype) || inputs[i].dtype != inputs[0].dtype) {
      return WrongDType(op, inputs, i);
    }
  }
  return op.infer(op, inputs, attributes);
}

double OpBytes(std::span<const TensorSpec> inputs, const TensorSpec& output) {
  double bytes = static_cast<double>(output.size_bytes());
  for (const TensorSpec& input : inputs) {
    bytes += static_cast<double>(input.size_bytes());
  }
  return bytes;
}

absl::StatusOr<Shape> BroadcastShapes(const Shape& a, const Shape& b) {
  const int rank = std::max(a.rank(), b.rank());
  IntList dims(static_cast<size_t>(rank), 1);
  for (int i = 1; i <= rank; ++i) {  // from the last axis
    const int64_t a_size = i <= a.rank() ? a.dim(a.rank() - i) : 1;
    const int64_t b_size = i <= b.rank() ? b.dim(b.rank() - i) : 1;
    if (a_size != b_size && a_size != 1 && b_size != 1) {
      return MakeError(
          absl::StatusCode::kInvalidArgument, ErrorReason::kShapeMismatch,
          absl::StrFormat(
              "shapes %s and %s do not broadcast: at axis %d from the end the sizes are "
              "%d and %d, which must be equal or one of them 1",
              a.ToString(), b.ToString(), i, a_size, b_size));
    }
    dims[static_cast<size_t>(rank - i)] = a_size == 1 ? b_size : a_size;
  }
  absl::StatusOr<Shape> shape = Shape::Create(dims);
  if (!shape.ok()) {
    return MakeError(absl::StatusCode::kInvalidArgument, ErrorReason::kShapeMismatch,
                     absl::StrFormat("shapes %s and %s broadcast to too large a %s", a.ToString(),
                                     b.ToString(), std::string(shape.status().message())));
  }
  return shape;
}

absl::StatusOr<IntList> NormalizeAxes(std::span<const int64_t> axes, int rank) {
  IntList result;
  if (axes.empty()) {
    for (int axis = 0; axis < rank; ++axis) {
      result.push_back(axis);
    }
    return result;
  }
  if (axes.size() > static_cast<size_t>(rank)) {
    return MakeError(
        absl::StatusCode::kInvalidArgument, ErrorReason::kShapeMismatch,
        absl::StrFormat("axes %s are %d, the tensor has %d dimensions; name each at most "
                        "once",
                        DimsToString(axes), axes.size(), rank));
  }
  for (const int64_t axis : axes) {
    if (axis < -rank || axis >= rank) {
      return MakeError(
          absl::StatusCode::kInvalidArgument, ErrorReason::kShapeMismatch,
          absl::StrFormat("axis %d is out of range; a tensor of %d dimensions has axes "
                          "%d to %d",
                          axis, rank, -rank, rank - 1));
    }
    result.push_back(axis < 0 ? axis + rank : axis);
  }
  std::ranges::sort(result);
  if (std::ranges::adjacent_find(result) != result.end()) {
    return MakeError(absl::StatusCode::kInvalidArgument, ErrorReason::kShapeMismatch,
                     absl::StrFormat("axes %s name an axis twice", DimsToString(axes)));
  }
  return result;
}

SliceRange ResolveSlice(const Shape& input, const OpAttributes& attributes, int axis) {
  const int64_t size = input.dim(axis);
  const auto clip = [size](int64_t index) {
    return std::clamp<int64_t>(index < 0 ? index + size : index, 0, size);
  };
  const int64_t start = clip(attributes.starts[static_cast<size_t>(axis)]);
  const int64_t stop = clip(attributes.stops[static_cast<size_t>(axis)]);
  return {start, std::max<int64_t>(stop - start, 0)};
}

}  // namespace devserver
