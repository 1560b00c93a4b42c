// Shapes and what a tensor is without its values. Every Shape was checked when it was made: at most
// kDimsMax dimensions, none negative, and its element count times 8 bytes fits an int64 even with
// the zeros left out. So size arithmetic behind this line can't overflow.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "server/tensor/dtype.h"

namespace devserver {

inline constexpr int kDimsMax =
    8;  // NumPy allows 32; nothing a device computes here uses more than 6.

// A plain value: copying it allocates nothing. The default is a scalar: rank 0, one element.
class Shape {
 public:
  Shape() = default;

  // INVALID_ARGUMENT, naming the dimensions, if there are too many, one is negative, or their
  // product is too large.
  static absl::StatusOr<Shape> Create(std::span<const int64_t> dims);
  // For shapes written in the program. Asserts what Create checks.
  static Shape Of(std::initializer_list<int64_t> dims);

  int rank() const { return rank_; }
  int64_t dim(int axis) const { return dims_[static_cast<size_t>(axis)]; }
  std::span<const int64_t> dims() const { return {dims_.data(), static_cast<size_t>(rank_)}; }
  int64_t element_count() const { return element_count_; }
  std::string ToString() const;  // "[2,3]"; "[]" for a scalar

  friend bool operator==(const Shape& a, const Shape& b);

 private:
  int64_t element_count_ = 1;
  int rank_ = 0;
  std::array<int64_t, kDimsMax> dims_ = {};
};

struct TensorSpec {
  DType dtype = DType::kF32;
  Shape shape;

  uint64_t size_bytes() const {
    return static_cast<uint64_t>(shape.element_count()) * DTypeSize(dtype);
  }
  std::string ToString() const;  // "f32[2,3]"

  friend bool operator==(const TensorSpec& a, const TensorSpec& b) = default;
};

// "[2,-1,3]" for any list, checked or not.
std::string DimsToString(std::span<const int64_t> dims);

}  // namespace devserver
