// The devices of this server with their queues and links, and how a name finds one.
// Thread safety: constant after construction.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/device/device_queue.h"
#include "server/fabric/fabric.h"

namespace devserver {

class DeviceSet {
 public:
  DeviceSet(std::vector<std::unique_ptr<Device>> devices, Fabric fabric, std::string no_gpu_reason);
  // Finishes queued work and closes the devices.
  ~DeviceSet();

  size_t size() const { return queues_.size(); }
  DeviceQueue& queue(size_t index) const { return *queues_[index]; }
  const Fabric& fabric() const { return fabric_; }
  const std::string& no_gpu_reason() const { return no_gpu_reason_; }

  // Accepts what device_name.h accepts; empty is "cpu:0". NOT_FOUND (kNoSuchDevice) with the list
  // of devices if it isn't there: there is no falling back to another.
  absl::StatusOr<size_t> Find(std::string_view name) const;

  // What moving bytes between the host and a simulated device takes on that device's clock; 0 for
  // real devices.
  double HostLinkSeconds(size_t device_index, uint64_t size_bytes) const;

  // "cpu:0, gpu:0, gpu:1"
  std::string Names() const;

 private:
  std::vector<std::unique_ptr<DeviceQueue>> queues_;
  Fabric fabric_;
  std::string no_gpu_reason_;
};

}  // namespace devserver
