// The kinds of devices that the conformance suites run on. A new backend adds one entry to
// AllBackends.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "server/device/device.h"
#include "server/device/memory_pool.h"
#include "tests/conformance/host_tensor.h"

namespace devserver::conformance {

struct BackendOptions {
  std::string name;  // "cpu:0", "gpu:1"
  uint64_t memory_limit_bytes = uint64_t{1} << 30;
};

struct Backend {
  const char* name;
  // Unavailable: this machine has no such hardware, and the tests skip. Any other error fails them.
  absl::StatusOr<std::unique_ptr<Device>> (*open)(const BackendOptions& options, HostMemory* host);
};

std::span<const Backend> AllBackends();
void PrintTo(const Backend& backend, std::ostream* out);

// Uploads the inputs, runs the op and fetches its result; the device is left as it was.
absl::StatusOr<HostTensor> RunOnDevice(Device& device, OpCode code,
                                       std::span<const HostTensor> inputs,
                                       const OpAttributes& attributes);

// The device that all tests of `backend` share; made at the first call, null where there is no such
// hardware.
Device* SharedDevice(const Backend& backend);
// Why SharedDevice is null.
absl::Status OpenError(const Backend& backend);

}  // namespace devserver::conformance
