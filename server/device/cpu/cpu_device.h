// The host's processor as a device. Big ops use all its threads, small ones one.
#pragma once

#include <cstdint>
#include <string>

#include "server/device/cpu/host_device.h"

namespace devserver {

class CpuDevice final : public HostDevice {
 public:
  struct Options {
    std::string name = "cpu:0";
    std::string model;  // empty: what /proc/cpuinfo says
    std::string uuid;   // empty: made from the machine's id and the name; the same after a restart
    uint64_t memory_limit_bytes = 0;
    uint64_t cache_limit_bytes = 0;
    int threads = 0;  // 0: as many as this process may run on
  };

  // `host` must outlive the device.
  CpuDevice(const Options& options, HostMemory* host);

  // Temperature where the kernel tells (hwmon or thermal zones); power is unknown.
  Telemetry telemetry() const override;
  absl::Status Run(const OpCall& call) override { return RunOnHost(call); }

  // How many processors this process may run on.
  static int AvailableThreads();

 private:
  // Constant after construction.
  const std::string temperature_path_;  // empty: unknown
};

}  // namespace devserver
