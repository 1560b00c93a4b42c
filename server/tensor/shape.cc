#include "server/tensor/shape.h"

#include <algorithm>
#include <cassert>
#include <limits>

#include "absl/strings/str_format.h"

namespace devserver {
namespace {

constexpr int64_t kElementsMax = std::numeric_limits<int64_t>::max() / 8;  // 8: the widest dtype

}  // namespace

std::string DimsToString(std::span<const int64_t> dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i == 32) {
      return text + absl::StrFormat(",... %d in all]", dims.size());
    }
    text += absl::StrFormat("%s%d", i == 0 ? "" : ",", dims[i]);
  }
  return text + "]";
}

absl::StatusOr<Shape> Shape::Create(std::span<const int64_t> dims) {
  if (dims.size() > static_cast<size_t>(kDimsMax)) {
    return absl::InvalidArgumentError(absl::StrFormat("shape %s has %d dimensions, the limit is %d",
                                                      DimsToString(dims), dims.size(), kDimsMax));
  }
  Shape shape;
  shape.rank_ = static_cast<int>(dims.size());
  int64_t product_without_zeros = 1;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] < 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "shape %s: dimension %d is negative; sizes must be 0 or more", DimsToString(dims), i));
    }
    const int64_t size = std::max<int64_t>(dims[i], 1);
    if (product_without_zeros > kElementsMax / size) {
      return absl::InvalidArgumentError(
          absl::StrFormat("shape %s has more than %d elements", DimsToString(dims), kElementsMax));
    }
    product_without_zeros *= size;
    shape.dims_[i] = dims[i];
    shape.element_count_ *= dims[i];
  }
  return shape;
}

Shape Shape::Of(std::initializer_list<int64_t> dims) {
  const absl::StatusOr<Shape> shape = Create(std::span<const int64_t>(dims.begin(), dims.size()));
  assert(shape.ok());
  return *shape;
}

std::string Shape::ToString() const { return DimsToString(dims()); }

bool operator==(const Shape& a, const Shape& b) { return std::ranges::equal(a.dims(), b.dims()); }

std::string TensorSpec::ToString() const {
  return absl::StrFormat("%s%s", DTypeName(dtype), shape.ToString());
}

}  // namespace devserver
