// What all devices whose memory is the host's have in common: allocation under a limit, copies, and
// ops run by RunHostOp. CpuDevice and SimDevice add what they report and what time means to them.
#pragma once

#include <cstdint>

#include "server/device/cpu/host_math.h"
#include "server/device/cpu/host_ops.h"
#include "server/device/device.h"
#include "server/device/memory_pool.h"

namespace devserver {

class HostDevice : public Device {
 public:
  const DeviceProperties& properties() const override { return properties_; }
  DeviceMemory memory() const override;
  bool Supports(OpCode code, DType dtype) const override;
  bool host_readable() const override { return true; }

  absl::StatusOr<DeviceBuffer> Allocate(size_t size_bytes) override;
  absl::Status CopyFromHost(std::span<const std::byte> source, std::byte* target) override;
  absl::Status CopyToHost(const std::byte* source, std::span<std::byte> target) override;
  absl::Status CopyFromPeer(Device& peer, const std::byte* source, std::byte* target,
                            size_t size_bytes) override;
  absl::Status Synchronize() override { return absl::OkStatus(); }

 protected:
  // `host` must outlive the device. `threads`: the most an op may use.
  HostDevice(DeviceProperties properties, uint64_t cache_limit_bytes, int threads,
             HostMemory* host);

  // Queue thread only.
  absl::Status RunOnHost(const OpCall& call) { return RunHostOp(call, math_); }

 private:
  void Free(std::byte* data, size_t size_bytes) override;

  // Constant after construction.
  const DeviceProperties properties_;
  MemoryPool pool_;
  // Touched only by the queue thread.
  HostMath math_;
};

}  // namespace devserver
