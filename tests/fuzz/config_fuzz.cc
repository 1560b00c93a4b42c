// Any bytes as a config file: never a crash, and what is accepted formats and parses back to the
// same values.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "server/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<devserver::ServerConfig> config = devserver::ParseConfig(text, "fuzz");
  if (!config.ok()) {
    return 0;
  }
  static_cast<void>(devserver::CheckConfig(*config));
  const std::string formatted = devserver::FormatConfig(*config);
  const absl::StatusOr<devserver::ServerConfig> back =
      devserver::ParseConfig(formatted, "formatted");
  if (!back.ok() || devserver::FormatConfig(*back) != formatted) {
    std::fprintf(stderr, "does not read back:\n%s\n%s\n", formatted.c_str(),
                 back.status().ToString().c_str());
    std::abort();
  }
  return 0;
}
