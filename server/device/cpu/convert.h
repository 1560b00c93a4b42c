// Converts one element as the op "cast" does; see its entry in the op table.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "server/tensor/float16.h"

namespace devserver {

// The target type of a cast to bool, so that it differs from uint8_t.
struct Bool {
  uint8_t value;
};

template <typename T>
inline constexpr bool kIsFloatType =
    std::is_floating_point_v<T> || std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

// Towards zero; out of range saturates, NaN gives 0.
template <typename To, typename Float>
To FloatToInt(Float value) {
  constexpr To kMin = std::numeric_limits<To>::min();
  constexpr To kMax = std::numeric_limits<To>::max();
  // 2^31, 2^63 and 2^8 are exact in every float type; kMax itself is not.
  constexpr To kHalfLimit = kMax / 2 + 1;
  const Float limit = static_cast<Float>(kHalfLimit) * 2;
  if (value >= limit) {
    return kMax;
  }
  if (value < static_cast<Float>(kMin)) {
    return kMin;
  }
  return std::isnan(value) ? To{0} : static_cast<To>(value);
}

// An int64 as a double that rounds to 16 bits as the exact number would: bits below the 53rd only
// matter as "not zero".
inline double ToDoubleForRounding(int64_t value) {
  const uint64_t magnitude =
      value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  if (magnitude < (uint64_t{1} << 53)) {
    return static_cast<double>(value);
  }
  const uint64_t sticky = (magnitude & 0x7ff) != 0 ? 0x800 : 0;
  const double rounded = static_cast<double>((magnitude & ~uint64_t{0x7ff}) | sticky);
  return value < 0 ? -rounded : rounded;
}

template <typename To, typename From>
To ConvertElement(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<From, Half> || std::is_same_v<From, BFloat16>) {
    return ConvertElement<To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, Bool>) {
    if constexpr (std::is_floating_point_v<From>) {
      return Bool{
          static_cast<uint8_t>((BitsOf(value) << 1) != 0)};  // by bits: a subnormal is not 0
    } else {
      return Bool{static_cast<uint8_t>(value != 0)};
    }
  } else if constexpr (std::is_same_v<To, Half> || std::is_same_v<To, BFloat16>) {
    if constexpr (std::is_floating_point_v<From>) {
      return To(value);
    } else {
      return To(ToDoubleForRounding(static_cast<int64_t>(value)));
    }
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    return FloatToInt<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

}  // namespace devserver
