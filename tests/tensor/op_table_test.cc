#include "server/tensor/op_table.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "server/base/error_details.h"

namespace devserver {
namespace {

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

// "f32[2,3]"
TensorSpec Spec(const std::string& text) {
  const size_t bracket = text.find('[');
  TensorSpec spec;
  spec.dtype = *ParseDType(text.substr(0, bracket));
  std::vector<int64_t> dims;
  const char* at = text.c_str() + bracket + 1;
  while (*at != ']') {
    char* end = nullptr;
    dims.push_back(std::strtoll(at, &end, 10));
    at = *end == ',' ? end + 1 : end;
  }
  spec.shape = *Shape::Create(dims);
  return spec;
}

absl::StatusOr<TensorSpec> Infer(const char* op, const std::vector<std::string>& inputs,
                                 const OpAttributes& attributes) {
  std::vector<TensorSpec> specs;
  for (const std::string& input : inputs) {
    specs.push_back(Spec(input));
  }
  return InferSpec(FindOp(op)->code, specs, attributes);
}

OpAttributes Axes(IntList axes, bool keep_dims = false) {
  OpAttributes attributes;
  attributes.axes = std::move(axes);
  attributes.keep_dims = keep_dims;
  return attributes;
}
OpAttributes ShapeIs(IntList shape, DType dtype = DType::kUnspecified) {
  OpAttributes attributes;
  attributes.shape = std::move(shape);
  attributes.dtype = dtype;
  return attributes;
}
OpAttributes Range(IntList starts, IntList stops) {
  OpAttributes attributes;
  attributes.starts = std::move(starts);
  attributes.stops = std::move(stops);
  return attributes;
}
OpAttributes To(DType dtype) { return ShapeIs({}, dtype); }
OpAttributes Transposed(bool a, bool b) {
  OpAttributes attributes;
  attributes.transpose_a = a;
  attributes.transpose_b = b;
  return attributes;
}

struct Case {
  const char* op;
  std::vector<std::string> inputs;
  OpAttributes attributes;
  std::string result;  // the spec, or a part of the error
};

void PrintTo(const Case& test, std::ostream* out) { *out << test.op << " -> " << test.result; }

class InferTest : public testing::TestWithParam<Case> {};

TEST_P(InferTest, GivesTheSpec) {
  const auto spec = Infer(GetParam().op, GetParam().inputs, GetParam().attributes);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->ToString(), GetParam().result);
}

INSTANTIATE_TEST_SUITE_P(
    Sources, InferTest,
    testing::Values(Case{"full", {}, ShapeIs({2, 3}), "f32[2,3]"},
                    Case{"full", {}, ShapeIs({}, DType::kBool), "bool[]"},
                    Case{"arange", {}, ShapeIs({0}, DType::kI64), "i64[0]"},
                    Case{"eye", {}, ShapeIs({2, 3, 4}, DType::kU8), "u8[2,3,4]"},
                    Case{"uniform", {}, ShapeIs({5}, DType::kF16), "f16[5]"},
                    Case{"normal", {}, ShapeIs({3, 0, 2}, DType::kF64), "f64[3,0,2]"}));

INSTANTIATE_TEST_SUITE_P(
    Products, InferTest,
    testing::Values(Case{"matmul", {"f32[2,3]", "f32[3,5]"}, {}, "f32[2,5]"},
                    Case{"matmul", {"f32[3,2]", "f32[5,3]"}, Transposed(true, true), "f32[2,5]"},
                    Case{"matmul", {"bf16[7,1,2,3]", "bf16[4,3,5]"}, {}, "bf16[7,4,2,5]"},
                    Case{"matmul", {"f64[0,3]", "f64[3,0]"}, {}, "f64[0,0]"},
                    Case{"matmul", {"f32[2,0]", "f32[0,5]"}, {}, "f32[2,5]"},
                    Case{"matmul", {"f32[0,2,3]", "f32[1,3,4]"}, {}, "f32[0,2,4]"},
                    Case{"dense", {"f32[32,784]", "f32[784,10]"}, {}, "f32[32,10]"},
                    Case{"dense", {"f16[2,3,4]", "f16[4,5]", "f16[5]"}, {}, "f16[2,3,5]"},
                    Case{"dense", {"f32[4]", "f32[4,5]", "f32[5]"}, {}, "f32[5]"}));

INSTANTIATE_TEST_SUITE_P(Elementwise, InferTest,
                         testing::Values(Case{"add", {"f32[2,3]", "f32[2,3]"}, {}, "f32[2,3]"},
                                         Case{"add", {"i32[2,1,3]", "i32[4,1]"}, {}, "i32[2,4,3]"},
                                         Case{"mul", {"f32[]", "f32[3,0,2]"}, {}, "f32[3,0,2]"},
                                         Case{"sub", {"u8[1]", "u8[0]"}, {}, "u8[0]"},
                                         Case{"equal", {"bool[2]", "bool[]"}, {}, "bool[2]"},
                                         Case{"neg", {"i64[4]"}, {}, "i64[4]"},
                                         Case{"gelu", {"bf16[]"}, {}, "bf16[]"},
                                         Case{"cast", {"f32[2]"}, To(DType::kBool), "bool[2]"},
                                         Case{"softmax", {"f32[2,3]"}, {}, "f32[2,3]"},
                                         Case{"softmax", {"f32[2,3]"}, Axes({-2}), "f32[2,3]"}));

INSTANTIATE_TEST_SUITE_P(Reductions, InferTest,
                         testing::Values(Case{"sum", {"f16[2,3,4]"}, {}, "f16[]"},
                                         Case{"sum", {"u8[2,3,4]"}, Axes({-1, 0}), "i64[3]"},
                                         Case{"sum", {"bool[2,3]"}, Axes({1}, true), "i64[2,1]"},
                                         Case{"sum", {"f32[3,0,2]"}, Axes({1}), "f32[3,2]"},
                                         Case{"mean", {"f32[0]"}, {}, "f32[]"},
                                         Case{"norm", {"f64[]"}, {}, "f64[]"},
                                         Case{"max", {"i32[3,0,2]"}, Axes({0}), "i32[0,2]"},
                                         Case{"argmax", {"f32[5,7]"}, Axes({-1}), "i64[5]"},
                                         Case{"argmax", {"f32[5,7]"}, Axes({}, true), "i64[1,1]"}));

INSTANTIATE_TEST_SUITE_P(
    Moves, InferTest,
    testing::Values(Case{"transpose", {"f32[2,3,4]"}, {}, "f32[4,3,2]"},
                    Case{"transpose", {"f32[2,3,4]"}, Axes({0, -1, 1}), "f32[2,4,3]"},
                    Case{"reshape", {"f32[2,6]"}, ShapeIs({3, -1}), "f32[3,4]"},
                    Case{"reshape", {"f32[1]"}, ShapeIs({}), "f32[]"},
                    Case{"reshape", {"f32[0,4]"}, ShapeIs({2, -1}), "f32[2,0]"},
                    Case{"slice", {"f32[10,4]"}, Range({-3, kMin}, {kMax, -1}), "f32[3,3]"},
                    Case{"slice", {"f32[10]"}, Range({7}, {3}), "f32[0]"},
                    Case{"slice", {"f32[]"}, {}, "f32[]"},
                    Case{"concat", {"f32[2,3]", "f32[0,3]", "f32[5,3]"}, {}, "f32[7,3]"},
                    Case{"concat", {"i32[2,3]", "i32[2,1]"}, Axes({-1}), "i32[2,4]"},
                    Case{"concat", {"u8[3]"}, {}, "u8[3]"}));

class RefusedTest : public testing::TestWithParam<Case> {};

TEST_P(RefusedTest, SaysWhatAndWhy) {
  const auto spec = Infer(GetParam().op, GetParam().inputs, GetParam().attributes);
  ASSERT_FALSE(spec.ok()) << spec->ToString();
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(spec.status().message());
  EXPECT_NE(message.find(GetParam().result), std::string::npos) << message;
  EXPECT_NE(message.find(GetParam().op), std::string::npos) << message;
  for (const std::string& input : GetParam().inputs) {
    EXPECT_NE(message.find(input), std::string::npos) << message;
  }
  const auto details = DetailsOf(spec.status());
  ASSERT_TRUE(details.has_value());
  EXPECT_TRUE(details->reason == ErrorReason::kShapeMismatch ||
              details->reason == ErrorReason::kDtypeUnsupported);
}

INSTANTIATE_TEST_SUITE_P(
    Inputs, RefusedTest,
    testing::Values(Case{"add", {"f32[2]"}, {}, "takes 2 inputs and was given 1"},
                    Case{"exp", {"f32[2]", "f32[2]"}, {}, "takes 1 input and was given 2"},
                    Case{"dense", {"f32[2]"}, {}, "2 to 3 inputs"},
                    Case{"concat", {}, {}, "was given 0"},
                    Case{"add", {"f32[2]", "f64[2]"}, {}, "cast one of them to f32"},
                    Case{"add", {"bool[2]", "bool[2]"}, {}, "it takes f32"},
                    Case{"matmul", {"i32[2,2]", "i32[2,2]"}, {}, "it takes f32"},
                    Case{"neg", {"u8[2]"}, {}, "it takes f32"},
                    Case{"mean", {"i32[2]"}, {}, "it takes f32"},
                    Case{"concat", {"f32[2]", "i32[2]"}, {}, "cast one of them"}));

INSTANTIATE_TEST_SUITE_P(
    ProductShapes, RefusedTest,
    testing::Values(
        Case{"matmul", {"f32[2,3]", "f32[4,5]"}, {}, "inner sizes 3 and 4 differ"},
        Case{"matmul", {"f32[3]", "f32[3,5]"}, {}, "2 dimensions or more"},
        Case{"matmul", {"f32[2,2,3]", "f32[3,3,5]"}, {}, "batch dimensions"},
        Case{"matmul",
             {"f32[2,3]", "f32[3,5]"},
             Transposed(true, false),
             "a is f32[2,3] transposed"},
        Case{"matmul", {"f32[1073741824,0]", "f32[0,1073741824]"}, {}, "more than"},
        Case{"dense", {"f32[]", "f32[1,1]"}, {}, "1 dimension or more"},
        Case{"dense", {"f32[2,3]", "f32[3]"}, {}, "w needs 2 dimensions"},
        Case{"dense", {"f32[2,3]", "f32[3,4]", "f32[3]"}, {}, "b needs the shape [4]"},
        Case{"dense", {"f32[2,3]", "f32[3,4]", "f32[1,4]"}, {}, "b needs the shape [4]"}));

INSTANTIATE_TEST_SUITE_P(
    Shapes, RefusedTest,
    testing::Values(Case{"add", {"f32[2,3]", "f32[2,4]"}, {}, "sizes are 3 and 4"},
                    Case{"add", {"f32[0]", "f32[3]"}, {}, "sizes are 0 and 3"},
                    Case{"mul", {"f32[1073741824,1]", "f32[1,1073741824]"}, {}, "too large"},
                    Case{"softmax", {"f32[]"}, {}, "0 dimensions"},
                    Case{"softmax", {"f32[2,3]"}, Axes({0, 1}), "give one"},
                    Case{"transpose", {"f32[2,3]"}, Axes({0}), "name each axis once"},
                    Case{"transpose", {"f32[2,3]"}, Axes({1, 1}), "twice"},
                    Case{"reshape", {"f32[2,3]"}, ShapeIs({4}), "6 elements and would need 4"},
                    Case{"reshape", {"f32[2,3]"}, ShapeIs({4, -1}), "evenly"},
                    Case{"reshape", {"f32[0,3]"}, ShapeIs({0, -1}), "evenly"},
                    Case{"slice", {"f32[2,3]"}, Range({0}, {1}), "one of each per axis"},
                    Case{"slice", {"f32[2,3]"}, Range({0, 0}, {1}), "one of each per axis"},
                    Case{"concat", {"f32[]", "f32[]"}, {}, "reshape them to [1]"},
                    Case{"concat", {"f32[2,3]", "f32[2,4]"}, {}, "all other axes must agree"},
                    Case{"concat", {"f32[2,3]", "f32[2]"}, {}, "all other axes must agree"}));

INSTANTIATE_TEST_SUITE_P(EmptyAxes, RefusedTest,
                         testing::Values(Case{"max", {"f32[0]"}, {}, "axis 0 is empty"},
                                         Case{"max", {"f32[3,0,2]"}, Axes({1}), "axis 1 is empty"},
                                         Case{"argmax", {"f32[0]"}, {}, "axis 0 is empty"},
                                         Case{"argmax", {"f32[2,3]"}, Axes({0, 1}), "give one"}));

INSTANTIATE_TEST_SUITE_P(
    HostileAttributes, RefusedTest,
    testing::Values(Case{"full", {}, ShapeIs({-1}), "negative"},
                    Case{"full",
                         {},
                         ShapeIs({int64_t{1} << 31, int64_t{1} << 31, int64_t{1} << 31}),
                         "more than"},
                    Case{"full", {}, ShapeIs({(int64_t{1} << 62) + 2}), "more than"},
                    Case{"full", {}, ShapeIs(IntList(9, 1)), "the limit is 8"},
                    Case{"full", {}, ShapeIs(IntList(100000, 1)), "100000 in all"},
                    Case{"eye", {}, ShapeIs({3}), "2 or more"},
                    Case{"uniform", {}, ShapeIs({3}, DType::kI32), "can't make i32[3]"},
                    Case{"arange", {}, ShapeIs({3}, DType::kBool), "can't make bool[3]"},
                    Case{"cast", {"f32[3]"}, {}, "set the dtype"},
                    Case{"sum", {"f32[2,3]"}, Axes({kMin}), "out of range"},
                    Case{"sum", {"f32[2,3]"}, Axes({kMax}), "out of range"},
                    Case{"sum", {"f32[2,3]"}, Axes({2}), "axes -2 to 1"},
                    Case{"sum", {"f32[2,3]"}, Axes({0, -2}), "twice"},
                    Case{"sum", {"f32[2,3]"}, Axes(IntList(100000, 0)), "100000 in all"},
                    Case{"concat", {"f32[2,3]"}, Axes({kMin}), "out of range"},
                    Case{"transpose", {"f32[2,3]"}, Axes({kMin, 0}), "out of range"},
                    Case{"reshape", {"f32[2,3]"}, ShapeIs({-1, -1}), "only one size"},
                    Case{"reshape", {"f32[2,3]"}, ShapeIs({kMin}), "negative"},
                    Case{"reshape", {"f32[2,3]"}, ShapeIs({-1, kMax}), "more than"},
                    Case{"reshape", {"f32[2,3]"}, ShapeIs(IntList(100000, 1)), "100000 in all"}));

TEST(OpTable, IsFoundByNameAndByCode) {
  std::set<std::string> names;
  for (const OpDef& op : AllOps()) {
    EXPECT_EQ(FindOp(op.name), &op);
    EXPECT_EQ(&GetOp(op.code), &op);
    EXPECT_TRUE(names.insert(std::string(op.name)).second) << op.name;
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(kOpCount));
}

TEST(OpTable, UnknownNamesAreNotFound) {
  EXPECT_EQ(FindOp(""), nullptr);
  EXPECT_EQ(FindOp("Add"), nullptr);
  EXPECT_EQ(FindOp("add "), nullptr);
  EXPECT_EQ(FindOp(std::string(1 << 20, 'a')), nullptr);
}

TEST(OpTable, EveryEntryTellsPeopleWhatItDoes) {
  for (const OpDef& op : AllOps()) {
    EXPECT_FALSE(op.result.empty()) << op.name;
    EXPECT_FALSE(op.error_bound.empty()) << op.name;
    EXPECT_FALSE(op.dtypes.ToString().empty()) << op.name;
    EXPECT_LE(op.inputs_min, op.inputs_max) << op.name;
  }
}

TEST(OpTable, ConcatOfHugeEmptyTensorsDoesNotOverflow) {
  // Each is allowed, having no elements; the sum of 65536 such axes would wrap around.
  const std::vector<TensorSpec> inputs(kConcatInputsMax, Spec("f32[1000000000000000000,0]"));
  const auto spec = InferSpec(OpCode::kConcat, inputs, {});
  ASSERT_FALSE(spec.ok());
  EXPECT_NE(std::string(spec.status().message()).find("too large"), std::string::npos);
}

TEST(OpTable, ConcatBoundsItsInputs) {
  const std::vector<TensorSpec> most(kConcatInputsMax, Spec("f32[1]"));
  EXPECT_TRUE(InferSpec(OpCode::kConcat, most, {}).ok());
  const std::vector<TensorSpec> too_many(kConcatInputsMax + 1, Spec("f32[1]"));
  EXPECT_FALSE(InferSpec(OpCode::kConcat, too_many, {}).ok());
}

TEST(OpTable, SliceClipsAsNumPyDoes) {
  struct Clip {
    int64_t start, stop, expected_start, expected_size;
  };
  // What x[start:stop] takes of ten elements.
  constexpr Clip kClips[] = {{0, 10, 0, 10},   {2, 5, 2, 3},        {-3, 10, 7, 3},
                             {-100, 4, 0, 4},  {8, 100, 8, 2},      {5, 5, 5, 0},
                             {7, 3, 7, 0},     {kMin, kMax, 0, 10}, {kMax, kMin, 10, 0},
                             {-1, kMax, 9, 1}, {0, -1, 0, 9},       {10, 20, 10, 0}};
  for (const Clip& clip : kClips) {
    const SliceRange range = ResolveSlice(Shape::Of({10}), Range({clip.start}, {clip.stop}), 0);
    EXPECT_EQ(range.start, clip.expected_start) << clip.start << ":" << clip.stop;
    EXPECT_EQ(range.size, clip.expected_size) << clip.start << ":" << clip.stop;
  }
}

TEST(OpTable, FlopsCountAMultiplyAddAsTwo) {
  const auto flops = [](OpCode code, std::vector<TensorSpec> inputs,
                        const OpAttributes& attributes) {
    return GetOp(code).flops(inputs, *InferSpec(code, inputs, attributes), attributes);
  };
  EXPECT_EQ(flops(OpCode::kMatMul, {Spec("f32[5,7,11]"), Spec("f32[11,13]")}, {}),
            2.0 * 5 * 7 * 11 * 13);
  EXPECT_EQ(
      flops(OpCode::kMatMul, {Spec("f32[11,7]"), Spec("f32[11,13]")}, Transposed(true, false)),
      2.0 * 7 * 11 * 13);
  EXPECT_EQ(flops(OpCode::kDense, {Spec("f32[3,4]"), Spec("f32[4,5]"), Spec("f32[5]")}, {}),
            15.0 * (2 * 4 + 1));
  EXPECT_EQ(flops(OpCode::kExp, {Spec("f32[6]")}, {}), 60.0);
  EXPECT_EQ(flops(OpCode::kSum, {Spec("f32[6]")}, {}), 6.0);
  EXPECT_EQ(flops(OpCode::kReshape, {Spec("f32[6]")}, ShapeIs({2, 3})), 0.0);
}

TEST(OpTable, FlopsOfTheLargestShapesDoNotOverflow) {
  const std::vector<TensorSpec> inputs = {Spec("f32[1000000000,1000000000]"),
                                          Spec("f32[1000000000,1000000000]")};
  const auto spec = InferSpec(OpCode::kMatMul, inputs, {});
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(GetOp(OpCode::kMatMul).flops(inputs, *spec, {}), 2e27);
}

TEST(OpTable, BytesAreThoseOfInputsAndOutput) {
  const std::vector<TensorSpec> inputs = {Spec("f32[10]"), Spec("f32[]")};
  EXPECT_EQ(OpBytes(inputs, Spec("f32[10]")), 84.0);
}

TEST(OpTable, AxesComeSortedAndNonNegative) {
  EXPECT_EQ(*NormalizeAxes(std::vector<int64_t>{-1, 0}, 3), (IntList{0, 2}));
  EXPECT_EQ(*NormalizeAxes({}, 3), (IntList{0, 1, 2}));
  EXPECT_EQ(*NormalizeAxes({}, 0), IntList());
}

}  // namespace
}  // namespace devserver
