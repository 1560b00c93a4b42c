// The daemon's command line: what it adds to and overrides in the config file.
// Thread safety: plain values and pure functions.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/config.h"

namespace devserver {

struct Flags {
  ServerConfig
      config;  // defaults, then the file named by --config, then the flags; checked by CheckConfig
  bool check_only = false;  // --check-config: say whether the configuration is right, and end
  std::string port_file;    // --port-file; empty: none
  // Set by --help and --version: to be printed instead of running.
  std::optional<std::string> answer;
};

// INVALID_ARGUMENT or the config file's error if the command line or the configuration is wrong.
absl::StatusOr<Flags> ParseFlags(int argc, const char* const* argv);

// "V100-SXM2-16GB:4" into the config; without ":N" it is one. INVALID_ARGUMENT quotes `text`.
absl::Status ApplySimulate(const std::string& text, ServerConfig& config);

}  // namespace devserver
