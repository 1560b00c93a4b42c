#include "server/device/discover.h"

#include <gtest/gtest.h>

namespace devserver {
namespace {

constexpr uint64_t kMiB = 1 << 20;

TEST(Discover, OpensTheCpuFirstThenTheSimulatedGpus) {
  HostMemory host(64 * kMiB);
  DeviceConfig config;
  config.sim_model = "T4";
  config.sim_count = 2;
  const auto devices = OpenDevices(config, &host);
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_EQ(devices->size(), 3u);
  EXPECT_EQ((*devices)[0]->properties().name, "cpu:0");
  EXPECT_EQ((*devices)[0]->properties().kind, DeviceKind::kCpu);
  EXPECT_EQ((*devices)[0]->properties().memory_limit_bytes, 64 * kMiB);
  EXPECT_EQ((*devices)[1]->properties().name, "gpu:0");
  EXPECT_EQ((*devices)[2]->properties().name, "gpu:1");
  EXPECT_EQ((*devices)[2]->properties().kind, DeviceKind::kSimulated);
  EXPECT_EQ((*devices)[2]->properties().model, "Tesla T4");
}

TEST(Discover, LimitsAreTheConfigured) {
  HostMemory host(64 * kMiB);
  DeviceConfig config;
  config.cpu_memory_limit_bytes = 5 * kMiB;
  config.sim_count = 1;
  config.sim_memory_limit_bytes = 7 * kMiB;
  const auto devices = OpenDevices(config, &host);
  ASSERT_TRUE(devices.ok()) << devices.status();
  EXPECT_EQ((*devices)[0]->properties().memory_limit_bytes, 5 * kMiB);
  EXPECT_EQ((*devices)[1]->properties().memory_limit_bytes, 7 * kMiB);
}

TEST(Discover, UnknownModelIsRefusedWithTheList) {
  HostMemory host(kMiB);
  DeviceConfig config;
  config.sim_model = "GTX-9000";
  config.sim_count = 1;
  const auto devices = OpenDevices(config, &host);
  ASSERT_TRUE(absl::IsInvalidArgument(devices.status()));
  const std::string message(devices.status().message());
  EXPECT_NE(message.find("GTX-9000"), std::string::npos) << message;
  EXPECT_NE(message.find("H100-SXM5"), std::string::npos) << message;
}

TEST(Discover, CountsOutOfRangeAreRefused) {
  HostMemory host(kMiB);
  DeviceConfig config;
  config.sim_count = kSimulatedDevicesMax + 1;
  EXPECT_TRUE(absl::IsInvalidArgument(OpenDevices(config, &host).status()));
  config.sim_count = -1;
  EXPECT_TRUE(absl::IsInvalidArgument(OpenDevices(config, &host).status()));
  config.sim_count = 0;
  config.cpu_threads = -1;
  EXPECT_TRUE(absl::IsInvalidArgument(OpenDevices(config, &host).status()));
}

TEST(Discover, HostMemoryLimitDefaultsToPartOfTheMachine) {
  DeviceConfig config;
  EXPECT_GT(HostMemoryLimit(config), 100 * kMiB);
  config.host_memory_limit_bytes = 3 * kMiB;
  EXPECT_EQ(HostMemoryLimit(config), 3 * kMiB);
}

TEST(Discover, FabricKnowsTheLinksAndOwnsUpToWhatItDoesNotKnow) {
  HostMemory host(kMiB);
  DeviceConfig config;
  config.sim_count = 2;
  const auto devices = OpenDevices(config, &host);
  ASSERT_TRUE(devices.ok()) << devices.status();
  const Fabric fabric = BuildFabric(*devices);
  EXPECT_EQ(fabric.QuoteCopy("cpu:0", "gpu:1", 1000).estimated.basis, Basis::kConfigured);
  EXPECT_EQ(fabric.QuoteCopy("gpu:0", "gpu:1", 1000).legs[0].medium, Medium::kNvlink);
  EXPECT_EQ(fabric.QuoteCopy("cpu:0", "cpu:0", 1000).estimated.basis, Basis::kUnknown);
}

TEST(Discover, SaysWhyThereIsNoRealGpu) { EXPECT_TRUE(NoGpuReason().starts_with("no CUDA GPU: ")); }

}  // namespace
}  // namespace devserver
