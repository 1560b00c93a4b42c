#include "tests/conformance/oracle.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "absl/strings/str_format.h"
#include "server/tensor/random.h"

namespace devserver::conformance {
namespace {

using Index = std::array<int64_t, kDimsMax>;

Index Unravel(int64_t flat, const Shape& shape) {
  Index index = {};
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    index[static_cast<size_t>(axis)] = flat % shape.dim(axis);
    flat /= shape.dim(axis);
  }
  return index;
}

int64_t Ravel(const Index& index, const Shape& shape) {
  int64_t flat = 0;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    flat = flat * shape.dim(axis) + index[static_cast<size_t>(axis)];
  }
  return flat;
}

// The element of a broadcast operand: right-aligned, and 0 where its size is 1. `skip` last axes
// are not broadcast.
Index BroadcastIndex(const Index& index, const Shape& out, const Shape& operand) {
  Index result = {};
  for (int axis = 0; axis < operand.rank(); ++axis) {
    const int out_axis = axis + out.rank() - operand.rank();
    result[static_cast<size_t>(axis)] =
        operand.dim(axis) == 1 || out_axis < 0 ? 0 : index[static_cast<size_t>(out_axis)];
  }
  return result;
}

// Of the arithmetic: f16 and bf16 are computed in f32.
Real Unit(DType dtype) { return dtype == DType::kF64 ? 0x1p-53L : 0x1p-24L; }
constexpr Real kDoubleUnit = 0x1p-53L;

Real RoundingUnit(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0x1p-24L;
    case DType::kF64:
      return 0x1p-53L;
    case DType::kF16:
      return 0x1p-11L;
    case DType::kBF16:
      return 0x1p-8L;
    default:
      return 0;
  }
}
Real SmallestNormal(DType dtype) {
  return dtype == DType::kF64 ? 0x1p-1022L : dtype == DType::kF16 ? 0x1p-14L : 0x1p-126L;
}
Real LargestFinite(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return std::numeric_limits<float>::max();
    case DType::kF16:
      return 65504;
    case DType::kBF16:
      return 0x1.fep127L;
    default:
      return std::numeric_limits<double>::max();
  }
}

// The two's complement of `value` in an integer dtype.
Real Wrap(__int128 value, DType dtype) {
  switch (dtype) {
    case DType::kI32:
      return static_cast<int32_t>(static_cast<uint32_t>(value));
    case DType::kI64:
      return static_cast<Real>(static_cast<int64_t>(static_cast<uint64_t>(value)));
    default:
      return static_cast<uint8_t>(value);
  }
}

Real Gelu(Real x) {
  const Real y = 0.797884560802865355879892119868763737L * (x + 0.044715L * x * x * x);
  return x / (1 + std::exp(-2 * y));  // x/2·(1 + tanh y) without its cancellation
}

Real ActivationOf(Activation activation, Real x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return x > 0 || std::isnan(x) ? x : 0;
    case Activation::kGelu:
      return Gelu(x);
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kSigmoid:
      return 1 / (1 + std::exp(-x));
  }
  return x;
}

Expected Exactly(Real value) { return {value, 0, false}; }

Real SourceInteger(Real value, DType dtype) {
  const Real low = dtype == DType::kI32   ? std::numeric_limits<int32_t>::min()
                   : dtype == DType::kI64 ? static_cast<Real>(std::numeric_limits<int64_t>::min())
                                          : 0;
  const Real high = dtype == DType::kI32   ? std::numeric_limits<int32_t>::max()
                    : dtype == DType::kI64 ? static_cast<Real>(std::numeric_limits<int64_t>::max())
                                           : 255;
  return std::isnan(value) ? 0 : std::trunc(std::clamp(value, low, high));
}

// Conversion of a value that came from `source`.
Expected Converted(Real value, DType source, DType target) {
  if (target == DType::kBool) {
    return Exactly(value != 0 ? 1 : 0);
  }
  if (IsFloat(target)) {
    return {value, 0, true};
  }
  return Exactly(IsFloat(source) ? SourceInteger(value, target)
                                 : Wrap(static_cast<__int128>(value), target));
}

Real RandomElement(const OpAttributes& attributes, DType dtype, int64_t index, bool uniform) {
  const auto i = static_cast<uint64_t>(index);
  const double shift = uniform ? attributes.low : attributes.mean;
  const double scale = uniform ? attributes.high - attributes.low : attributes.stddev;
  double unit = 0;
  if (dtype == DType::kF64) {
    const uint64_t pair = WordPair(PhiloxBlock(attributes.seed, i / 2), static_cast<int>(i % 2));
    unit = uniform ? UnitUniform53(pair) : UnitNormal52(pair);
  } else {
    const uint32_t word = PhiloxBlock(attributes.seed, i / 4).words[i % 4];
    unit = uniform ? UnitUniform24(word) : UnitNormal32(word);
  }
  HostTensor rounded({dtype, Shape()});
  const double product = scale * unit;
  rounded.Set(0, shift + product);
  return rounded.At(0);
}

Expected EvaluateSource(OpCode code, const OpAttributes& attributes, const TensorSpec& output,
                        int64_t index) {
  switch (code) {
    case OpCode::kFull:
      return Converted(attributes.value, DType::kF64, output.dtype);
    case OpCode::kArange: {
      const double product = static_cast<double>(index) * attributes.step;
      return Converted(attributes.start + product, DType::kF64, output.dtype);
    }
    case OpCode::kEye: {
      const Index at = Unravel(index, output.shape);
      const auto last = static_cast<size_t>(output.shape.rank() - 1);
      return Exactly(at[last] == at[last - 1] ? 1 : 0);
    }
    default:
      return Exactly(RandomElement(attributes, output.dtype, index, code == OpCode::kUniform));
  }
}

Expected EvaluateMatMul(std::span<const HostTensor> inputs, const OpAttributes& attributes,
                        const TensorSpec& output, int64_t index) {
  const Shape& a = inputs[0].spec.shape;
  const Shape& b = inputs[1].spec.shape;
  const Index at = Unravel(index, output.shape);
  const int64_t k = a.dim(attributes.transpose_a ? a.rank() - 2 : a.rank() - 1);
  Index a_at = BroadcastIndex(at, output.shape, a);
  Index b_at = BroadcastIndex(at, output.shape, b);
  const auto set = [](Index& position, const Shape& shape, bool transposed, int64_t row,
                      int64_t column) {
    position[static_cast<size_t>(shape.rank() - 2)] = transposed ? column : row;
    position[static_cast<size_t>(shape.rank() - 1)] = transposed ? row : column;
  };
  Real sum = 0;
  Real magnitude = 0;
  for (int64_t i = 0; i < k; ++i) {
    set(a_at, a, attributes.transpose_a, at[static_cast<size_t>(output.shape.rank() - 2)], i);
    set(b_at, b, attributes.transpose_b, i, at[static_cast<size_t>(output.shape.rank() - 1)]);
    const Real product = inputs[0].At(Ravel(a_at, a)) * inputs[1].At(Ravel(b_at, b));
    sum += product;
    magnitude += std::fabs(product);
  }
  return {sum, 2 * static_cast<Real>(k + 1) * Unit(output.dtype) * magnitude};
}

Expected EvaluateDense(std::span<const HostTensor> inputs, const OpAttributes& attributes,
                       const TensorSpec& output, int64_t index) {
  const int64_t k = inputs[1].spec.shape.dim(0);
  const int64_t n = inputs[1].spec.shape.dim(1);
  const Real bias = inputs.size() > 2 ? inputs[2].At(index % n) : 0;
  Real y = bias;
  Real magnitude = std::fabs(bias);
  for (int64_t i = 0; i < k; ++i) {
    const Real product = inputs[0].At(index / n * k + i) * inputs[1].At(i * n + index % n);
    y += product;
    magnitude += std::fabs(product);
  }
  const Real unit = Unit(output.dtype);
  const Real error = 2 * static_cast<Real>(k + 2) * unit * magnitude;
  return {ActivationOf(attributes.activation, y), 1.2L * error + 16 * unit * (1 + std::fabs(y))};
}

Expected EvaluateBinary(OpCode code, std::span<const HostTensor> inputs, const TensorSpec& output,
                        int64_t index) {
  const Index at = Unravel(index, output.shape);
  const auto operand = [&](size_t i) {
    const Shape& shape = inputs[i].spec.shape;
    return inputs[i].At(Ravel(BroadcastIndex(at, output.shape, shape), shape));
  };
  const Real a = operand(0);
  const Real b = operand(1);
  const bool integers = !IsFloat(output.dtype);
  const auto wide_a = integers ? static_cast<__int128>(a) : 0;
  const auto wide_b = integers ? static_cast<__int128>(b) : 0;
  switch (code) {
    case OpCode::kAdd:
      return integers ? Exactly(Wrap(wide_a + wide_b, output.dtype)) : Expected{a + b};
    case OpCode::kSub:
      return integers ? Exactly(Wrap(wide_a - wide_b, output.dtype)) : Expected{a - b};
    case OpCode::kMul:
      return integers ? Exactly(Wrap(wide_a * wide_b, output.dtype)) : Expected{a * b};
    case OpCode::kDiv:
      return {a / b};
    case OpCode::kMaximum:
      return Exactly(std::isnan(a) || std::isnan(b) ? std::numeric_limits<Real>::quiet_NaN()
                                                    : std::max(a, b));
    default:
      return Exactly(a == b ? 1 : 0);
  }
}

Expected EvaluateUnary(OpCode code, Real x, DType dtype) {
  const Real unit = Unit(dtype);
  const Real size = std::isinf(x) ? 0 : std::fabs(x);  // at infinity the limit itself is due
  Real value = 0;
  switch (code) {
    case OpCode::kNeg:
      return Exactly(IsFloat(dtype) ? -x : Wrap(-static_cast<__int128>(x), dtype));
    case OpCode::kRelu:
      return Exactly(ActivationOf(Activation::kRelu, x));
    case OpCode::kSqrt:
      return {std::sqrt(x)};
    case OpCode::kExp:
      value = std::exp(x);
      return {value, 8 * unit * (1 + size) * value};
    case OpCode::kSigmoid:
      value = ActivationOf(Activation::kSigmoid, x);
      return {value, 8 * unit * (1 + size) * value};
    case OpCode::kLog:
      value = std::log(x);
      return {value, 8 * unit * std::fabs(value)};
    case OpCode::kTanh:
      value = std::tanh(x);
      return {value, 16 * unit * std::fabs(value)};
    default:
      value = Gelu(x);
      return {value, 16 * unit * (1 + size + size * size * size) * std::fabs(value)};
  }
}

// The elements of the input that become element `index` of a reduction, in row-major order.
std::vector<Real> Reduced(const HostTensor& input, const OpAttributes& attributes,
                          const TensorSpec& output, int64_t index) {
  const Shape& shape = input.spec.shape;
  const IntList axes = *NormalizeAxes(attributes.axes, shape.rank());
  const Index at = Unravel(index, output.shape);
  std::vector<Real> elements;
  for (int64_t i = 0; i < input.count(); ++i) {
    const Index from = Unravel(i, shape);
    bool match = true;
    size_t out_axis = 0;
    for (int axis = 0; axis < shape.rank(); ++axis) {
      const bool reduced = std::ranges::find(axes, axis) != axes.end();
      match = match && (reduced || from[static_cast<size_t>(axis)] == at[out_axis]);
      out_axis += !reduced || attributes.keep_dims ? 1 : 0;
    }
    if (match) {
      elements.push_back(input.At(i));
    }
  }
  return elements;
}

bool Larger(Real a, Real b) { return a > b || (std::isnan(a) && !std::isnan(b)); }

Expected EvaluateReduction(OpCode code, const HostTensor& input, const OpAttributes& attributes,
                           const TensorSpec& output, int64_t index) {
  const std::vector<Real> elements = Reduced(input, attributes, output, index);
  const Real n = static_cast<Real>(elements.size());
  if (code == OpCode::kMax || code == OpCode::kArgmax) {
    size_t best = 0;
    for (size_t i = 1; i < elements.size(); ++i) {
      best = Larger(elements[i], elements[best]) ? i : best;
    }
    return Exactly(code == OpCode::kMax ? elements[best] : static_cast<Real>(best));
  }
  if (code == OpCode::kSum && !IsFloat(input.spec.dtype)) {
    __int128 sum = 0;
    for (const Real x : elements) {
      sum += static_cast<__int128>(x);
    }
    return Exactly(Wrap(sum, DType::kI64));
  }
  Real sum = 0;
  Real magnitude = 0;
  for (const Real x : elements) {
    sum += code == OpCode::kNorm ? x * x : x;
    magnitude += std::fabs(x);
  }
  if (code != OpCode::kNorm && std::isfinite(sum) && magnitude > LargestFinite(DType::kF64)) {
    return {sum, std::numeric_limits<Real>::infinity()};  // a partial sum may have overflowed
  }
  switch (code) {
    case OpCode::kSum:
      return {sum, 2 * n * kDoubleUnit * magnitude};
    case OpCode::kMean:
      return {sum / n, 2 * kDoubleUnit * magnitude + kDoubleUnit * std::fabs(sum / n)};
    default:
      return {std::sqrt(sum), (n + 4) * kDoubleUnit * std::sqrt(sum)};
  }
}

Expected EvaluateSoftmax(const HostTensor& input, const OpAttributes& attributes,
                         const TensorSpec& output, int64_t index) {
  const Shape& shape = input.spec.shape;
  const int64_t named = attributes.axes.empty() ? -1 : attributes.axes[0];
  const auto axis = static_cast<size_t>(named < 0 ? named + shape.rank() : named);
  Index at = Unravel(index, shape);
  const Real x = input.At(index);
  Real largest = -std::numeric_limits<Real>::infinity();
  for (at[axis] = 0; at[axis] < shape.dim(static_cast<int>(axis)); ++at[axis]) {
    const Real other = input.At(Ravel(at, shape));
    largest = std::isnan(other) || other > largest ? other : largest;
  }
  Real sum = 0;
  for (at[axis] = 0; at[axis] < shape.dim(static_cast<int>(axis)); ++at[axis]) {
    sum += std::exp(input.At(Ravel(at, shape)) - largest);
  }
  const Real value = std::exp(x - largest) / sum;
  return {value, (16 + 2 * std::fabs(x - largest)) * Unit(output.dtype) * value};
}

Expected EvaluateMove(OpCode code, std::span<const HostTensor> inputs,
                      const OpAttributes& attributes, const TensorSpec& output, int64_t index) {
  const Shape& shape = inputs[0].spec.shape;
  const auto rank = static_cast<size_t>(output.shape.rank());
  Index at = Unravel(index, output.shape);
  Index from = {};
  switch (code) {
    case OpCode::kReshape:
      return Exactly(inputs[0].At(index));
    case OpCode::kTranspose:
      for (size_t i = 0; i < rank; ++i) {
        const int64_t named =
            attributes.axes.empty() ? static_cast<int64_t>(rank - 1 - i) : attributes.axes[i];
        from[static_cast<size_t>(named < 0 ? named + shape.rank() : named)] = at[i];
      }
      return Exactly(inputs[0].At(Ravel(from, shape)));
    case OpCode::kSlice:
      for (size_t i = 0; i < rank; ++i) {
        from[i] = at[i] + ResolveSlice(shape, attributes, static_cast<int>(i)).start;
      }
      return Exactly(inputs[0].At(Ravel(from, shape)));
    default: {
      const int64_t named = attributes.axes.empty() ? 0 : attributes.axes[0];
      const auto axis = static_cast<size_t>(named < 0 ? named + shape.rank() : named);
      size_t part = 0;
      while (at[axis] >= inputs[part].spec.shape.dim(static_cast<int>(axis))) {
        at[axis] -= inputs[part++].spec.shape.dim(static_cast<int>(axis));
      }
      return Exactly(inputs[part].At(Ravel(at, inputs[part].spec.shape)));
    }
  }
}

}  // namespace

Expected Evaluate(OpCode code, std::span<const HostTensor> inputs, const OpAttributes& attributes,
                  const TensorSpec& output, int64_t index) {
  if (code <= OpCode::kNormal) {
    return EvaluateSource(code, attributes, output, index);
  }
  if (code == OpCode::kMatMul) {
    return EvaluateMatMul(inputs, attributes, output, index);
  }
  if (code == OpCode::kDense) {
    return EvaluateDense(inputs, attributes, output, index);
  }
  if (code <= OpCode::kEqual) {
    return EvaluateBinary(code, inputs, output, index);
  }
  if (code < OpCode::kCast) {
    return EvaluateUnary(code, inputs[0].At(index), output.dtype);
  }
  if (code == OpCode::kCast) {
    return Converted(inputs[0].At(index), inputs[0].spec.dtype, output.dtype);
  }
  if (code == OpCode::kSoftmax) {
    return EvaluateSoftmax(inputs[0], attributes, output, index);
  }
  if (code <= OpCode::kNorm) {
    return EvaluateReduction(code, inputs[0], attributes, output, index);
  }
  return EvaluateMove(code, inputs, attributes, output, index);
}

std::string Judge(const Expected& expected, Real result, DType dtype) {
  const Real value = expected.value;
  if (std::isinf(expected.bound)) {
    return "";
  }
  if (std::isnan(value)) {
    return std::isnan(result) ? "" : absl::StrFormat("expected NaN, got %g", result);
  }
  if (result == value) {
    return "";
  }
  Real bound = 0;
  if (expected.rounded && !std::isinf(value)) {
    // The op's own error, its rounding to the dtype, and what flushing subnormal numbers of the
    // arithmetic takes; a thousandth on top for the oracle's own rounding.
    bound = expected.bound +
            RoundingUnit(dtype) * std::max(std::fabs(value), SmallestNormal(dtype)) +
            (dtype == DType::kF64 ? 0x1p-1022L : 0x1p-126L);
    bound *= 1.001L;
  }
  const Real overflow = LargestFinite(dtype) * (1 + RoundingUnit(dtype) / 2);
  if (std::isinf(result) && IsFloat(dtype) && std::fabs(value) + bound >= overflow &&
      std::signbit(result) == std::signbit(value)) {
    return "";
  }
  if (std::fabs(result - value) <= bound) {
    return "";
  }
  return absl::StrFormat("expected %.17g, got %.17g, off by %g where %g is allowed", value, result,
                         std::fabs(result - value), bound);
}

}  // namespace devserver::conformance
