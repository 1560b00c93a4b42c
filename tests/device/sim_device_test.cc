#include "server/device/sim/sim_device.h"

#include <gtest/gtest.h>

#include <chrono>

#include "server/device/sim/fabric_links.h"

namespace devserver {
namespace {

constexpr uint64_t kMiB = 1 << 20;

SimDevice::Options Options(const char* name, const char* model) {
  SimDevice::Options options;
  options.name = name;
  options.model = FindGpuModel(model);
  return options;
}

// Runs `code` on uninitialised operands: only its cost is looked at.
void RunOp(SimDevice& device, OpCode code, std::vector<TensorSpec> specs,
           const OpAttributes& attributes = {}) {
  std::vector<DeviceBuffer> buffers;
  std::vector<OpInput> inputs;
  for (const TensorSpec& spec : specs) {
    buffers.push_back(*device.Allocate(spec.size_bytes()));
    std::fill_n(buffers.back().data(), spec.size_bytes(), std::byte{0});
    inputs.push_back({&spec, buffers.back().data()});
  }
  const TensorSpec output = *InferSpec(code, specs, attributes);
  const DeviceBuffer result = *device.Allocate(output.size_bytes());
  ASSERT_TRUE(device.Run({code, inputs, &output, result.data(), &attributes}).ok());
}

TEST(GpuModels, AreFoundByNameAndPrefixInAnyCase) {
  EXPECT_EQ(FindGpuModel("V100-SXM2-16GB"), FindGpuModel("v100"));
  EXPECT_EQ(FindGpuModel("H100-SXM5"), FindGpuModel("H100"));
  for (const char* name : {"V100", "A100", "H100", "H200", "L4", "T4"}) {
    EXPECT_NE(FindGpuModel(name), nullptr) << name;
  }
  EXPECT_NE(FindGpuModel("H100"), FindGpuModel("H200"));
  EXPECT_EQ(FindGpuModel("L4")->name, "L4");
  EXPECT_EQ(FindGpuModel(""), nullptr);
  EXPECT_EQ(FindGpuModel("V1000"), nullptr);
  EXPECT_EQ(FindGpuModel("RTX"), nullptr);
  EXPECT_NE(GpuModelNames().find("A100-SXM4-80GB"), std::string::npos);
}

TEST(GpuModels, FiguresAreInTheOrderThatGenerationsAre) {
  const GpuModel& v100 = *FindGpuModel("V100");
  const GpuModel& a100 = *FindGpuModel("A100");
  const GpuModel& h100 = *FindGpuModel("H100");
  EXPECT_LT(v100.memory_bytes_per_second, a100.memory_bytes_per_second);
  EXPECT_LT(a100.memory_bytes_per_second, h100.memory_bytes_per_second);
  EXPECT_LT(v100.FlopsFor(DType::kF32), a100.FlopsFor(DType::kF32));
  EXPECT_LT(a100.FlopsFor(DType::kBF16), h100.FlopsFor(DType::kBF16));
  EXPECT_EQ(v100.FlopsFor(DType::kBF16), v100.FlopsFor(DType::kF32)) << "no bf16 hardware";
  EXPECT_EQ(v100.FlopsFor(DType::kI64), v100.FlopsFor(DType::kF32));
}

TEST(SimDevice, HasTheModelsMemoryUnlessConfiguredSmaller) {
  HostMemory host(kMiB);
  SimDevice::Options options = Options("gpu:0", "V100");
  EXPECT_EQ(SimDevice(options, &host).properties().memory_limit_bytes, 16160 * kMiB);
  options.memory_limit_bytes = 256 * kMiB;
  EXPECT_EQ(SimDevice(options, &host).properties().memory_limit_bytes, 256 * kMiB);
  options.memory_limit_bytes = ~uint64_t{0};
  EXPECT_EQ(SimDevice(options, &host).properties().memory_limit_bytes, 16160 * kMiB);
}

TEST(SimDevice, KeepsItsUuidOverRestarts) {
  HostMemory host(kMiB);
  const std::string uuid = SimDevice(Options("gpu:1", "T4"), &host).properties().uuid;
  EXPECT_EQ(uuid, SimDevice(Options("gpu:1", "T4"), &host).properties().uuid);
  EXPECT_NE(uuid, SimDevice(Options("gpu:2", "T4"), &host).properties().uuid);
  EXPECT_TRUE(uuid.starts_with("GPU-SIM-"));
}

TEST(SimDevice, ComputeBoundOpCostsItsFlopsAtThePeak) {
  HostMemory host(64 * kMiB);
  SimDevice device(Options("gpu:0", "V100"), &host);
  const TensorSpec matrix = {DType::kF32, Shape::Of({512, 512})};
  RunOp(device, OpCode::kMatMul, {matrix, matrix});
  EXPECT_NEAR(device.simulated_seconds(), 3.8e-6 + 2.0 * 512 * 512 * 512 / 15.7e12, 1e-12);
}

TEST(SimDevice, MemoryBoundOpCostsItsBytesAtTheBandwidth) {
  HostMemory host(64 * kMiB);
  SimDevice device(Options("gpu:0", "V100"), &host);
  const TensorSpec vector = {DType::kF32, Shape::Of({1 << 20})};
  RunOp(device, OpCode::kAdd, {vector, vector});
  EXPECT_NEAR(device.simulated_seconds(), 3.8e-6 + 12.0 * (1 << 20) / 900e9, 1e-12);
}

TEST(SimDevice, SliceCostsOnlyWhatItKeeps) {
  HostMemory host(64 * kMiB);
  SimDevice device(Options("gpu:0", "V100"), &host);
  OpAttributes attributes;
  attributes.starts = {0};
  attributes.stops = {1000};
  RunOp(device, OpCode::kSlice, {{DType::kF32, Shape::Of({1 << 20})}}, attributes);
  EXPECT_NEAR(device.simulated_seconds(), 3.8e-6 + 8000 / 900e9, 1e-12);
}

TEST(SimDevice, ClockAddsUpOpsAndCopies) {
  HostMemory host(64 * kMiB);
  SimDevice device(Options("gpu:0", "A100"), &host);
  const TensorSpec vector = {DType::kF32, Shape::Of({16})};
  RunOp(device, OpCode::kAdd, {vector, vector});
  const double once = device.simulated_seconds();
  RunOp(device, OpCode::kAdd, {vector, vector});
  EXPECT_DOUBLE_EQ(device.simulated_seconds(), 2 * once);
  device.AdvanceClock(0.25);
  EXPECT_DOUBLE_EQ(device.simulated_seconds(), 2 * once + 0.25);
}

TEST(SimDevice, PacedCallsTakeAsLongAsModelled) {
  HostMemory host(64 * kMiB);
  SimDevice::Options options = Options("gpu:0", "T4");
  options.paced = true;
  SimDevice device(options, &host);
  const TensorSpec vector = {DType::kF32, Shape::Of({1000})};
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 100; ++i) {
    RunOp(device, OpCode::kReshape, {vector}, [] {
      OpAttributes attributes;
      attributes.shape = {10, 100};
      return attributes;
    }());
  }
  device.AdvanceClock(0.002);
  ASSERT_TRUE(device.Synchronize().ok());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_GE(took.count(), device.simulated_seconds());
}

TEST(SimDevice, PowerLimitIsKnownAndPowerIsNot) {
  HostMemory host(kMiB);
  const Telemetry telemetry = SimDevice(Options("gpu:0", "L4"), &host).telemetry();
  EXPECT_EQ(telemetry.power_limit_watts, 72);
  EXPECT_EQ(telemetry.power_watts, std::nullopt);
  EXPECT_EQ(telemetry.temperature_celsius, std::nullopt);
}

TEST(SimulatedLinks, NvlinkJoinsGpusThatHaveIt) {
  HostMemory host(kMiB);
  const SimDevice first(Options("gpu:0", "V100"), &host);
  const SimDevice second(Options("gpu:1", "V100"), &host);
  const SimDevice* const devices[] = {&first, &second};
  Fabric fabric;
  AddSimulatedLinks(devices, fabric);
  const Quote peer = fabric.QuoteCopy("gpu:0", "gpu:1", 50'000'000);
  ASSERT_EQ(peer.legs.size(), 1u);
  EXPECT_EQ(peer.legs[0].medium, Medium::kNvlink);
  EXPECT_NEAR(peer.estimated.seconds, 10e-6 + 1e-3, 1e-9);
  EXPECT_TRUE(peer.simulated);
  EXPECT_EQ(peer.estimated.basis, Basis::kConfigured);
  const Quote upload = fabric.QuoteCopy("cpu:0", "gpu:1", 15'750'000);
  EXPECT_EQ(upload.legs[0].medium, Medium::kPcie);
  EXPECT_NEAR(upload.estimated.seconds, 10e-6 + 1e-3, 1e-9);
  const Quote within = fabric.QuoteCopy("gpu:0", "gpu:0", 450'000'000);
  EXPECT_EQ(within.legs[0].medium, Medium::kMemory);
  EXPECT_NEAR(within.estimated.seconds, 3.8e-6 + 1e-3, 1e-9);
}

TEST(SimulatedLinks, GpusWithoutNvlinkMeetOverTheHost) {
  HostMemory host(kMiB);
  const SimDevice first(Options("gpu:0", "T4"), &host);
  const SimDevice second(Options("gpu:1", "T4"), &host);
  const SimDevice* const devices[] = {&first, &second};
  Fabric fabric;
  AddSimulatedLinks(devices, fabric);
  const Quote quote = fabric.QuoteCopy("gpu:0", "gpu:1", 1000);
  ASSERT_EQ(quote.legs.size(), 2u);
  EXPECT_EQ(quote.legs[0].target, "cpu:0");
  EXPECT_TRUE(quote.simulated);
}

}  // namespace
}  // namespace devserver
