#include "server/tensor/dtype.h"

#include <gtest/gtest.h>

namespace devserver {
namespace {

TEST(DType, NumbersThatTravelAreFixed) {
  static_assert(static_cast<int>(DType::kF32) == 1);
  static_assert(static_cast<int>(DType::kF64) == 2);
  static_assert(static_cast<int>(DType::kF16) == 3);
  static_assert(static_cast<int>(DType::kBF16) == 4);
  static_assert(static_cast<int>(DType::kI32) == 5);
  static_assert(static_cast<int>(DType::kI64) == 6);
  static_assert(static_cast<int>(DType::kU8) == 7);
  static_assert(static_cast<int>(DType::kBool) == 8);
}

TEST(DType, EveryNameIsReadBack) {
  for (const DType dtype : kAllDTypes) {
    EXPECT_EQ(ParseDType(DTypeName(dtype)), dtype) << DTypeName(dtype);
  }
}

TEST(DType, SizesAreThoseOfTheElements) {
  EXPECT_EQ(DTypeSize(DType::kF32), 4u);
  EXPECT_EQ(DTypeSize(DType::kF64), 8u);
  EXPECT_EQ(DTypeSize(DType::kF16), 2u);
  EXPECT_EQ(DTypeSize(DType::kBF16), 2u);
  EXPECT_EQ(DTypeSize(DType::kI32), 4u);
  EXPECT_EQ(DTypeSize(DType::kI64), 8u);
  EXPECT_EQ(DTypeSize(DType::kU8), 1u);
  EXPECT_EQ(DTypeSize(DType::kBool), 1u);
  EXPECT_EQ(DTypeSize(DType::kUnspecified), 0u);
}

TEST(DType, UnderstandsSafetensorsAndNumPysNames) {
  EXPECT_EQ(ParseDType("F32"), DType::kF32);
  EXPECT_EQ(ParseDType("float32"), DType::kF32);
  EXPECT_EQ(ParseDType("double"), DType::kF64);
  EXPECT_EQ(ParseDType("BF16"), DType::kBF16);
  EXPECT_EQ(ParseDType("bfloat16"), DType::kBF16);
  EXPECT_EQ(ParseDType("int64"), DType::kI64);
  EXPECT_EQ(ParseDType("uint8"), DType::kU8);
  EXPECT_EQ(ParseDType("BOOL"), DType::kBool);
}

TEST(DType, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(ParseDType(""), std::nullopt);
  EXPECT_EQ(ParseDType("f8"), std::nullopt);
  EXPECT_EQ(ParseDType("unspecified"), std::nullopt);
  EXPECT_EQ(ParseDType(" f32"), std::nullopt);
}

TEST(DTypeSet, HoldsWhatItWasGiven) {
  constexpr DTypeSet set = {DType::kF32, DType::kBool};
  EXPECT_TRUE(set.Contains(DType::kF32));
  EXPECT_TRUE(set.Contains(DType::kBool));
  EXPECT_FALSE(set.Contains(DType::kF64));
  EXPECT_FALSE(set.Contains(DType::kUnspecified));
  EXPECT_EQ(set.ToString(), "f32, bool");
}

}  // namespace
}  // namespace devserver
