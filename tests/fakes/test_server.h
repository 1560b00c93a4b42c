// A real Server in this process on a free port of loopback, with cpu:0 and simulated GPUs of little
// memory, and a fixture that checks after each test that nothing was left: no bytes on any device,
// no sessions but default ones, nothing queued.
//
// Thread safety: a TestServer is made and destroyed on one thread; the rest on any.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "devserver/v1/device.grpc.pb.h"
#include "devserver/v1/session.grpc.pb.h"
#include "devserver/v1/tensor.grpc.pb.h"
#include "server/server.h"
#include "tests/fakes/faulty_device.h"

namespace devserver {

// Waits for what other threads are about to do; false if it has not happened in time.
template <typename Condition>
bool Eventually(Condition condition, std::chrono::seconds limit = std::chrono::seconds(20)) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) {
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

class TestServer {
 public:
  struct Options {
    int gpus = 2;
    std::string gpu_model = "V100-SXM2-16GB";
    uint64_t cpu_memory_bytes = uint64_t{1} << 30;
    uint64_t gpu_memory_bytes = uint64_t{256} << 20;
    std::string listen = "127.0.0.1:0";
    std::string unix_socket;
    Limits limits;
    bool open_devices = true;
    // Not null: every device is a FaultyDevice of this plan, with this kind of memory. Must outlive
    // the server.
    FaultPlan* faults = nullptr;
    FaultyDevice::Memory memory = FaultyDevice::Memory::kHost;
  };

  explicit TestServer(const Options& options) : options_(options) {
    config_.name = "test";
    config_.listen_addresses = {options.listen};
    config_.unix_socket = options.unix_socket;
    config_.limits = options.limits;
    config_.devices.cpu_threads = 1;
    config_.devices.cpu_memory_limit_bytes = options.cpu_memory_bytes;
    config_.devices.sim_count = options.gpus;
    config_.devices.sim_model = options.gpu_model;
    config_.devices.sim_memory_limit_bytes = options.gpu_memory_bytes;
    config_.devices.cache_limit_bytes = 0;  // Used memory is memory: what is given back is gone.
    absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(config_);
    EXPECT_TRUE(server.ok()) << server.status();
    if (!server.ok()) {
      return;
    }
    server_ = *std::move(server);
    channel_ = NewChannel();
    if (options.open_devices) {
      OpenDevices();
    }
  }

  void OpenDevices() {
    absl::StatusOr<std::vector<std::unique_ptr<Device>>> devices =
        devserver::OpenDevices(config_.devices, server_->host_memory());
    ASSERT_TRUE(devices.ok()) << devices.status();
    Fabric fabric = BuildFabric(*devices);
    for (std::unique_ptr<Device>& device : *devices) {
      if (options_.faults != nullptr) {
        device =
            std::make_unique<FaultyDevice>(std::move(device), options_.faults, options_.memory);
      }
      devices_.push_back(device.get());
    }
    server_->OpenDevices(*std::move(devices), std::move(fabric), "no GPU: this is a test");
  }

  Server& server() { return *server_; }
  const std::string& address() const { return server_->addresses()[0]; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  // A connection of its own: channels with equal arguments share one.
  std::shared_ptr<grpc::Channel> NewChannel() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(64 << 20);
    return grpc::CreateCustomChannel(server_->addresses()[0], grpc::InsecureChannelCredentials(),
                                     arguments);
  }

  // Of cpu:0, gpu:0, gpu:1 .. by `index`.
  uint64_t used_bytes(size_t index) const { return devices_[index]->memory().used_bytes; }
  uint64_t peak_bytes(size_t index) const { return devices_[index]->memory().peak_bytes; }
  uint64_t used_bytes() const {
    uint64_t sum = 0;
    for (const Device* const device : devices_) {
      sum += device->memory().used_bytes;
    }
    return sum;
  }
  // A reply may overtake the moment in which the device's thread lets go of the last reference.
  bool UsedBytesBecome(uint64_t size_bytes) const {
    return Eventually([&] { return used_bytes() == size_bytes; });
  }

  // Deletes the default session's tensors, then checks that nothing is left.
  void CheckBaseline() {
    if (server_ == nullptr || devices_.empty()) {
      return;
    }
    DeleteDefaultTensors();
    const auto sessions_stub = v1::SessionService::NewStub(channel_);
    v1::ListSessionsReply sessions;
    EXPECT_TRUE(Eventually([&] {
      grpc::ClientContext context;
      sessions.Clear();
      EXPECT_TRUE(sessions_stub->ListSessions(&context, {}, &sessions).ok());
      uint64_t left = 0;
      for (const v1::Session& session : sessions.sessions()) {
        left += session.is_default() ? session.tensors() + session.commands_queued() : 1;
      }
      return left == 0;
    })) << "left: "
        << sessions.DebugString();
    const auto devices_stub = v1::DeviceService::NewStub(channel_);
    v1::ListDevicesReply devices;
    EXPECT_TRUE(Eventually([&] {
      grpc::ClientContext context;
      devices.Clear();
      EXPECT_TRUE(devices_stub->ListDevices(&context, {}, &devices).ok());
      uint64_t left = 0;
      for (const v1::Device& device : devices.devices()) {
        left += device.memory_used_bytes() + device.tensors() + device.queued_commands();
      }
      return left == 0 && devices.devices_size() > 0;
    })) << "left: "
        << devices.DebugString();
    EXPECT_EQ(used_bytes(), 0u);
  }

 private:
  void DeleteDefaultTensors() {
    const auto stub = v1::TensorService::NewStub(channel_);
    while (true) {
      grpc::ClientContext list_context;
      v1::ListTensorsReply list;
      const grpc::Status listed = stub->ListTensors(&list_context, {}, &list);
      ASSERT_TRUE(listed.ok()) << listed.error_message();
      if (list.tensors().empty()) {
        return;
      }
      v1::Delete all;
      for (const v1::TensorListing& listing : list.tensors()) {
        all.add_ids(listing.tensor().id());
      }
      grpc::ClientContext context;
      v1::DeleteReply reply;
      const grpc::Status deleted = stub->DeleteTensors(&context, all, &reply);
      ASSERT_TRUE(deleted.ok()) << deleted.error_message();
    }
  }

  // Constant after construction.
  const Options options_;
  ServerConfig config_;
  std::unique_ptr<Server> server_;
  std::vector<Device*> devices_;  // the server's
  std::shared_ptr<grpc::Channel> channel_;
};

class ServerTest : public testing::Test {
 protected:
  // The server of this test, started at first use with `options` as they are then.
  TestServer& server() {
    if (server_ == nullptr) {
      server_ = std::make_unique<TestServer>(options);
    }
    return *server_;
  }
  void StopServer() { server_.reset(); }
  void TearDown() override {
    if (server_ != nullptr) {
      server_->CheckBaseline();
    }
  }

  TestServer::Options options;
  FaultPlan faults;  // For options.faults.

 private:
  std::unique_ptr<TestServer> server_;
};

}  // namespace devserver
