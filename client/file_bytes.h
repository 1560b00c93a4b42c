// Whole files in and out of memory, for the formats in safetensors.h and npy.h. Not installed.
//
// Thread safety: any thread. Errors name the file and what the system said: NOT_FOUND,
// PERMISSION_DENIED, RESOURCE_EXHAUSTED (no room on the disk or in memory), INVALID_ARGUMENT (a
// directory), UNAVAILABLE for the rest.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace devserver::client {

// `text` from an untrusted file, fit for a message: in quotes, control characters escaped, cut at
// 80 bytes.
std::string Shown(std::string_view text);

struct FileBytes {
  std::unique_ptr<std::byte[]> data;
  size_t size = 0;

  std::span<const std::byte> span() const { return {data.get(), size}; }
};

// The file's bytes, read to its end.
absl::StatusOr<FileBytes> ReadFile(const std::string& path);

// Makes `path` hold `parts` one after the other. They go to a new file beside it that then takes
// its name, so a failed write leaves the old file as it was. A path that is no regular file
// (/dev/stdout, a pipe) is written to directly.
absl::Status WriteFile(const std::string& path, std::span<const std::span<const std::byte>> parts);

}  // namespace devserver::client
