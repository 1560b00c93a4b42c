// neg, exp, log, sqrt, relu, gelu, tanh, sigmoid, and the activations of dense.
//
// Eigen's array functions vectorise exp, log and tanh for whatever instruction set this is
// compiled for.
#include <Eigen/Core>
#include <cmath>
#include <type_traits>

#include "server/device/cpu/kernels.h"

namespace devserver {
namespace {

template <typename C>
using Values = Eigen::Map<Eigen::Array<C, Eigen::Dynamic, 1>>;
template <typename C>
using ConstValues = Eigen::Map<const Eigen::Array<C, Eigen::Dynamic, 1>>;

template <typename C>
void Sigmoid(const C* x, C* out, int64_t n) {
  Values<C>(out, n) = C(1) / (C(1) + (-ConstValues<C>(x, n)).exp());
}

// x/2·(1 + tanh y) = x / (1 + e^-2y), which does not cancel for negative y.
template <typename C>
void Gelu(const C* x, C* out, int64_t n) {
  const ConstValues<C> v(x, n);
  constexpr C kScale = C(-2 * 0.79788456080286535588);  // -2·√(2/π)
  Values<C>(out, n) = v / (C(1) + (kScale * v * (C(1) + C(0.044715) * v * v)).exp());
}

// Correctly rounded, which Eigen's is not with SSE (-fno-math-errno lets the compiler vectorise the
// loop).
template <typename C>
void Sqrt(const C* x, C* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = std::sqrt(x[i]);
  }
}

template <typename C>
void Relu(const C* x, C* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = x[i] <= C(0) ? C(0) : x[i];  // NaN stays
  }
}

template <typename C>
void Neg(const C* x, C* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (std::is_integral_v<C>) {
      using Unsigned = std::conditional_t<sizeof(C) == 8, uint64_t, uint32_t>;
      out[i] = static_cast<C>(0 - static_cast<Unsigned>(x[i]));
    } else {
      out[i] = -x[i];
    }
  }
}

template <typename C>
void Apply(OpCode code, const C* x, C* out, int64_t n) {
  if constexpr (std::is_floating_point_v<C>) {
    switch (code) {
      case OpCode::kExp:
        Values<C>(out, n) = ConstValues<C>(x, n).exp();
        return;
      case OpCode::kLog:
        Values<C>(out, n) = ConstValues<C>(x, n).log();
        return;
      case OpCode::kSqrt:
        return Sqrt(x, out, n);
      case OpCode::kGelu:
        return Gelu(x, out, n);
      case OpCode::kTanh:
        Values<C>(out, n) = ConstValues<C>(x, n).tanh();
        return;
      case OpCode::kSigmoid:
        return Sigmoid(x, out, n);
      default:
        break;
    }
  }
  code == OpCode::kNeg ? Neg(x, out, n) : Relu(x, out, n);
}

template <typename T>
void ApplyStored(OpCode code, const T* x, T* out, int64_t n) {
  if constexpr (!kIsHalf<T>) {
    Apply(code, x, out, n);
  } else {
    float block[kBlock];
    for (int64_t begin = 0; begin < n; begin += kBlock) {
      const int64_t count = std::min(kBlock, n - begin);
      Widen(x + begin, block, count);
      Apply(code, block, block, count);
      Narrow(block, out + begin, count);
    }
  }
}

template <typename C>
void Activate(Activation activation, C* values, int64_t n) {
  switch (activation) {
    case Activation::kNone:
      return;
    case Activation::kRelu:
      return Apply(OpCode::kRelu, values, values, n);
    case Activation::kGelu:
      return Apply(OpCode::kGelu, values, values, n);
    case Activation::kTanh:
      return Apply(OpCode::kTanh, values, values, n);
    case Activation::kSigmoid:
      return Apply(OpCode::kSigmoid, values, values, n);
  }
}

}  // namespace

void ActivateFloats(Activation activation, float* values, int64_t n) {
  Activate(activation, values, n);
}
void ActivateDoubles(Activation activation, double* values, int64_t n) {
  Activate(activation, values, n);
}

void RunUnary(const OpCall& call, HostMath& math) {
  const int64_t n = call.output_spec->shape.element_count();
  const bool cheap = call.code == OpCode::kNeg || call.code == OpCode::kRelu;
  const int threads = math.ThreadsFor((cheap ? 1.0 : 10.0) * static_cast<double>(n));
  VisitDType(call.output_spec->dtype, [&]<typename T>(TypeTag<T>) {
    const T* const x = InputData<T>(call, 0);
    T* const out = OutputData<T>(call);
    ForChunks(threads, n, kChunk, [&](int64_t begin, int64_t end) {
      ApplyStored(call.code, x + begin, out + begin, end - begin);
    });
  });
}

}  // namespace devserver
