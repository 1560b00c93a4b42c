// A tensor in the test's own memory, and elements as numbers that hold every dtype exactly.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "server/tensor/float16.h"
#include "server/tensor/shape.h"

namespace devserver::conformance {

// 64 bits of mantissa on x86: every i64 and every float is exact, and sums of doubles have eleven
// bits to spare.
using Real = long double;

struct HostTensor {
  TensorSpec spec;
  std::vector<std::byte> bytes;

  explicit HostTensor(const TensorSpec& spec) : spec(spec), bytes(spec.size_bytes()) {}
  int64_t count() const { return spec.shape.element_count(); }

  Real At(int64_t index) const {
    const std::byte* const at = bytes.data() + static_cast<size_t>(index) * DTypeSize(spec.dtype);
    const auto load = [at]<typename T>(T value) {
      std::memcpy(&value, at, sizeof(value));
      return value;
    };
    switch (spec.dtype) {
      case DType::kF32:
        return load(float{});
      case DType::kF64:
        return load(double{});
      case DType::kF16:
        return static_cast<float>(load(Half{}));
      case DType::kBF16:
        return static_cast<float>(load(BFloat16{}));
      case DType::kI32:
        return load(int32_t{});
      case DType::kI64:
        return static_cast<Real>(load(int64_t{}));
      default:
        return load(uint8_t{});
    }
  }
  // `value` must fit an integer dtype.
  void Set(int64_t index, double value) {
    std::byte* const at = bytes.data() + static_cast<size_t>(index) * DTypeSize(spec.dtype);
    const auto store = [at](auto stored) { std::memcpy(at, &stored, sizeof(stored)); };
    switch (spec.dtype) {
      case DType::kF32:
        return store(static_cast<float>(value));
      case DType::kF64:
        return store(value);
      case DType::kF16:
        return store(Half(value));
      case DType::kBF16:
        return store(BFloat16(value));
      case DType::kI32:
        return store(static_cast<int32_t>(value));
      case DType::kI64:
        return store(static_cast<int64_t>(value));
      default:
        return store(static_cast<uint8_t>(value));
    }
  }
};

}  // namespace devserver::conformance
