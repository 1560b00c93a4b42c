#include "server/tensor/numbers.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

#include "absl/strings/str_format.h"
#include "server/base/status_macros.h"
#include "server/tensor/float16.h"

namespace devserver {
namespace {

template <typename T>
T Load(const std::byte* elements, size_t index) {
  T value;
  std::memcpy(&value, elements + index * sizeof(T), sizeof(T));
  return value;
}

std::string Text(double number) { return absl::StrFormat("%g", number); }
std::string Text(int64_t number) { return absl::StrFormat("%d", number); }

template <typename T, typename Number>
bool Holds(Number number) {
  if constexpr (std::is_integral_v<T> && std::is_floating_point_v<Number>) {
    // The upper bound is one past the largest value: exact as a double also for int64.
    constexpr T kHalf = std::numeric_limits<T>::max() / 2 + 1;
    constexpr double kEnd = static_cast<double>(kHalf) * 2.0;
    return number >= static_cast<double>(std::numeric_limits<T>::min()) && number < kEnd &&
           std::trunc(number) == number;
  } else if constexpr (std::is_integral_v<T>) {
    return number >= Number{std::numeric_limits<T>::min()} &&
           number <= Number{std::numeric_limits<T>::max()};
  } else {
    return true;
  }
}

template <typename T, typename Number>
absl::Status StoreAs(std::span<const Number> numbers, DType dtype, std::byte* target) {
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (!Holds<T>(numbers[i]) || (dtype == DType::kBool && numbers[i] != 0 && numbers[i] != 1)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("value %d is %s, which %s can't hold; give a whole number in its range",
                          i, Text(numbers[i]), DTypeName(dtype)));
    }
    T value;
    if constexpr (std::is_arithmetic_v<T>) {
      value = static_cast<T>(numbers[i]);
    } else {
      value = T(static_cast<double>(numbers[i]));
    }
    std::memcpy(target + i * sizeof(T), &value, sizeof(T));
  }
  return absl::OkStatus();
}

template <typename Number>
absl::Status Store(std::span<const Number> numbers, DType dtype, std::byte* target) {
  switch (dtype) {
    case DType::kF32:
      return StoreAs<float>(numbers, dtype, target);
    case DType::kF64:
      return StoreAs<double>(numbers, dtype, target);
    case DType::kF16:
      return StoreAs<Half>(numbers, dtype, target);
    case DType::kBF16:
      return StoreAs<BFloat16>(numbers, dtype, target);
    case DType::kI32:
      return StoreAs<int32_t>(numbers, dtype, target);
    case DType::kI64:
      return StoreAs<int64_t>(numbers, dtype, target);
    case DType::kU8:
    case DType::kBool:
      return StoreAs<uint8_t>(numbers, dtype, target);
    case DType::kUnspecified:
      break;
  }
  return absl::InternalError("a dtype without elements");
}

}  // namespace

absl::Status StoreNumbers(std::span<const double> numbers, DType dtype,
                          std::span<std::byte> target) {
  return Store(numbers, dtype, target.data());
}

absl::Status StoreIntegers(std::span<const int64_t> integers, DType dtype,
                           std::span<std::byte> target) {
  return Store(integers, dtype, target.data());
}

double LoadNumber(const std::byte* elements, DType dtype, size_t index) {
  switch (dtype) {
    case DType::kF32:
      return Load<float>(elements, index);
    case DType::kF64:
      return Load<double>(elements, index);
    case DType::kF16:
      return static_cast<double>(Load<Half>(elements, index));
    case DType::kBF16:
      return static_cast<double>(Load<BFloat16>(elements, index));
    default:
      return static_cast<double>(LoadInteger(elements, dtype, index));
  }
}

int64_t LoadInteger(const std::byte* elements, DType dtype, size_t index) {
  switch (dtype) {
    case DType::kI32:
      return Load<int32_t>(elements, index);
    case DType::kI64:
      return Load<int64_t>(elements, index);
    default:
      return Load<uint8_t>(elements, index);
  }
}

absl::Status CheckBools(std::span<const std::byte> elements, uint64_t first_index) {
  for (size_t i = 0; i < elements.size(); ++i) {
    if (elements[i] > std::byte{1}) {
      return absl::InvalidArgumentError(
          absl::StrFormat("element %d of a bool tensor is %d; it must be 0 or 1", first_index + i,
                          static_cast<int>(elements[i])));
    }
  }
  return absl::OkStatus();
}

}  // namespace devserver
