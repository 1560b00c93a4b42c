// A chain of temporaries takes the memory of two, not of all: frees travel in the order of uses.
// ctest: timeout=120
#include <gtest/gtest.h>

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "devserver/client.h"
#include "server/device/discover.h"
#include "tests/client/client_fixture.h"

namespace devserver::client {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kElements = 64 * kMiB / 4;  // f32: 64 MiB

// A real device but for the arithmetic: 10,000 times 64 MiB would be minutes of memory traffic, and
// what is tested is who holds which memory when. Reads of its tensors give what was there.
class IdleDevice final : public devserver::Device {
 public:
  explicit IdleDevice(std::unique_ptr<devserver::Device> real) : real_(std::move(real)) {}

  const DeviceProperties& properties() const override { return real_->properties(); }
  DeviceMemory memory() const override { return real_->memory(); }
  Telemetry telemetry() const override { return real_->telemetry(); }
  bool Supports(OpCode code, DType dtype) const override { return real_->Supports(code, dtype); }
  bool host_readable() const override { return real_->host_readable(); }
  absl::StatusOr<DeviceBuffer> Allocate(size_t size_bytes) override {
    return real_->Allocate(size_bytes);
  }
  absl::Status CopyFromHost(std::span<const std::byte> source, std::byte* target) override {
    return real_->CopyFromHost(source, target);
  }
  absl::Status CopyToHost(const std::byte* source, std::span<std::byte> target) override {
    return real_->CopyToHost(source, target);
  }
  absl::Status CopyFromPeer(devserver::Device& peer, const std::byte* source, std::byte* target,
                            size_t size_bytes) override {
    return real_->CopyFromPeer(peer, source, target, size_bytes);
  }
  absl::Status Run(const OpCall&) override { return absl::OkStatus(); }
  absl::Status Synchronize() override { return real_->Synchronize(); }

 private:
  void Free(std::byte* /*data*/, size_t /*size_bytes*/) override {}  // Buffers are the real one's.

  const std::unique_ptr<devserver::Device> real_;
};

class TemporariesTest : public ClientTest {
 protected:
  void OpenIdleDevices() {
    options.open_devices = false;
    DeviceConfig config;
    config.cpu_threads = 1;
    config.cpu_memory_limit_bytes = 256 * kMiB;
    config.sim_count = 1;
    config.sim_memory_limit_bytes = 256 * kMiB;
    config.cache_limit_bytes = 256 * kMiB;
    absl::StatusOr<std::vector<std::unique_ptr<devserver::Device>>> devices =
        OpenDevices(config, server().server().host_memory());
    ASSERT_TRUE(devices.ok()) << devices.status();
    Fabric fabric = BuildFabric(*devices);
    for (std::unique_ptr<devserver::Device>& device : *devices) {
      device = std::make_unique<IdleDevice>(std::move(device));
    }
    server().server().OpenDevices(*std::move(devices), std::move(fabric), "a test");
  }
};

TEST_F(TemporariesTest, TenThousandOf64MiBRunOnADeviceOf256MiB) {
  OpenIdleDevices();
  const Client client = Connect();
  Tensor x = zeros({kElements}, *client.gpu(0));
  for (int i = 0; i < 10000; ++i) {
    x = relu(x);
  }
  const absl::Status status = x.sync();
  EXPECT_TRUE(status.ok()) << status;
  const DeviceInfo gpu = client.devices()->devices[1];
  EXPECT_EQ(gpu.memory_limit_bytes, static_cast<uint64_t>(256 * kMiB));
  EXPECT_EQ(gpu.memory_used_bytes, static_cast<uint64_t>(64 * kMiB));
  EXPECT_LE(gpu.memory_peak_bytes, static_cast<uint64_t>(192 * kMiB));
}

TEST_F(TemporariesTest, TheSameChainComputesWhatItShould) {
  const Client client = Connect();
  Tensor x = zeros({kElements}, *client.gpu(0));
  const Tensor one = ones({1}, *client.gpu(0));
  for (int i = 0; i < 20; ++i) {
    x = x + one;
  }
  EXPECT_EQ(*sum(x).item<float>(), 20.0f * static_cast<float>(kElements));
  EXPECT_LE(server().peak_bytes(1), static_cast<uint64_t>(193 * kMiB));
}

}  // namespace
}  // namespace devserver::client
