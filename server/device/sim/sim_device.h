// A simulated GPU: real results, computed on the host with one thread, under a real GPU's limits
// and on its clock.
//
// The clock is a model and moves apart from the host's time: an op costs the model's launch
// overhead plus the longer of its operations at the peak rate of its dtype and its bytes at the
// memory bandwidth (the roofline of Williams, Waterman, Patterson, CACM 52(4), 2009); a copy costs
// what its link says (AdvanceClock). Real kernels reach a part of the peak, so these are lower
// bounds. Power and temperature are unknown; the power limit is the model's.
#pragma once

#include <atomic>
#include <string>

#include "server/device/cpu/host_device.h"
#include "server/device/sim/gpu_models.h"

namespace devserver {

class SimDevice final : public HostDevice {
 public:
  struct Options {
    std::string name;  // "gpu:0"
    const GpuModel* model = nullptr;
    uint64_t memory_limit_bytes = 0;  // 0: the model's; never more than that
    uint64_t cache_limit_bytes = 0;
    bool paced = false;  // calls take at least as long as they would on the model
  };

  // `host` must outlive the device.
  SimDevice(const Options& options, HostMemory* host);

  const GpuModel& model() const { return model_; }
  Telemetry telemetry() const override;
  double simulated_seconds() const override {
    return simulated_seconds_.load(std::memory_order_relaxed);
  }
  absl::Status Run(const OpCall& call) override;
  // When paced, also waits for the copies charged since the last call.
  absl::Status Synchronize() override;
  void AdvanceClock(double simulated_seconds) override;

  // The modelled time of an op. Pure.
  static double OpSeconds(const GpuModel& model, const OpCall& call);

 private:
  // Constant after construction.
  const GpuModel& model_;
  const bool paced_;
  // Counts for any thread; order nothing.
  std::atomic<double> simulated_seconds_ = 0;
  std::atomic<double> unpaced_copy_seconds_ = 0;
};

}  // namespace devserver
