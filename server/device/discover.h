// Opens the devices that a configuration asks for, and says how they are connected.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/device/device.h"
#include "server/device/memory_pool.h"
#include "server/fabric/fabric.h"

namespace devserver {

struct DeviceConfig {
  int cpu_threads = 0;                  // 0: as many as this process may run on
  uint64_t cpu_memory_limit_bytes = 0;  // 0: the host memory's limit
  std::string sim_model = "V100-SXM2-16GB";
  int sim_count = 0;
  uint64_t sim_memory_limit_bytes = 0;  // 0: the model's
  bool sim_paced = false;
  uint64_t host_memory_limit_bytes =
      0;  // of all devices together; 0: three quarters of the machine's memory
  uint64_t cache_limit_bytes = uint64_t{1} << 30;  // free blocks that each device keeps for reuse
};

inline constexpr int kSimulatedDevicesMax =
    64;  // Each has a thread; the largest real machines have 16.

// What HostMemory should be made with for `config`.
uint64_t HostMemoryLimit(const DeviceConfig& config);

// "cpu:0" first, then "gpu:0", "gpu:1" ... `host` must outlive the devices. INVALID_ARGUMENT names
// the setting that is wrong.
absl::StatusOr<std::vector<std::unique_ptr<Device>>> OpenDevices(const DeviceConfig& config,
                                                                 HostMemory* host);

// The links between these devices: the host's memory, and what the simulated ones' models say.
Fabric BuildFabric(std::span<const std::unique_ptr<Device>> devices);

// Why this server has no real GPU: "no CUDA GPU: ...".
std::string NoGpuReason();

}  // namespace devserver
