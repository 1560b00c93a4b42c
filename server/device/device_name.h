// How devices are called: "cpu:0", "gpu:1". A server's prefix, "b/gpu:0", is kept free for several
// servers.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace devserver {

// "cpu:0" or "gpu:N" for any spelling people use: cpu, CPU, cpu:0, gpu, gpu:1, GPU:1, cuda, cuda:1;
// empty is "cpu:0". Whether the device exists is not asked. INVALID_ARGUMENT with the accepted
// forms; NOT_FOUND for another server's.
absl::StatusOr<std::string> CanonicalDeviceName(std::string_view name);

}  // namespace devserver
