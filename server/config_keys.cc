#include "server/config_keys.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <optional>
#include <span>

#include "absl/strings/str_format.h"

namespace devserver {
namespace {

constexpr double kKiB = 1024;
constexpr double kMiB = 1024 * kKiB;
constexpr double kGiB = 1024 * kMiB;
constexpr double kTiB = 1024 * kGiB;
constexpr double kMemoryMax = 64 * kTiB;  // More than a machine has; a typo has more.
constexpr double kDay = 24 * 3600;

struct NamedUnit {
  std::string_view name;
  double factor;
};

// The binary ones first: FormatQuantity takes the first that divides.
constexpr NamedUnit kByteUnits[] = {
    {"TiB", kTiB}, {"GiB", kGiB}, {"MiB", kMiB}, {"KiB", kKiB}, {"TB", 1e12},
    {"GB", 1e9},   {"MB", 1e6},   {"kB", 1e3},   {"KB", 1e3},   {"B", 1},
};
constexpr NamedUnit kTimeUnits[] = {{"h", 3600}, {"min", 60}, {"ms", 1e-3}, {"s", 1}};

// "1.5 GiB" as a number of the smallest unit; nullopt if it is not a number and a known unit (or
// none).
std::optional<double> ParseQuantity(std::string_view text, std::span<const NamedUnit> units) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(value)) {
    return std::nullopt;
  }
  std::string_view unit(rest, static_cast<size_t>(end - rest));
  while (unit.starts_with(' ')) {
    unit.remove_prefix(1);
  }
  if (unit.empty()) {
    return value;
  }
  for (const NamedUnit& known : units) {
    if (unit == known.name) {
      return value * known.factor;
    }
  }
  return std::nullopt;
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

void AddLimitKeys(Limits& limits, std::vector<ConfigKey>& keys) {
  constexpr ConfigUnit kBytes = ConfigUnit::kBytes;
  constexpr ConfigUnit kSeconds = ConfigUnit::kSeconds;
  const std::vector<ConfigKey> rows = {
      {"limits.sessions", &limits.sessions, ConfigUnit::kNone, 1, 65536},
      {"limits.session_bytes", &limits.session_bytes, kBytes, 0, kMemoryMax},
      {"limits.session_tensors", &limits.session_tensors, ConfigUnit::kNone, 1, 1 << 28},
      {"limits.commands_in_flight", &limits.commands_in_flight, ConfigUnit::kNone, 1, 1 << 24},
      // A gRPC message's length is a 32-bit number; protobuf stops at 2 GiB.
      {"limits.message_bytes", &limits.message_bytes, kBytes, 64 * kKiB, 1 * kGiB},
      {"limits.inline_bytes", &limits.inline_bytes, kBytes, 1 * kKiB, 1 * kGiB},
      {"limits.chunk_bytes", &limits.chunk_bytes, kBytes, 4 * kKiB, 512 * kMiB},
      {"limits.transport_bytes", &limits.transport_bytes, kBytes, 64 * kMiB, kMemoryMax},
      {"limits.label_bytes", &limits.label_bytes, kBytes, 16, 64 * kKiB},
      {"limits.lease_seconds", &limits.lease_seconds, kSeconds, 0.1, 30 * kDay},
      {"limits.lease_seconds_min", &limits.lease_seconds_min, kSeconds, 0.1, 30 * kDay},
      {"limits.lease_seconds_max", &limits.lease_seconds_max, kSeconds, 0.1, 30 * kDay},
      {"limits.default_session_idle_seconds", &limits.default_session_idle_seconds, kSeconds, 1,
       30 * kDay},
      {"limits.stall_seconds", &limits.stall_seconds, kSeconds, 1, 1 * kDay},
      {"limits.grace_seconds", &limits.grace_seconds, kSeconds, 0, 3600},
  };
  keys.insert(keys.end(), rows.begin(), rows.end());
}

}  // namespace

std::vector<ConfigKey> ConfigKeys(ServerConfig& config) {
  constexpr ConfigUnit kBytes = ConfigUnit::kBytes;
  DeviceConfig& devices = config.devices;
  std::vector<ConfigKey> keys = {
      {"server.name", &config.name},
      {"listen.addresses", &config.listen_addresses},
      {"listen.unix_socket", &config.unix_socket},
      {"listen.insecure", &config.insecure},
      {"devices.cpu_memory_bytes", &devices.cpu_memory_limit_bytes, kBytes, 0, kMemoryMax},
      {"devices.cpu_threads", &devices.cpu_threads, ConfigUnit::kNone, 0, 1024},
      {"devices.host_memory_bytes", &devices.host_memory_limit_bytes, kBytes, 0, kMemoryMax},
      {"devices.pool_cache_bytes", &devices.cache_limit_bytes, kBytes, 0, kMemoryMax},
      {"simulated.model", &devices.sim_model},
      {"simulated.count", &devices.sim_count, ConfigUnit::kNone, 0, kSimulatedDevicesMax},
      {"simulated.memory_bytes", &devices.sim_memory_limit_bytes, kBytes, 0, kMemoryMax},
      {"simulated.paced", &devices.sim_paced},
  };
  AddLimitKeys(config.limits, keys);
  keys.push_back({.name = "log.level",
                  .target = &config.log_level,
                  .choices = "trace, debug, info, warn, error, off"});
  return keys;
}

absl::StatusOr<uint64_t> ParseByteSize(std::string_view text) {
  const std::optional<double> value = ParseQuantity(text, kByteUnits);
  if (!value || *value < 0 || *value > kMemoryMax || *value != std::floor(*value)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("\"%s\" is not a size; write bytes, or a number with B, kB, MB, GB, TB, "
                        "KiB, MiB, GiB or TiB, at most %s",
                        text, FormatQuantity(kMemoryMax, ConfigUnit::kBytes)));
  }
  return static_cast<uint64_t>(*value);
}

absl::StatusOr<double> ParseSeconds(std::string_view text) {
  const std::optional<double> value = ParseQuantity(text, kTimeUnits);
  if (!value || *value < 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "\"%s\" is not a time; write seconds, or a number with ms, s, min or h", text));
  }
  return *value;
}

std::string FormatQuantity(double value, ConfigUnit unit) {
  if (unit == ConfigUnit::kBytes && value != 0) {
    for (const NamedUnit& known : kByteUnits) {
      if (known.factor >= kKiB && std::fmod(value, known.factor) == 0) {
        return absl::StrFormat("%.0f%s", value / known.factor, known.name);
      }
    }
  }
  if (unit == ConfigUnit::kSeconds && value != 0) {
    for (const NamedUnit& known : kTimeUnits) {
      if (known.factor >= 60 && std::fmod(value, known.factor) == 0) {
        return absl::StrFormat("%.0f%s", value / known.factor, known.name);
      }
    }
    return absl::StrFormat("%ss", FormatQuantity(value, ConfigUnit::kNone));
  }
  if (value == std::floor(value)) {
    return absl::StrFormat("%.0f", value);
  }
  const std::string brief = absl::StrFormat("%g", value);
  return ParseQuantity(brief, {}) == value ? brief : absl::StrFormat("%.17f", value);
}

std::string NearestConfigKey(std::string_view name, const std::vector<ConfigKey>& keys) {
  std::string_view nearest;
  size_t nearest_edits = 0;
  for (const ConfigKey& key : keys) {
    // A key in the wrong section counts as one edit away.
    const std::string_view leaf = name.substr(name.rfind('.') + 1);
    const size_t edits = std::min(EditDistance(name, key.name), EditDistance(leaf, key.leaf()) + 1);
    if (nearest.empty() || edits < nearest_edits) {
      nearest = key.name;
      nearest_edits = edits;
    }
  }
  // A third of the letters wrong is a typo, more is another word.
  return nearest_edits * 3 <= name.size() ? std::string(nearest) : std::string();
}

}  // namespace devserver
