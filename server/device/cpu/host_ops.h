// Runs ops on host memory: what CPU devices and simulated devices compute with. The op table states
// each result and its error bound; HostMath states what happens to subnormal numbers.
#pragma once

#include "absl/status/status.h"
#include "server/device/cpu/host_math.h"
#include "server/device/device.h"

namespace devserver {

// `call` was checked by InferSpec. Inputs may be the same buffer twice; the output overlaps none of
// them. Errors: RESOURCE_EXHAUSTED when the host has no memory for a conversion, INTERNAL when
// oneDNN fails.
absl::Status RunHostOp(const OpCall& call, HostMath& math);

}  // namespace devserver
