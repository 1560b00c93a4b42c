// Packed elements as C++ numbers and as text. Not installed.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/tensor/shape.h"

namespace devserver::client {

// Whether elements of `dtype` can be read as T; INVALID_ARGUMENT names the cast that helps.
template <typename T>
absl::Status CheckElementType(DType dtype);

// `packed` has spec.size_bytes() bytes, and CheckElementType<T>(spec.dtype) is OK.
template <typename T>
std::vector<T> Unpack(const TensorSpec& spec, std::span<const std::byte> packed);

// Element `index` of `packed` as a number; i64 beyond 2^53 is rounded.
double ElementAsDouble(DType dtype, std::span<const std::byte> packed, size_t index);

// "[[1, 2, 3],\n [4, 5, 6]]", with axes of more than `axis_max` shown by their ends.
std::string FormatElements(const TensorSpec& spec, std::span<const std::byte> packed, int axis_max);

}  // namespace devserver::client
