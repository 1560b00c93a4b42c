#include "tests/conformance/backends.h"

#include <map>
#include <ostream>
#include <vector>

#include "server/base/status_macros.h"
#include "server/device/cpu/cpu_device.h"
#include "server/device/sim/sim_device.h"

namespace devserver::conformance {
namespace {

absl::StatusOr<std::unique_ptr<Device>> OpenCpu(const BackendOptions& options, HostMemory* host) {
  CpuDevice::Options cpu;
  cpu.name = options.name;
  cpu.memory_limit_bytes = options.memory_limit_bytes;
  cpu.cache_limit_bytes = uint64_t{64} << 20;
  cpu.threads = 3;  // Not a divisor of the usual sizes, whatever this machine has.
  return std::make_unique<CpuDevice>(cpu, host);
}

absl::StatusOr<std::unique_ptr<Device>> OpenSim(const BackendOptions& options, HostMemory* host) {
  SimDevice::Options sim;
  sim.name = options.name;
  sim.model = FindGpuModel("V100");
  sim.memory_limit_bytes = options.memory_limit_bytes;
  sim.cache_limit_bytes = uint64_t{64} << 20;
  return std::make_unique<SimDevice>(sim, host);
}

constexpr Backend kBackends[] = {{"cpu", &OpenCpu}, {"sim", &OpenSim}};

// Everything the process shares; never destroyed, so that no test depends on the order of
// destructors.
absl::StatusOr<std::unique_ptr<Device>>& Shared(const Backend& backend) {
  static auto* const host = new HostMemory(uint64_t{4} << 30);
  static auto* const devices = new std::map<std::string, absl::StatusOr<std::unique_ptr<Device>>>;
  const auto found = devices->find(backend.name);
  if (found != devices->end()) {
    return found->second;
  }
  BackendOptions options;
  options.name = std::string(backend.name) == "cpu" ? "cpu:0" : "gpu:0";
  return devices->emplace(backend.name, backend.open(options, host)).first->second;
}

}  // namespace

std::span<const Backend> AllBackends() { return kBackends; }
void PrintTo(const Backend& backend, std::ostream* out) { *out << backend.name; }

Device* SharedDevice(const Backend& backend) {
  const auto& device = Shared(backend);
  return device.ok() ? device->get() : nullptr;
}

absl::Status OpenError(const Backend& backend) { return Shared(backend).status(); }

absl::StatusOr<HostTensor> RunOnDevice(Device& device, OpCode code,
                                       std::span<const HostTensor> inputs,
                                       const OpAttributes& attributes) {
  std::vector<TensorSpec> specs;
  std::vector<DeviceBuffer> buffers;
  for (const HostTensor& input : inputs) {
    specs.push_back(input.spec);
    ASSIGN_OR_RETURN(DeviceBuffer buffer, device.Allocate(input.bytes.size()));
    RETURN_IF_ERROR(device.CopyFromHost(input.bytes, buffer.data()));
    buffers.push_back(std::move(buffer));
  }
  ASSIGN_OR_RETURN(const TensorSpec output, InferSpec(code, specs, attributes));
  std::vector<OpInput> operands;
  for (size_t i = 0; i < inputs.size(); ++i) {
    operands.push_back({&specs[i], buffers[i].data()});
  }
  ASSIGN_OR_RETURN(DeviceBuffer result, device.Allocate(output.size_bytes()));
  RETURN_IF_ERROR(device.Run({code, operands, &output, result.data(), &attributes}));
  RETURN_IF_ERROR(device.Synchronize());
  HostTensor fetched(output);
  RETURN_IF_ERROR(device.CopyToHost(result.data(), fetched.bytes));
  return fetched;
}

}  // namespace devserver::conformance
