// Every op, on every dtype it takes, on every backend, against the oracle with the bound that the
// op table states. To add an op: its rows in op_cases.cc and its definition in oracle.cc. To add a
// backend: an entry in backends.cc.
//
// ctest: timeout=120
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>

#include "absl/strings/str_format.h"
#include "tests/conformance/backends.h"
#include "tests/conformance/op_cases.h"
#include "tests/conformance/oracle.h"

namespace devserver::conformance {
namespace {

constexpr uint64_t kSeed = 20260611;

struct OpTarget {
  Backend backend;
  OpCode code;
  DType dtype;
};

void PrintTo(const OpTarget& target, std::ostream* out) {
  *out << GetOp(target.code).name << " of " << DTypeName(target.dtype) << " on "
       << target.backend.name;
}

std::vector<OpTarget> AllTargets() {
  std::vector<OpTarget> targets;
  for (const Backend& backend : AllBackends()) {
    for (const OpDef& op : AllOps()) {
      for (const DType dtype : kAllDTypes) {
        if (op.dtypes.Contains(dtype)) {
          targets.push_back({backend, op.code, dtype});
        }
      }
    }
  }
  return targets;
}

std::string TargetName(const testing::TestParamInfo<OpTarget>& info) {
  return absl::StrFormat("%s_%s_%s", GetOp(info.param.code).name, DTypeName(info.param.dtype),
                         info.param.backend.name);
}

// The first element of `result` that the oracle refuses, as text; empty if there is none. Looks at
// `elements` only.
std::string FirstMistake(const OpCase& test, std::span<const HostTensor> inputs,
                         const OpAttributes& attributes, const HostTensor& result,
                         std::span<const int64_t> elements) {
  for (const int64_t i : elements) {
    const Expected expected = Evaluate(test.code, inputs, attributes, result.spec, i);
    const std::string mistake = Judge(expected, result.At(i), result.spec.dtype);
    if (!mistake.empty()) {
      std::string operands;
      for (const HostTensor& input : inputs) {
        operands += input.count() == result.count() ? absl::StrFormat(" %.9g", input.At(i)) : "";
      }
      return absl::StrFormat("element %d of %s: %s; operands%s", i, result.spec.ToString(), mistake,
                             operands);
    }
  }
  return "";
}

class OpSuite : public testing::TestWithParam<OpTarget> {
 protected:
  void SetUp() override {
    device_ = SharedDevice(GetParam().backend);
    if (device_ == nullptr) {
      const absl::Status error = OpenError(GetParam().backend);
      ASSERT_TRUE(absl::IsUnavailable(error)) << error;
      GTEST_SKIP() << error;
    }
    if (!device_->Supports(GetParam().code, GetParam().dtype)) {
      GTEST_SKIP() << "not supported by this device, which ListOps tells";
    }
    used_before_ = device_->memory().used_bytes;
  }
  void TearDown() override {
    if (device_ != nullptr) {
      EXPECT_EQ(device_->memory().used_bytes, used_before_);
    }
  }

  Device* device_ = nullptr;
  uint64_t used_before_ = 0;
};

TEST_P(OpSuite, ResultIsWithinTheBound) {
  const auto& [backend, code, dtype] = GetParam();
  uint64_t seed = kSeed;
  for (const OpCase& test : CasesOf(code, dtype)) {
    SCOPED_TRACE(testing::Message() << test.ToString() << ", seed of the inputs " << ++seed);
    const std::vector<HostTensor> inputs = MakeInputs(test, dtype, seed);
    const OpAttributes attributes = MakeAttributes(test, dtype);
    const auto result = RunOnDevice(*device_, code, inputs, attributes);
    ASSERT_TRUE(result.ok()) << result.status();
    std::vector<int64_t> elements(static_cast<size_t>(result->count()));
    std::iota(elements.begin(), elements.end(), 0);
    ASSERT_EQ(FirstMistake(test, inputs, attributes, *result, elements), "");
  }
}

INSTANTIATE_TEST_SUITE_P(All, OpSuite, testing::ValuesIn(AllTargets()), TargetName);

class BackendOps : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    device_ = SharedDevice(GetParam());
    if (device_ == nullptr) {
      GTEST_SKIP() << OpenError(GetParam());
    }
  }

  // Runs `test` and judges a hundred elements of its result.
  void CheckSampled(const OpCase& test, DType dtype) {
    SCOPED_TRACE(testing::Message() << test.ToString() << ", seed " << kSeed);
    const std::vector<HostTensor> inputs = MakeInputs(test, dtype, kSeed);
    const OpAttributes attributes = MakeAttributes(test, dtype);
    const auto result = RunOnDevice(*device_, test.code, inputs, attributes);
    ASSERT_TRUE(result.ok()) << result.status();
    std::vector<int64_t> elements = {0, result->count() - 1};
    std::mt19937_64 random(kSeed);
    while (elements.size() < static_cast<size_t>(std::min<int64_t>(result->count(), 100))) {
      elements.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(result->count())));
    }
    EXPECT_EQ(FirstMistake(test, inputs, attributes, *result, elements), "");
  }

  Device* device_ = nullptr;
};

TEST_P(BackendOps, LargeProductsStayWithinTheBound) {
  // Past the size where plain f32 products take another road and more threads, with no size a
  // multiple of 16.
  OpAttributes transposed;
  transposed.transpose_a = transposed.transpose_b = true;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    CheckSampled({OpCode::kMatMul, {{513, 530}, {530, 519}}, {}}, dtype);
    CheckSampled({OpCode::kMatMul, {{530, 513}, {519, 530}}, transposed}, dtype);
    CheckSampled({OpCode::kDense, {{300, 521}, {521, 517}, {517}}, {}}, dtype);
  }
  CheckSampled({OpCode::kMatMul, {{2, 513, 530}, {2, 530, 519}}, {}}, DType::kF32);
}

TEST_P(BackendOps, LongSumsStayWithinTheBound) {
  for (const OpCode code : {OpCode::kSum, OpCode::kMean, OpCode::kNorm, OpCode::kMax}) {
    CheckSampled({code, {{1000003}}, {}}, DType::kF32);
    CheckSampled({code, {{100003}}, {}}, DType::kF16);
  }
}

TEST_P(BackendOps, LargeElementwiseOpsStayWithinTheBound) {
  // Enough work for several threads, in chunks that do not come out even.
  CheckSampled({OpCode::kExp, {{5000017}}, {}}, DType::kF32);
  CheckSampled({OpCode::kSoftmax, {{3571, 1009}}, {}}, DType::kF32);
  OpCase normal = {OpCode::kNormal, {}, {}};
  normal.attributes.shape = {1300021};
  CheckSampled(normal, DType::kF32);
}

TEST_P(BackendOps, ElementsOfEveryBitPatternMoveUnchanged) {
  // Subnormal numbers and NaN payloads, which arithmetic may change.
  HostTensor input({DType::kF16, Shape::Of({256, 256})});
  for (size_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    std::memcpy(&input.bytes[2 * i], &bits, 2);
  }
  OpAttributes there;
  there.axes = {1, 0};
  const auto moved = RunOnDevice(*device_, OpCode::kTranspose, {&input, 1}, there);
  ASSERT_TRUE(moved.ok()) << moved.status();
  const auto back = RunOnDevice(*device_, OpCode::kTranspose, {&*moved, 1}, there);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->bytes, input.bytes);
  EXPECT_NE(moved->bytes, input.bytes);
}

INSTANTIATE_TEST_SUITE_P(All, BackendOps,
                         testing::ValuesIn(AllBackends().begin(), AllBackends().end()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Backends, RandomNumbersAreTheSameBitsOnAllOfThem) {
  for (const OpCode code : {OpCode::kUniform, OpCode::kNormal}) {
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
      OpAttributes attributes;
      attributes.shape = {100003};
      attributes.dtype = dtype;
      attributes.seed = 1234567;
      std::vector<std::byte> first;
      for (const Backend& backend : AllBackends()) {
        Device* const device = SharedDevice(backend);
        if (device == nullptr) {
          continue;
        }
        const auto result = RunOnDevice(*device, code, {}, attributes);
        ASSERT_TRUE(result.ok()) << result.status();
        first = first.empty() ? result->bytes : first;
        EXPECT_EQ(result->bytes, first) << backend.name << " " << DTypeName(dtype);
      }
    }
  }
}

}  // namespace
}  // namespace devserver::conformance
