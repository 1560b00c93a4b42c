// The daemon's configuration: what deploy/devserverd.toml explains key by key.
//
// Files come from outside: ParseConfig checks every value against its range and names file, line,
// key and cure. Behind it a ServerConfig is trusted, but for what concerns several keys at once or
// flags too: CheckConfig, called once at the end. Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/device/discover.h"
#include "server/session/limits.h"

namespace devserver {

struct ServerConfig {
  // The name of this server among several: letters, digits, '-', '_', '.'. Empty: the host's name.
  std::string name;

  // See listen_address.h for the forms.
  std::vector<std::string> listen_addresses = {"127.0.0.1:50151"};
  std::string unix_socket;  // absolute path; empty: none
  bool insecure = false;    // allow addresses that other machines can reach

  DeviceConfig devices;
  Limits limits;

  std::string log_level = "info";  // trace, debug, info, warn, error, off
};

inline constexpr uint64_t kSimulatedCountMax =
    64;  // More than any machine has; each costs a thread.
inline constexpr size_t kConfigBytesMax = size_t{1}
                                          << 20;  // A config file that is larger is something else.

// INVALID_ARGUMENT: "SOURCE:LINE: " and what is wrong there: bad TOML, an unknown key (with the
// nearest known one), a value of the wrong type or out of its range. Keys that are left out keep
// their defaults. Sizes may be written "16GiB", times "30s", "15min", "8h".
absl::StatusOr<ServerConfig> ParseConfig(std::string_view toml_text, std::string_view source_name);

// ParseConfig of a file. NOT_FOUND or PERMISSION_DENIED naming the path if it can't be read.
absl::StatusOr<ServerConfig> ReadConfigFile(const std::string& path);

// What concerns several values: each address parses and is allowed, there is at least one, leases
// and message sizes fit each other. INVALID_ARGUMENT names the keys.
absl::Status CheckConfig(const ServerConfig& config);

// The whole configuration as TOML; ParseConfig reads it back to the same values.
std::string FormatConfig(const ServerConfig& config);

// "16GiB", "512 MB", "4096": a number of bytes. INVALID_ARGUMENT quotes `text` and the units.
absl::StatusOr<uint64_t> ParseByteSize(std::string_view text);

}  // namespace devserver
