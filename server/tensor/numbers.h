// Elements as plain numbers, for JSON and for people. Exact where the dtype allows; to f32, f16 and
// bf16 rounded to nearest even, once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "server/tensor/dtype.h"

namespace devserver {

// Stores `numbers` as packed elements of `dtype`; `target` is numbers.size() · DTypeSize(dtype)
// bytes. INVALID_ARGUMENT names the first number (with its place) that an integer or bool can't
// hold: fractions, NaN, too large.
absl::Status StoreNumbers(std::span<const double> numbers, DType dtype,
                          std::span<std::byte> target);
absl::Status StoreIntegers(std::span<const int64_t> integers, DType dtype,
                           std::span<std::byte> target);

// Element `index` of packed elements. An i64 beyond 2^53 is rounded: use LoadInteger for those.
double LoadNumber(const std::byte* elements, DType dtype, size_t index);
// i32, i64, u8 and bool only.
int64_t LoadInteger(const std::byte* elements, DType dtype, size_t index);

// INVALID_ARGUMENT if a bool is neither 0 nor 1; `first_index` is where `elements` starts, for the
// message.
absl::Status CheckBools(std::span<const std::byte> elements, uint64_t first_index);

}  // namespace devserver
