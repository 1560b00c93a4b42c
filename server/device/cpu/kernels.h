// The kernel families behind RunHostOp and what they share. Only files of this folder include this.
//
// Every family takes a call whose output has at least one element (RunHostOp answers the empty
// ones). Element types are float, double, Half, BFloat16, int32_t, int64_t, uint8_t; bool is stored
// as uint8_t. Half and BFloat16 are computed in float, a block at a time, and rounded once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "server/device/cpu/host_math.h"
#include "server/device/device.h"
#include "server/tensor/dtype.h"
#include "server/tensor/float16.h"

namespace devserver {

void RunSource(const OpCall& call, HostMath& math);   // full, arange, eye, uniform, normal
void RunProduct(const OpCall& call, HostMath& math);  // matmul, dense
void RunBinary(const OpCall& call, HostMath& math);   // add, sub, mul, div, maximum, equal
void RunUnary(const OpCall& call,
              HostMath& math);  // neg, exp, log, sqrt, relu, gelu, tanh, sigmoid
void RunCast(const OpCall& call, HostMath& math);
void RunSoftmax(const OpCall& call, HostMath& math);
void RunReduction(const OpCall& call, HostMath& math);  // sum, mean, max, argmax, norm
void RunMove(const OpCall& call, HostMath& math);       // transpose, reshape, slice, concat

// value[0..n) = activation(value[0..n)), in place.
void ActivateFloats(Activation activation, float* values, int64_t n);
void ActivateDoubles(Activation activation, double* values, int64_t n);

template <typename T>
struct TypeTag {
  using Type = T;
};

// visit(TypeTag<T>()) with the element type of `dtype`.
template <typename Visit>
void VisitDType(DType dtype, Visit&& visit) {
  switch (dtype) {  // NOLINT(bugprone-branch-clone): the branches differ in their types
    case DType::kF32:
      return visit(TypeTag<float>());
    case DType::kF64:
      return visit(TypeTag<double>());
    case DType::kF16:
      return visit(TypeTag<Half>());
    case DType::kBF16:
      return visit(TypeTag<BFloat16>());
    case DType::kI32:
      return visit(TypeTag<int32_t>());
    case DType::kI64:
      return visit(TypeTag<int64_t>());
    case DType::kU8:
    case DType::kBool:
      return visit(TypeTag<uint8_t>());
    case DType::kUnspecified:
      return;
  }
}

template <typename T>
inline constexpr bool kIsHalf = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

// The type that elements of type T are computed in.
template <typename T>
using ComputeType = std::conditional_t<kIsHalf<T>, float, T>;

inline constexpr int64_t kBlock =
    512;  // Elements converted at a time: two blocks of floats stay in the first cache.

// `n` elements as ComputeType: the source itself, or widened into `block`.
template <typename T>
const ComputeType<T>* Widen(const T* source, ComputeType<T>* block, int64_t n) {
  if constexpr (kIsHalf<T>) {
    for (int64_t i = 0; i < n; ++i) {
      block[i] = static_cast<float>(source[i]);
    }
    return block;
  } else {
    return source;
  }
}

template <typename T>
void Narrow(const float* block, T* target, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    target[i] = T(block[i]);
  }
}

// Splits 0..n into chunks of `chunk` and calls run(begin, end) for each, on up to `threads`
// threads.
template <typename Run>
void ForChunks(int threads, int64_t n, int64_t chunk, Run&& run) {
#ifdef _OPENMP
  if (threads > 1 && n > chunk) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t begin = 0; begin < n; begin += chunk) {
      HostMath::PrepareThread();
      run(begin, std::min(begin + chunk, n));
    }
    return;
  }
#else
  (void)threads;
  (void)chunk;
#endif
  run(int64_t{0}, n);
}

inline constexpr int64_t kChunk =
    1 << 16;  // Large against a thread's start, small against the caches' size.

template <typename T>
const T* InputData(const OpCall& call, size_t index) {
  return reinterpret_cast<const T*>(call.inputs[index].data);
}
template <typename T>
T* OutputData(const OpCall& call) {
  return reinterpret_cast<T*>(call.output);
}

}  // namespace devserver
