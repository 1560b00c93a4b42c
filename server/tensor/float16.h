// Half (IEEE 754 binary16) and BFloat16 (the upper half of a binary32): storage, and conversions
// from and to float and double. Rounding is to nearest even, once: from double they do not pass
// through float. Too large becomes infinity, NaN stays NaN (made quiet), subnormal numbers are
// exact.
//
// The functions are branch-free enough for the compiler to vectorise loops of them, ask for no F16C
// at compile time, and give the same bits whether or not the thread flushes subnormals (no step
// makes or reads a subnormal float or double that matters). They assume the rounding mode to
// nearest.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "server/tensor/host_device.h"

namespace devserver {

DEVSERVER_HOST_DEVICE inline uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
DEVSERVER_HOST_DEVICE inline uint64_t BitsOf(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
DEVSERVER_HOST_DEVICE inline float FloatFromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
DEVSERVER_HOST_DEVICE inline double DoubleFromBits(uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

struct Half {
  uint16_t bits;

  Half() = default;
  DEVSERVER_HOST_DEVICE explicit Half(float value) : bits(Round(value)) {}
  DEVSERVER_HOST_DEVICE explicit Half(double value) : bits(Round(value)) {}
  DEVSERVER_HOST_DEVICE explicit operator float() const {
    const uint32_t sign = (bits & 0x8000u) << 16;
    const uint32_t shifted = (bits & 0x7fffu)
                             << 13;  // exponent and mantissa where a float has them
    constexpr uint32_t kRebias = (127u - 15u) << 23;
    const uint32_t normal = shifted + kRebias;
    // A subnormal half: put its mantissa behind a leading one of 2^-14, then take that one away.
    const uint32_t subnormal =
        BitsOf(FloatFromBits(shifted + (113u << 23)) - FloatFromBits(113u << 23));
    const uint32_t special = normal + kRebias;  // infinity, NaN: the exponent's other half
    uint32_t result = shifted >= (31u << 23) ? special : normal;
    result = shifted < (1u << 23) ? subnormal : result;
    return FloatFromBits(result | sign);
  }
  DEVSERVER_HOST_DEVICE explicit operator double() const {
    return static_cast<double>(static_cast<float>(*this));
  }
  DEVSERVER_HOST_DEVICE static Half FromBits(uint16_t bits) {
    Half half;
    half.bits = bits;
    return half;
  }

 private:
  DEVSERVER_HOST_DEVICE static uint16_t Round(float value) {
    const uint32_t all = BitsOf(value);
    const uint32_t magnitude = all & 0x7fffffffu;
    const uint32_t rounded =
        (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - ((127u - 15u) << 23)) >> 13;
    const uint32_t normal = rounded > 0x7c00u ? 0x7c00u : rounded;
    // Below 2^-14 the unit is 2^-24, which is what one half has as its last place.
    const uint32_t subnormal = BitsOf(FloatFromBits(magnitude) + 0.5f) - BitsOf(0.5f);
    const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x1ffu);
    uint32_t result = magnitude < (113u << 23) ? subnormal : normal;
    result = magnitude > 0x7f800000u ? nan : result;
    return static_cast<uint16_t>(result | ((all >> 16) & 0x8000u));
  }
  DEVSERVER_HOST_DEVICE static uint16_t Round(double value) {
    const uint64_t all = BitsOf(value);
    const uint64_t magnitude = all & 0x7fffffffffffffffull;
    const uint64_t rounded =
        (magnitude + ((1ull << 41) - 1) + ((magnitude >> 42) & 1) - ((1023ull - 15) << 52)) >> 42;
    const uint64_t normal = rounded > 0x7c00u ? 0x7c00u : rounded;
    constexpr double kUnit = 268435456.0;  // 2^28, whose last place is 2^-24
    const uint64_t subnormal = BitsOf(DoubleFromBits(magnitude) + kUnit) - BitsOf(kUnit);
    const uint64_t nan = 0x7e00u | ((magnitude >> 42) & 0x1ffu);
    uint64_t result = magnitude < ((1023ull - 14) << 52) ? subnormal : normal;
    result = magnitude > 0x7ff0000000000000ull ? nan : result;
    return static_cast<uint16_t>(result | ((all >> 48) & 0x8000u));
  }
};

struct BFloat16 {
  uint16_t bits;

  BFloat16() = default;
  DEVSERVER_HOST_DEVICE explicit BFloat16(float value) : bits(Round(value)) {}
  DEVSERVER_HOST_DEVICE explicit BFloat16(double value) : bits(Round(value)) {}
  DEVSERVER_HOST_DEVICE explicit operator float() const {
    return FloatFromBits(static_cast<uint32_t>(bits) << 16);
  }
  DEVSERVER_HOST_DEVICE explicit operator double() const {
    return static_cast<double>(static_cast<float>(*this));
  }
  DEVSERVER_HOST_DEVICE static BFloat16 FromBits(uint16_t bits) {
    BFloat16 value;
    value.bits = bits;
    return value;
  }

 private:
  DEVSERVER_HOST_DEVICE static uint16_t Round(float value) {
    const uint32_t all = BitsOf(value);
    const uint32_t rounded = (all + 0x7fffu + ((all >> 16) & 1u)) >> 16;
    const uint32_t nan = (all >> 16) | 0x40u;
    return static_cast<uint16_t>((all & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
  }
  DEVSERVER_HOST_DEVICE static uint16_t Round(double value) {
    const uint64_t all = BitsOf(value);
    const uint64_t magnitude = all & 0x7fffffffffffffffull;
    const uint64_t rounded =
        (magnitude + ((1ull << 44) - 1) + ((magnitude >> 45) & 1) - ((1023ull - 127) << 52)) >> 45;
    const uint64_t normal = rounded > 0x7f80u ? 0x7f80u : rounded;
    const double unit = DoubleFromBits((1023ull - 81) << 52);  // 2^-81, whose last place is 2^-133
    const uint64_t subnormal = BitsOf(DoubleFromBits(magnitude) + unit) - BitsOf(unit);
    const uint64_t nan = 0x7fc0u | ((magnitude >> 45) & 0x3fu);
    uint64_t result = magnitude < ((1023ull - 126) << 52) ? subnormal : normal;
    result = magnitude > 0x7ff0000000000000ull ? nan : result;
    return static_cast<uint16_t>(result | ((all >> 48) & 0x8000u));
  }
};

static_assert(sizeof(Half) == 2 && std::is_trivially_copyable_v<Half>);
static_assert(sizeof(BFloat16) == 2 && std::is_trivially_copyable_v<BFloat16>);

}  // namespace devserver
