#include "server/tensor/shape.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace devserver {
namespace {

using Dims = std::vector<int64_t>;

TEST(Shape, DefaultIsAScalarOfOneElement) {
  EXPECT_EQ(Shape().rank(), 0);
  EXPECT_EQ(Shape().element_count(), 1);
  EXPECT_EQ(Shape().ToString(), "[]");
}

TEST(Shape, ZeroSizesMakeAnEmptyShape) {
  EXPECT_EQ(Shape::Of({0}).element_count(), 0);
  EXPECT_EQ(Shape::Of({3, 0, 2}).element_count(), 0);
  EXPECT_EQ(Shape::Of({3, 0, 2}).ToString(), "[3,0,2]");
}

TEST(Shape, EqualityLooksAtEverySize) {
  EXPECT_EQ(Shape::Of({2, 3}), Shape::Of({2, 3}));
  EXPECT_FALSE(Shape::Of({2, 3}) == Shape::Of({3, 2}));
  EXPECT_FALSE(Shape::Of({2, 3}) == Shape::Of({2, 3, 1}));
  EXPECT_FALSE(Shape() == Shape::Of({1}));
}

TEST(Shape, LargestAllowedShapeIsAccepted) {
  const int64_t elements_max = std::numeric_limits<int64_t>::max() / 8;
  const auto shape = Shape::Create(Dims{elements_max});
  ASSERT_TRUE(shape.ok());
  EXPECT_EQ(shape->element_count(), elements_max);
}

struct HostileCase {
  const char* why;
  Dims dims;
  const char* message;
};

class HostileShapeTest : public testing::TestWithParam<HostileCase> {};

TEST_P(HostileShapeTest, IsRefusedByName) {
  const auto shape = Shape::Create(GetParam().dims);
  ASSERT_FALSE(shape.ok());
  EXPECT_EQ(shape.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(shape.status().message());
  EXPECT_NE(message.find(GetParam().message), std::string::npos) << message;
}

constexpr int64_t kTwo31 = int64_t{1} << 31;

INSTANTIATE_TEST_SUITE_P(
    Shapes, HostileShapeTest,
    testing::Values(
        HostileCase{"negative", {-1}, "shape [-1]: dimension 0 is negative"},
        HostileCase{"the most negative",
                    {2, std::numeric_limits<int64_t>::min()},
                    "dimension 1 is negative"},
        HostileCase{"negative behind a zero", {0, -5}, "dimension 1 is negative"},
        HostileCase{
            "overflows to a small number", {kTwo31, kTwo31, kTwo31, kTwo31, kTwo31}, "more than"},
        HostileCase{"bytes overflow", {(int64_t{1} << 62) + 2}, "more than"},
        HostileCase{"overflow hidden by a zero", {0, kTwo31, kTwo31, kTwo31}, "more than"},
        HostileCase{"one too many", {int64_t{1} << 60}, "more than"},
        HostileCase{"nine dimensions", Dims(9, 1), "9 dimensions, the limit is 8"},
        HostileCase{"a million dimensions", Dims(1000000, 1), "1000000 in all"}),
    [](const auto& info) {
      std::string name = info.param.why;
      std::ranges::replace(name, ' ', '_');
      return name;
    });

TEST(TensorSpec, CountsBytesByItsDType) {
  EXPECT_EQ((TensorSpec{DType::kF64, Shape::Of({3, 5})}).size_bytes(), 120u);
  EXPECT_EQ((TensorSpec{DType::kBool, Shape()}).size_bytes(), 1u);
  EXPECT_EQ((TensorSpec{DType::kBF16, Shape::Of({3, 0})}).size_bytes(), 0u);
}

TEST(TensorSpec, ReadsLikeNumPy) {
  EXPECT_EQ((TensorSpec{DType::kBF16, Shape::Of({2, 3})}).ToString(), "bf16[2,3]");
}

}  // namespace
}  // namespace devserver
