#include "server/device/discover.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_format.h"
#include "server/device/cpu/cpu_device.h"
#include "server/device/sim/fabric_links.h"
#include "server/device/sim/sim_device.h"

namespace devserver {
namespace {

absl::Status CheckConfig(const DeviceConfig& config) {
  constexpr int kThreadsMax = 4096;  // More than any machine has.
  if (config.cpu_threads < 0 || config.cpu_threads > kThreadsMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "cpu threads is %d; give 1 to %d, or 0 for all", config.cpu_threads, kThreadsMax));
  }
  if (config.sim_count < 0 || config.sim_count > kSimulatedDevicesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d simulated GPUs; give 0 to %d", config.sim_count, kSimulatedDevicesMax));
  }
  if (config.sim_count > 0 && FindGpuModel(config.sim_model) == nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "there is no simulated GPU \"%s\"; give one of %s", config.sim_model, GpuModelNames()));
  }
  return absl::OkStatus();
}

}  // namespace

uint64_t HostMemoryLimit(const DeviceConfig& config) {
  if (config.host_memory_limit_bytes > 0) {
    return config.host_memory_limit_bytes;
  }
  const auto pages = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES));
  return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) / 4 * 3;
}

absl::StatusOr<std::vector<std::unique_ptr<Device>>> OpenDevices(const DeviceConfig& config,
                                                                 HostMemory* host) {
  if (absl::Status status = CheckConfig(config); !status.ok()) {
    return status;
  }
  std::vector<std::unique_ptr<Device>> devices;
  CpuDevice::Options cpu;
  cpu.threads = config.cpu_threads;
  cpu.memory_limit_bytes =
      config.cpu_memory_limit_bytes > 0 ? config.cpu_memory_limit_bytes : host->limit_bytes();
  cpu.cache_limit_bytes = config.cache_limit_bytes;
  devices.push_back(std::make_unique<CpuDevice>(cpu, host));
  for (int i = 0; i < config.sim_count; ++i) {
    SimDevice::Options sim;
    sim.name = absl::StrFormat("gpu:%d", i);
    sim.model = FindGpuModel(config.sim_model);
    sim.memory_limit_bytes = config.sim_memory_limit_bytes;
    sim.cache_limit_bytes = config.cache_limit_bytes;
    sim.paced = config.sim_paced;
    devices.push_back(std::make_unique<SimDevice>(sim, host));
  }
  return devices;
}

Fabric BuildFabric(std::span<const std::unique_ptr<Device>> devices) {
  Fabric fabric;
  std::vector<const SimDevice*> simulated;
  for (const std::unique_ptr<Device>& device : devices) {
    if (device->properties().kind == DeviceKind::kSimulated) {
      simulated.push_back(static_cast<const SimDevice*>(device.get()));
    } else {
      // The host's own bandwidth is unknown until it has been measured.
      fabric.AddLink(device->properties().name, device->properties().name, Link{});
    }
  }
  AddSimulatedLinks(simulated, fabric);
  return fabric;
}

std::string NoGpuReason() {
  std::error_code error;
  if (!std::filesystem::exists("/proc/driver/nvidia/version", error)) {
    return "no CUDA GPU: no NVIDIA driver is loaded (/proc/driver/nvidia/version is missing)";
  }
  return "no CUDA GPU: this build has no CUDA backend, though an NVIDIA driver is loaded";
}

}  // namespace devserver
