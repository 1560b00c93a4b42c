// Sessions on real devices without gRPC: cpu:0 and simulated GPUs, a fake clock, faults on demand.
// After each test nothing is left: no bytes on any device, none in any account, nothing queued.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "server/base/error_details.h"
#include "server/device/discover.h"
#include "server/session/execution.h"
#include "server/session/session_table.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/faulty_device.h"

namespace devserver {

// Holds a device's queue until it is opened.
class QueueGate final : public DeviceTask {
 public:
  bool Issue(Device& /*device*/) override {
    MutexLock lock(&mu_);
    while (!open_) {
      changed_.Wait(&mu_);
    }
    return false;
  }
  void Finish(const absl::Status& /*synchronized*/) override {}
  void Open() {
    MutexLock lock(&mu_);
    open_ = true;
    changed_.NotifyAll();
  }

 private:
  // Guarded by mu_.
  Mutex mu_;
  CondVar changed_;
  bool open_ ABSL_GUARDED_BY(mu_) = false;
};

class SessionTest : public testing::Test {
 protected:
  // Opens the devices and the table at first use, with the settings as they are then.
  SessionTable& table() {
    if (table_ == nullptr) {
      Build();
    }
    return *table_;
  }
  DeviceSet& devices() {
    table();
    return *devices_;
  }

  SessionRef Open(const std::string& name = "test", double lease_seconds = 0) {
    const absl::StatusOr<SessionRef> session = table().Open(name, "127.0.0.1", lease_seconds);
    EXPECT_TRUE(session.ok()) << session.status();
    accounts_.push_back(*session);
    return *session;
  }

  // A tensor of `elements` f32 numbers, each `value`.
  static absl::StatusOr<TensorRef> Full(Session& session, uint64_t id, int64_t elements,
                                        double value, const std::string& device = "gpu:0",
                                        Session::Request request = {}) {
    auto attributes = std::make_unique<OpAttributes>();
    attributes->shape = {elements};
    attributes->dtype = DType::kF32;
    attributes->value = value;
    request.id = id;
    return session.Create(OpCode::kFull, std::move(attributes), device, std::move(request));
  }
  static absl::StatusOr<TensorRef> Apply(Session& session, OpCode code,
                                         std::vector<uint64_t> inputs, uint64_t id,
                                         Session::Request request = {}) {
    request.id = id;
    return session.Apply(code, inputs, nullptr, std::move(request));
  }
  static absl::StatusOr<TensorRef> Copy(Session& session, uint64_t source,
                                        const std::string& device, uint64_t id,
                                        Session::Request request = {}) {
    request.id = id;
    return session.Copy(source, device, 0, std::move(request));
  }
  // The first element of a ready f32 tensor.
  static float First(const Tensor& tensor) {
    EXPECT_EQ(tensor.state(), Tensor::State::kReady) << tensor.status();
    float value = 0;
    std::memcpy(&value, tensor.data(), sizeof(value));
    return value;
  }

  // Waits until nothing is queued anywhere. Queues no marker, which would be a call of the device.
  void Drain() {
    uint64_t queued = 0;
    do {
      queued = 0;
      for (size_t i = 0; i < devices().size(); ++i) {
        queued += devices().queue(i).queued();
      }
      std::this_thread::yield();
    } while (queued > 0);
  }
  std::shared_ptr<QueueGate> Hold(size_t device_index) {
    auto gate = std::make_shared<QueueGate>();
    devices().queue(device_index).Push(gate);
    gates_.push_back(gate);
    return gate;
  }

  uint64_t UsedBytes() {
    uint64_t sum = 0;
    for (size_t i = 0; i < devices().size(); ++i) {
      sum += devices().queue(i).device().memory().used_bytes;
    }
    return sum;
  }
  void CheckBaseline() {
    Drain();
    for (size_t i = 0; i < devices().size(); ++i) {
      EXPECT_EQ(devices().queue(i).device().memory().used_bytes, 0u) << devices().queue(i).name();
    }
    for (const SessionRef& session : accounts_) {
      EXPECT_EQ(session->account().bytes(), 0u);
      EXPECT_EQ(session->account().in_flight(), 0u);
      EXPECT_EQ(session->tensor_count(), 0u);
      for (size_t i = 0; i < devices().size(); ++i) {
        EXPECT_EQ(session->account().bytes_on(i), 0u);
        EXPECT_EQ(session->account().tensors_on(i), 0u);
      }
    }
  }
  void TearDown() override {
    for (const std::shared_ptr<QueueGate>& gate : gates_) {
      gate->Open();  // Also where the test ended early.
    }
    if (table_ != nullptr) {
      table_->CloseAll();
      CheckBaseline();
    }
  }

  // Settings.
  int gpus = 2;
  uint64_t gpu_memory_bytes = uint64_t{64} << 20;
  Limits limits;
  FaultPlan faults;
  bool faulty = false;
  FaultyDevice::Memory memory = FaultyDevice::Memory::kHost;
  FakeClock clock;

 private:
  void Build() {
    DeviceConfig config;
    config.cpu_threads = 1;
    config.cpu_memory_limit_bytes = uint64_t{256} << 20;
    config.sim_count = gpus;
    config.sim_memory_limit_bytes = gpu_memory_bytes;
    config.cache_limit_bytes = 0;
    absl::StatusOr<std::vector<std::unique_ptr<Device>>> opened =
        OpenDevices(config, &host_memory_);
    EXPECT_TRUE(opened.ok()) << opened.status();
    Fabric fabric = BuildFabric(*opened);
    for (std::unique_ptr<Device>& device : *opened) {
      if (faulty) {
        device = std::make_unique<FaultyDevice>(std::move(device), &faults, memory);
      }
    }
    devices_ = std::make_unique<DeviceSet>(*std::move(opened), std::move(fabric), "a test");
    table_ = std::make_unique<SessionTable>(Surroundings{devices_.get(), &limits, &clock});
  }

  HostMemory host_memory_{uint64_t{1} << 30};
  std::unique_ptr<DeviceSet> devices_;
  std::unique_ptr<SessionTable> table_;
  std::vector<SessionRef> accounts_;
  std::vector<std::shared_ptr<QueueGate>> gates_;
};

}  // namespace devserver
