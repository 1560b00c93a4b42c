#include "server/device/cpu/host_device.h"

#include <cstring>
#include <utility>

#include "server/base/status_macros.h"

namespace devserver {

HostDevice::HostDevice(DeviceProperties properties, uint64_t cache_limit_bytes, int threads,
                       HostMemory* host)
    : properties_(std::move(properties)),
      pool_({properties_.name, properties_.memory_limit_bytes, cache_limit_bytes}, host),
      math_(threads, host) {}

DeviceMemory HostDevice::memory() const {
  return {pool_.used_bytes(), pool_.reserved_bytes(), pool_.peak_bytes()};
}

bool HostDevice::Supports(OpCode code, DType dtype) const {
  return GetOp(code).dtypes.Contains(dtype);
}

absl::StatusOr<DeviceBuffer> HostDevice::Allocate(size_t size_bytes) {
  ASSIGN_OR_RETURN(std::byte* const data, pool_.Allocate(size_bytes));
  return DeviceBuffer(this, data, size_bytes);
}

void HostDevice::Free(std::byte* data, size_t size_bytes) { pool_.Free(data, size_bytes); }

absl::Status HostDevice::CopyFromHost(std::span<const std::byte> source, std::byte* target) {
  if (!source.empty()) {
    std::memcpy(target, source.data(), source.size());
  }
  return absl::OkStatus();
}

absl::Status HostDevice::CopyToHost(const std::byte* source, std::span<std::byte> target) {
  if (!target.empty()) {
    std::memcpy(target.data(), source, target.size());
  }
  return absl::OkStatus();
}

absl::Status HostDevice::CopyFromPeer(Device& peer, const std::byte* source, std::byte* target,
                                      size_t size_bytes) {
  if (peer.host_readable()) {
    return CopyFromHost({source, size_bytes}, target);
  }
  return peer.CopyToHost(source, {target, size_bytes});
}

}  // namespace devserver
