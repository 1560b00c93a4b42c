// The table of the config file's keys: reading, writing, range checks and "did you mean" are all
// driven by it. A new key is one row here, one field in ServerConfig or Limits, and one entry in
// deploy/devserverd.toml (a test compares them).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/config.h"

namespace devserver {

enum class ConfigUnit { kNone, kBytes, kSeconds };

struct ConfigKey {
  std::string_view name;  // "limits.session_bytes"
  // Into the ServerConfig that the table was made for.
  std::variant<std::string*, std::vector<std::string>*, bool*, int*, uint64_t*, double*> target;
  ConfigUnit unit = ConfigUnit::kNone;
  double min = 0;  // of a number
  double max = 0;
  std::string_view choices = {};  // of a string: "trace, debug, info"; empty: any

  std::string_view section() const { return name.substr(0, name.find('.')); }
  std::string_view leaf() const { return name.substr(name.find('.') + 1); }
};

// In the order of the file. The pointers are into `config`.
std::vector<ConfigKey> ConfigKeys(ServerConfig& config);

// "30s", "15min", "8h", "0.5": a number of seconds. INVALID_ARGUMENT quotes `text` and the units.
absl::StatusOr<double> ParseSeconds(std::string_view text);

// The shortest exact form: 4194304 bytes is "4MiB"; 28800 seconds is "8h".
std::string FormatQuantity(double value, ConfigUnit unit);

// The key whose name is nearest to `name` by edits, or empty if none is near.
std::string NearestConfigKey(std::string_view name, const std::vector<ConfigKey>& keys);

}  // namespace devserver
