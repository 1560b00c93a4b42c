// Half and BFloat16 against an oracle that knows nothing of bits: the nearest of all finite values,
// found by bisection.
#include "server/tensor/float16.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace devserver {
namespace {

// The value that 16 bits mean, by IEEE 754's definition.
double Decode(uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) {
    return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  }
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

template <typename T>
constexpr int kExponentBits = 0;
template <>
constexpr int kExponentBits<Half> = 5;
template <>
constexpr int kExponentBits<BFloat16> = 8;

// Bits of the positive finite values, and one more where the next would be: what is above rounds to
// infinity.
template <typename T>
uint16_t NearestEven(double value) {
  const double magnitude = std::fabs(value);
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const uint16_t infinity =
      static_cast<uint16_t>(0x7fff >> (15 - kExponentBits<T>) << (15 - kExponentBits<T>));
  const double largest = Decode(infinity - 1, kExponentBits<T>);
  const double step = largest - Decode(infinity - 2, kExponentBits<T>);
  uint16_t low = 0;  // the last one not above `magnitude`
  uint16_t high = infinity;
  while (high - low > 1) {
    const uint16_t middle = static_cast<uint16_t>((low + high) / 2);
    (Decode(middle, kExponentBits<T>) <= magnitude ? low : high) = middle;
  }
  const double below = Decode(low, kExponentBits<T>);
  const double above = low == infinity - 1 ? largest + step : Decode(low + 1, kExponentBits<T>);
  // Exact: both differences are of neighbours.
  const double down = magnitude - below;
  const double up = above - magnitude;
  const bool take_above = up < down || (up == down && low % 2 == 1);
  return static_cast<uint16_t>((take_above ? low + 1 : low) | sign);
}

template <typename T>
class Float16Test : public testing::Test {};
using Types = testing::Types<Half, BFloat16>;
TYPED_TEST_SUITE(Float16Test, Types);

TYPED_TEST(Float16Test, EveryValueWidensExactly) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const double exact = Decode(static_cast<uint16_t>(bits), kExponentBits<TypeParam>);
    const TypeParam value = TypeParam::FromBits(static_cast<uint16_t>(bits));
    const float narrow = static_cast<float>(value);
    const double wide = static_cast<double>(value);
    if (std::isnan(exact)) {
      EXPECT_TRUE(std::isnan(narrow) && std::isnan(wide)) << bits;
    } else {
      EXPECT_EQ(std::bit_cast<uint64_t>(wide), std::bit_cast<uint64_t>(exact)) << bits;
      EXPECT_EQ(std::bit_cast<uint32_t>(narrow), std::bit_cast<uint32_t>(static_cast<float>(exact)))
          << bits;
    }
  }
}

TYPED_TEST(Float16Test, EveryValueComesBackFromFloatAndDouble) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const TypeParam value = TypeParam::FromBits(static_cast<uint16_t>(bits));
    const TypeParam from_float(static_cast<float>(value));
    const TypeParam from_double(static_cast<double>(value));
    if (std::isnan(static_cast<float>(value))) {
      EXPECT_TRUE(std::isnan(static_cast<float>(from_float))) << bits;
      EXPECT_TRUE(std::isnan(static_cast<float>(from_double))) << bits;
      EXPECT_EQ(from_float.bits & 0x8000, bits & 0x8000);
      EXPECT_EQ(from_double.bits & 0x8000, bits & 0x8000);
    } else {
      EXPECT_EQ(from_float.bits, bits);
      EXPECT_EQ(from_double.bits, bits);
    }
  }
}

TYPED_TEST(Float16Test, TiesGoToTheEvenNeighbour) {
  constexpr int kExponent = kExponentBits<TypeParam>;
  const uint16_t infinity = NearestEven<TypeParam>(1e300);
  for (uint16_t low = 0; low < infinity - 1; ++low) {
    const double tie = (Decode(low, kExponent) + Decode(low + 1, kExponent)) / 2;
    const uint16_t even = static_cast<uint16_t>(low % 2 == 0 ? low : low + 1);
    ASSERT_EQ(TypeParam(tie).bits, even) << low;
    ASSERT_EQ(TypeParam(-tie).bits, even | 0x8000) << low;
    ASSERT_EQ(TypeParam(static_cast<float>(tie)).bits, even) << low;
    // A hair to either side decides; through float it would have been lost.
    ASSERT_EQ(TypeParam(std::nextafter(tie, 1e300)).bits, low + 1) << low;
    ASSERT_EQ(TypeParam(std::nextafter(tie, -1e300)).bits, low) << low;
  }
}

TYPED_TEST(Float16Test, TheLargestFiniteValueEndsHalfAStepBelowInfinity) {
  constexpr int kExponent = kExponentBits<TypeParam>;
  const uint16_t infinity = static_cast<uint16_t>(NearestEven<TypeParam>(1e300));
  const double largest = Decode(infinity - 1, kExponent);
  const double half_step = (largest - Decode(infinity - 2, kExponent)) / 2;
  EXPECT_EQ(TypeParam(std::nextafter(largest + half_step, 0.0)).bits, infinity - 1);
  EXPECT_EQ(TypeParam(largest + half_step).bits, infinity);
  EXPECT_EQ(TypeParam(static_cast<float>(largest + half_step)).bits, infinity);
  EXPECT_EQ(TypeParam(std::numeric_limits<double>::max()).bits, infinity);
  EXPECT_EQ(TypeParam(std::numeric_limits<float>::max()).bits, infinity);
  EXPECT_EQ(TypeParam(-std::numeric_limits<double>::infinity()).bits, infinity | 0x8000);
}

TYPED_TEST(Float16Test, RandomDoublesRoundToTheNearest) {
  constexpr uint64_t kSeed = 20231;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  // Exponents around what the type holds, subnormal numbers and overflow included.
  const int bias = (1 << (kExponentBits<TypeParam> - 1)) - 1;
  std::uniform_int_distribution<int> exponents(-bias - 14, bias + 3);
  for (int i = 0; i < 300000; ++i) {
    const double mantissa = std::ldexp(static_cast<double>(random() >> 11), -53) + 1;
    const double value = std::ldexp(i % 2 == 0 ? mantissa : -mantissa, exponents(random));
    ASSERT_EQ(TypeParam(value).bits, NearestEven<TypeParam>(value)) << value;
    const float narrow = static_cast<float>(value);
    ASSERT_EQ(TypeParam(narrow).bits, NearestEven<TypeParam>(static_cast<double>(narrow))) << value;
  }
}

TYPED_TEST(Float16Test, TinyAndZeroKeepTheirSign) {
  EXPECT_EQ(TypeParam(0.0).bits, 0);
  EXPECT_EQ(TypeParam(-0.0).bits, 0x8000);
  EXPECT_EQ(TypeParam(-0.0f).bits, 0x8000);
  EXPECT_EQ(TypeParam(-std::numeric_limits<double>::denorm_min()).bits, 0x8000);
  EXPECT_EQ(TypeParam(std::numeric_limits<float>::denorm_min()).bits, 0);
}

}  // namespace
}  // namespace devserver
