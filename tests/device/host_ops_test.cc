// What RunHostOp promises beside the results, which tests/conformance/ checks.
#include "server/device/cpu/host_ops.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace devserver {
namespace {

HostMemory& Host() {
  static auto* const host = new HostMemory(uint64_t{1} << 30);
  return *host;
}

struct Floats {
  TensorSpec spec;
  std::vector<float> values;

  Floats(std::initializer_list<int64_t> dims, float value)
      : spec{DType::kF32, Shape::Of(dims)},
        values(static_cast<size_t>(spec.shape.element_count()), value) {}
  OpInput input() const { return {&spec, reinterpret_cast<const std::byte*>(values.data())}; }
  std::byte* data() { return reinterpret_cast<std::byte*>(values.data()); }
};

TEST(HostOps, ComputeThreadsFlushSubnormalNumbers) {
  Floats x({4}, 1e-20f);
  Floats result({4}, 1);
  std::thread compute([&] {
    HostMath math(1, &Host());
    const OpInput inputs[] = {x.input(), x.input()};
    const OpAttributes none;
    EXPECT_TRUE(RunHostOp({OpCode::kMul, inputs, &result.spec, result.data(), &none}, math).ok());
  });
  compute.join();
  EXPECT_EQ(result.values, std::vector<float>(4, 0.0f));
}

TEST(HostOps, MoreProductShapesThanAreKeptStillCompute) {
  HostMath math(1, &Host());
  const OpAttributes none;
  for (int round = 0; round < 2; ++round) {
    for (int64_t n = 1; n <= 300; ++n) {
      const Floats a({1, n}, 2);
      const Floats b({n, 1}, 3);
      Floats result({1, 1}, 0);
      const OpInput inputs[] = {a.input(), b.input()};
      ASSERT_TRUE(
          RunHostOp({OpCode::kMatMul, inputs, &result.spec, result.data(), &none}, math).ok());
      ASSERT_EQ(result.values[0], 6.0f * static_cast<float>(n));
    }
  }
}

TEST(HostOps, HostMathMayEndOnAnotherThreadThanItWorkedOn) {
  // oneDNN's own scratch memory belongs to a thread; ours must not (a leak under AddressSanitizer).
  auto math = std::make_unique<HostMath>(1, &Host());
  std::thread compute([&] {
    const Floats a({300, 300}, 1);
    Floats result({300, 300}, 0);
    const OpInput inputs[] = {a.input(), a.input()};
    const OpAttributes none;
    EXPECT_TRUE(
        RunHostOp({OpCode::kMatMul, inputs, &result.spec, result.data(), &none}, *math).ok());
    EXPECT_EQ(result.values[0], 300.0f);
  });
  compute.join();
  math.reset();
}

TEST(HostOps, ScratchBeyondTheHostsBudgetIsRefusedAndGivenBack) {
  HostMemory host(100'000);
  HostMath math(1, &host);
  const OpAttributes none;
  const auto multiply = [&](int64_t n) {
    const TensorSpec spec = {DType::kBF16, Shape::Of({n, n})};
    const std::vector<std::byte> a(spec.size_bytes());
    std::vector<std::byte> result(spec.size_bytes());
    const OpInput inputs[] = {{&spec, a.data()}, {&spec, a.data()}};
    return RunHostOp({OpCode::kMatMul, inputs, &spec, result.data(), &none}, math);
  };
  EXPECT_TRUE(multiply(50).ok());  // three f32 copies of 10 KB
  const absl::Status refused = multiply(200);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_TRUE(multiply(60).ok());
  EXPECT_LE(host.used_bytes(), 100'000u);
}

TEST(HostOps, SmallOpsUseOneThread) {
  HostMath math(8, &Host());
  EXPECT_EQ(math.ThreadsFor(2.0 * 100 * 100 * 100), 1);
  EXPECT_EQ(math.ThreadsFor(2.0 * 2048 * 2048 * 2048), 8);
}

TEST(HostOps, OperandsMayBeTheSameBuffer) {
  HostMath math(1, &Host());
  const Floats x({100}, 1.5f);
  Floats result({100}, 0);
  const OpInput inputs[] = {x.input(), x.input()};
  const OpAttributes none;
  ASSERT_TRUE(RunHostOp({OpCode::kAdd, inputs, &result.spec, result.data(), &none}, math).ok());
  EXPECT_EQ(result.values, std::vector<float>(100, 3.0f));
}

}  // namespace
}  // namespace devserver
