#include "server/device/sim/sim_device.h"

#include <time.h>

#include <algorithm>
#include <cassert>
#include <chrono>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_format.h"

namespace devserver {
namespace {

using SteadyClock = std::chrono::steady_clock;

DeviceProperties MakeProperties(const SimDevice::Options& options) {
  assert(options.model != nullptr);
  DeviceProperties properties;
  properties.name = options.name;
  properties.kind = DeviceKind::kSimulated;
  properties.model = std::string(options.model->product);
  const size_t colon = options.name.find(':');
  const std::string index = colon == std::string::npos ? "0" : options.name.substr(colon + 1);
  properties.uuid = absl::StrFormat("GPU-SIM-%s-%s", options.model->name, index);
  properties.memory_limit_bytes =
      options.memory_limit_bytes == 0
          ? options.model->memory_bytes
          : std::min(options.memory_limit_bytes, options.model->memory_bytes);
  return properties;
}

void Add(std::atomic<double>& sum, double term) {
  double value = sum.load(std::memory_order_relaxed);
  while (!sum.compare_exchange_weak(value, value + term, std::memory_order_relaxed)) {
  }
}

// Sleeps for most of the time and spins for the rest, since a sleeping thread wakes tens of
// microseconds late.
void WaitUntil(SteadyClock::time_point end) {
  constexpr auto kWakeUp = std::chrono::microseconds(80);
  const auto sleep = end - SteadyClock::now() - kWakeUp;
  if (sleep > SteadyClock::duration::zero()) {
    const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(sleep).count();
    timespec duration = {};
    duration.tv_sec = static_cast<time_t>(nanoseconds / 1'000'000'000);
    duration.tv_nsec = static_cast<long>(nanoseconds % 1'000'000'000);
    nanosleep(&duration, nullptr);
  }
  while (SteadyClock::now() < end) {
  }
}

SteadyClock::duration ToDuration(double seconds) {
  return std::chrono::duration_cast<SteadyClock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

SimDevice::SimDevice(const Options& options, HostMemory* host)
    : HostDevice(MakeProperties(options), options.cache_limit_bytes, 1, host),
      model_(*options.model),
      paced_(options.paced) {}

Telemetry SimDevice::telemetry() const {
  Telemetry telemetry;
  telemetry.power_limit_watts = model_.power_limit_watts;
  return telemetry;
}

double SimDevice::OpSeconds(const GpuModel& model, const OpCall& call) {
  absl::InlinedVector<TensorSpec, 3> inputs;
  for (const OpInput& input : call.inputs) {
    inputs.push_back(*input.spec);
  }
  const TensorSpec& output = *call.output_spec;
  const DType dtype = inputs.empty() ? output.dtype : inputs[0].dtype;
  const double flops = GetOp(call.code).flops(inputs, output, *call.attributes);
  // A slice reads only what it keeps.
  const double bytes = call.code == OpCode::kSlice ? 2 * static_cast<double>(output.size_bytes())
                                                   : OpBytes(inputs, output);
  return model.launch_seconds +
         std::max(flops / model.FlopsFor(dtype), bytes / model.memory_bytes_per_second);
}

absl::Status SimDevice::Run(const OpCall& call) {
  const double modelled_seconds = OpSeconds(model_, call);
  Add(simulated_seconds_, modelled_seconds);
  if (!paced_) {
    return RunOnHost(call);
  }
  const SteadyClock::time_point start = SteadyClock::now();
  absl::Status status = RunOnHost(call);
  WaitUntil(start + ToDuration(modelled_seconds));
  return status;
}

absl::Status SimDevice::Synchronize() {
  if (paced_) {
    const double seconds = unpaced_copy_seconds_.exchange(0, std::memory_order_relaxed);
    if (seconds > 0) {
      WaitUntil(SteadyClock::now() + ToDuration(seconds));
    }
  }
  return absl::OkStatus();
}

void SimDevice::AdvanceClock(double simulated_seconds) {
  Add(simulated_seconds_, simulated_seconds);
  if (paced_) {
    Add(unpaced_copy_seconds_, simulated_seconds);
  }
}

}  // namespace devserver
