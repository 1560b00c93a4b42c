// What every backend must do besides ops: memory under a limit, copies, telemetry. See the contract
// in device.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "server/base/error_details.h"
#include "tests/conformance/backends.h"

namespace devserver::conformance {
namespace {

constexpr uint64_t kLimit = 8 << 20;

std::vector<std::byte> Pattern(size_t size_bytes, uint64_t seed) {
  std::vector<std::byte> bytes(size_bytes);
  std::mt19937_64 random(seed);
  std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random()); });
  return bytes;
}

class DeviceSuite : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    device_ = Open(GetParam().name == std::string("cpu") ? "cpu:0" : "gpu:0");
    peer_ = device_ == nullptr ? nullptr : Open("gpu:1");
  }
  void TearDown() override {
    if (device_ != nullptr) {
      EXPECT_EQ(device_->memory().used_bytes, 0u) << "every test gives back what it took";
    }
  }

  std::unique_ptr<Device> Open(const std::string& name) {
    BackendOptions options;
    options.name = name;
    options.memory_limit_bytes = kLimit;
    auto device = GetParam().open(options, &host_);
    if (!device.ok()) {
      EXPECT_TRUE(absl::IsUnavailable(device.status())) << device.status();
      return nullptr;
    }
    return *std::move(device);
  }

  // A buffer with `bytes` in it.
  static DeviceBuffer Filled(Device& device, const std::vector<std::byte>& bytes) {
    auto buffer = device.Allocate(bytes.size());
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    EXPECT_TRUE(device.CopyFromHost(bytes, buffer->data()).ok());
    return *std::move(buffer);
  }
  static std::vector<std::byte> Contents(Device& device, const DeviceBuffer& buffer) {
    std::vector<std::byte> bytes(buffer.size_bytes());
    EXPECT_TRUE(device.CopyToHost(buffer.data(), bytes).ok());
    return bytes;
  }

  HostMemory host_{uint64_t{256} << 20};
  std::unique_ptr<Device> device_;
  std::unique_ptr<Device> peer_;
};

#define SKIP_WITHOUT_DEVICE()                \
  if (device_ == nullptr || !peer_) {        \
    GTEST_SKIP() << "no such hardware here"; \
  }

TEST_P(DeviceSuite, PropertiesNameTheDevice) {
  SKIP_WITHOUT_DEVICE();
  const DeviceProperties& properties = device_->properties();
  EXPECT_FALSE(properties.model.empty());
  EXPECT_FALSE(properties.uuid.empty());
  EXPECT_NE(properties.uuid, peer_->properties().uuid);
  EXPECT_EQ(properties.memory_limit_bytes, kLimit);
}

TEST_P(DeviceSuite, CountsExactBytesAndThePeak) {
  SKIP_WITHOUT_DEVICE();
  {
    const auto first = device_->Allocate(1000003);
    const auto second = device_->Allocate(17);
    ASSERT_TRUE(first.ok() && second.ok());
    EXPECT_EQ(device_->memory().used_bytes, 1000020u);
  }
  EXPECT_EQ(device_->memory().used_bytes, 0u);
  EXPECT_EQ(device_->memory().peak_bytes, 1000020u);
}

TEST_P(DeviceSuite, BuffersAreAligned) {
  SKIP_WITHOUT_DEVICE();
  for (const size_t size_bytes : {1, 63, 64, 65, 4097, 3 << 20}) {
    const auto buffer = device_->Allocate(size_bytes);
    ASSERT_TRUE(buffer.ok());
    EXPECT_EQ(buffer->size_bytes(), size_bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0u) << size_bytes;
  }
}

TEST_P(DeviceSuite, EmptyBuffersTakeNothing) {
  SKIP_WITHOUT_DEVICE();
  const auto buffer = device_->Allocate(0);
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(buffer->data(), nullptr);
  EXPECT_EQ(device_->memory().used_bytes, 0u);
  EXPECT_TRUE(device_->CopyFromHost({}, buffer->data()).ok());
  EXPECT_TRUE(device_->CopyToHost(buffer->data(), {}).ok());
  EXPECT_TRUE(device_->CopyFromPeer(*peer_, nullptr, buffer->data(), 0).ok());
}

TEST_P(DeviceSuite, TheLimitIsReachedAndNeverExceeded) {
  SKIP_WITHOUT_DEVICE();
  auto all = device_->Allocate(kLimit);
  ASSERT_TRUE(all.ok()) << all.status();
  const auto one_more = device_->Allocate(1);
  ASSERT_TRUE(absl::IsResourceExhausted(one_more.status())) << one_more.status();
  const auto details = DetailsOf(one_more.status());
  ASSERT_TRUE(details.has_value());
  EXPECT_EQ(details->reason, ErrorReason::kDeviceMemory);
  EXPECT_EQ(details->asked, 1u);
  EXPECT_EQ(details->used, kLimit);
  EXPECT_EQ(details->limit, kLimit);
  all = DeviceBuffer();
  EXPECT_TRUE(device_->Allocate(kLimit).ok());
}

TEST_P(DeviceSuite, AbsurdSizesAreRefusedWithoutTakingAnything) {
  SKIP_WITHOUT_DEVICE();
  for (const size_t size_bytes : {size_t{1} << 62, ~size_t{0}, kLimit + 1}) {
    EXPECT_TRUE(absl::IsResourceExhausted(device_->Allocate(size_bytes).status())) << size_bytes;
    EXPECT_EQ(device_->memory().used_bytes, 0u);
  }
}

TEST_P(DeviceSuite, BytesComeBackAsTheyWent) {
  SKIP_WITHOUT_DEVICE();
  for (const size_t size_bytes : {1, 7, 4096, 1000003}) {
    const std::vector<std::byte> bytes = Pattern(size_bytes, size_bytes);
    const DeviceBuffer buffer = Filled(*device_, bytes);
    EXPECT_EQ(Contents(*device_, buffer), bytes);
  }
}

TEST_P(DeviceSuite, CopiesWithinAndBetweenDevices) {
  SKIP_WITHOUT_DEVICE();
  const std::vector<std::byte> bytes = Pattern(1000003, 5);
  const DeviceBuffer source = Filled(*device_, bytes);
  for (Device* const target : {device_.get(), peer_.get()}) {
    auto copy = target->Allocate(bytes.size());
    ASSERT_TRUE(copy.ok());
    ASSERT_TRUE(target->CopyFromPeer(*device_, source.data(), copy->data(), bytes.size()).ok());
    ASSERT_TRUE(target->Synchronize().ok());
    EXPECT_EQ(Contents(*target, *copy), bytes);
  }
}

TEST_P(DeviceSuite, BuffersMayBeFreedByAnyThread) {
  SKIP_WITHOUT_DEVICE();
  std::vector<DeviceBuffer> buffers;
  for (int i = 0; i < 100; ++i) {
    buffers.push_back(*device_->Allocate(1000));
  }
  std::thread other([&] { buffers.clear(); });
  other.join();
  EXPECT_EQ(device_->memory().used_bytes, 0u);
}

TEST_P(DeviceSuite, MovingABufferFreesItOnce) {
  SKIP_WITHOUT_DEVICE();
  DeviceBuffer first = *device_->Allocate(100);
  DeviceBuffer second = std::move(first);
  EXPECT_EQ(device_->memory().used_bytes, 100u);
  second = *device_->Allocate(50);
  EXPECT_EQ(device_->memory().used_bytes, 50u);
}

TEST_P(DeviceSuite, SupportsWhatTheOpTableAllows) {
  SKIP_WITHOUT_DEVICE();
  EXPECT_TRUE(device_->Supports(OpCode::kMatMul, DType::kF32));
  for (const OpDef& op : AllOps()) {
    for (const DType dtype : kAllDTypes) {
      EXPECT_LE(device_->Supports(op.code, dtype), op.dtypes.Contains(dtype)) << op.name;
    }
  }
}

TEST_P(DeviceSuite, TelemetryIsPlausibleOrUnknown) {
  SKIP_WITHOUT_DEVICE();
  const Telemetry telemetry = device_->telemetry();
  EXPECT_GT(telemetry.temperature_celsius.value_or(20), 0);
  EXPECT_LT(telemetry.temperature_celsius.value_or(20), 130);
  EXPECT_GE(telemetry.power_watts.value_or(0), 0);
  EXPECT_GT(telemetry.power_limit_watts.value_or(1), 0);
}

TEST_P(DeviceSuite, OnlySimulatedDevicesHaveTheirOwnClock) {
  SKIP_WITHOUT_DEVICE();
  device_->AdvanceClock(1.5);
  const bool simulated = device_->properties().kind == DeviceKind::kSimulated;
  EXPECT_EQ(device_->simulated_seconds(), simulated ? 1.5 : 0);
}

INSTANTIATE_TEST_SUITE_P(All, DeviceSuite,
                         testing::ValuesIn(AllBackends().begin(), AllBackends().end()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace devserver::conformance
