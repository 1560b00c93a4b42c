#include "server/config.h"

#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>

#include "absl/strings/str_format.h"
#include "server/base/status_macros.h"
#include "server/config_keys.h"
#include "server/device/sim/gpu_models.h"
#include "server/listen_address.h"

namespace devserver {
namespace {

constexpr size_t kStringBytesMax = 1024;  // Of one string value: paths and addresses are shorter.
constexpr size_t kAddressCountMax = 64;

// Where in which file, for messages.
struct Place {
  std::string_view source;
  uint32_t line = 0;
};

absl::Status ErrorAt(const Place& place, const std::string& message) {
  return absl::InvalidArgumentError(
      absl::StrFormat("%s:%d: %s", place.source, place.line, message));
}

std::string_view TypeName(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return "a list";
    case toml::node_type::string:
      return "a string";
    case toml::node_type::integer:
      return "an integer";
    case toml::node_type::floating_point:
      return "a floating-point number";
    case toml::node_type::boolean:
      return "a boolean";
    default:
      return "a date or time";
  }
}

absl::Status WrongType(const Place& place, const ConfigKey& key, const toml::node& node,
                       std::string_view wanted) {
  return ErrorAt(place, absl::StrFormat("%s must be %s, not %s", key.name, wanted, TypeName(node)));
}

absl::StatusOr<std::string> ReadString(const Place& place, const ConfigKey& key,
                                       const toml::node& node) {
  const toml::value<std::string>* const value = node.as_string();
  if (value == nullptr) {
    return WrongType(place, key, node, "a string");
  }
  const std::string& text = value->get();
  if (text.size() > kStringBytesMax) {
    return ErrorAt(place, absl::StrFormat("%s has %d bytes, at most %d are allowed", key.name,
                                          text.size(), kStringBytesMax));
  }
  if (text.find('\0') != std::string::npos) {
    return ErrorAt(place, absl::StrFormat("%s holds a NUL", key.name));
  }
  if (!key.choices.empty()) {
    const std::string list = absl::StrFormat(", %s,", key.choices);
    if (text.find(',') != std::string::npos ||
        list.find(absl::StrFormat(" %s,", text)) == std::string::npos) {
      return ErrorAt(place,
                     absl::StrFormat("%s is \"%s\"; known: %s", key.name, text, key.choices));
    }
  }
  return text;
}

absl::StatusOr<std::vector<std::string>> ReadList(const Place& place, const ConfigKey& key,
                                                  const toml::node& node) {
  const toml::array* const array = node.as_array();
  if (array == nullptr) {
    return WrongType(place, key, node, "a list of strings");
  }
  if (array->size() > kAddressCountMax) {
    return ErrorAt(place, absl::StrFormat("%s has %d entries, at most %d are allowed", key.name,
                                          array->size(), kAddressCountMax));
  }
  std::vector<std::string> list;
  for (const toml::node& element : *array) {
    ASSIGN_OR_RETURN(std::string text, ReadString(place, key, element));
    list.push_back(std::move(text));
  }
  return list;
}

// A number as it stands or as a string with a unit, within the key's range.
absl::StatusOr<double> ReadNumber(const Place& place, const ConfigKey& key,
                                  const toml::node& node) {
  double value = 0;
  if (const auto* integer = node.as_integer()) {
    value = static_cast<double>(integer->get());
  } else if (const auto* real = node.as_floating_point();
             real && key.unit == ConfigUnit::kSeconds) {
    value = real->get();
  } else if (const auto* text = node.as_string(); text && key.unit != ConfigUnit::kNone) {
    absl::Status status;
    if (key.unit == ConfigUnit::kBytes) {
      const absl::StatusOr<uint64_t> bytes = ParseByteSize(text->get());
      status = bytes.status();
      value = status.ok() ? static_cast<double>(*bytes) : 0;
    } else {
      const absl::StatusOr<double> seconds = ParseSeconds(text->get());
      status = seconds.status();
      value = status.ok() ? *seconds : 0;
    }
    if (!status.ok()) {
      return ErrorAt(place, absl::StrFormat("%s: %s", key.name, std::string(status.message())));
    }
  } else {
    constexpr std::string_view kWanted[] = {"an integer",
                                            "a number of bytes or a string like \"16GiB\"",
                                            "a number of seconds or a string like \"30s\""};
    return WrongType(place, key, node, kWanted[static_cast<int>(key.unit)]);
  }
  if (!(value >= key.min && value <= key.max)) {
    return ErrorAt(
        place, absl::StrFormat("%s is %s, it must be from %s to %s", key.name,
                               FormatQuantity(value, key.unit), FormatQuantity(key.min, key.unit),
                               FormatQuantity(key.max, key.unit)));
  }
  return value;
}

absl::Status ReadValue(const Place& place, const ConfigKey& key, const toml::node& node) {
  if (auto* const* text = std::get_if<std::string*>(&key.target)) {
    ASSIGN_OR_RETURN(**text, ReadString(place, key, node));
  } else if (auto* const* list = std::get_if<std::vector<std::string>*>(&key.target)) {
    ASSIGN_OR_RETURN(**list, ReadList(place, key, node));
  } else if (auto* const* flag = std::get_if<bool*>(&key.target)) {
    const toml::value<bool>* const value = node.as_boolean();
    if (value == nullptr) {
      return WrongType(place, key, node, "true or false");
    }
    **flag = value->get();
  } else if (auto* const* count = std::get_if<uint64_t*>(&key.target)) {
    // Exact: every range ends far below 2^53.
    ASSIGN_OR_RETURN(const double value, ReadNumber(place, key, node));
    **count = static_cast<uint64_t>(value);
  } else if (auto* const* small = std::get_if<int*>(&key.target)) {
    ASSIGN_OR_RETURN(const double value, ReadNumber(place, key, node));
    **small = static_cast<int>(value);
  } else {
    ASSIGN_OR_RETURN(*std::get<double*>(key.target), ReadNumber(place, key, node));
  }
  return absl::OkStatus();
}

absl::Status UnknownKey(const Place& place, std::string_view name,
                        const std::vector<ConfigKey>& keys) {
  const std::string nearest = NearestConfigKey(name, keys);
  return ErrorAt(place,
                 nearest.empty()
                     ? absl::StrFormat("there is no key %s; deploy/devserverd.toml has all", name)
                     : absl::StrFormat("there is no key %s; did you mean %s?", name, nearest));
}

absl::Status ReadSection(std::string_view source, std::string_view section,
                         const toml::table& table, const std::vector<ConfigKey>& keys) {
  for (const auto& [leaf, node] : table) {
    const Place place{source, leaf.source().begin.line};
    const std::string name = absl::StrFormat("%s.%s", section, leaf.str());
    const auto key = std::find_if(keys.begin(), keys.end(),
                                  [&](const ConfigKey& known) { return known.name == name; });
    if (key == keys.end()) {
      return UnknownKey(place, name, keys);
    }
    RETURN_IF_ERROR(ReadValue(place, *key, node));
  }
  return absl::OkStatus();
}

absl::Status ReadDocument(std::string_view source, const toml::table& document,
                          const std::vector<ConfigKey>& keys) {
  for (const auto& [section, node] : document) {
    const Place place{source, section.source().begin.line};
    const toml::table* const table = node.as_table();
    const bool known = std::any_of(keys.begin(), keys.end(), [&](const ConfigKey& key) {
      return key.section() == section.str();
    });
    if (known && table == nullptr) {
      return ErrorAt(place, absl::StrFormat("%s is a section: write [%s] and its keys below",
                                            section.str(), section.str()));
    }
    if (!known && (table == nullptr || table->empty())) {
      return UnknownKey(place, section.str(), keys);
    }
    RETURN_IF_ERROR(ReadSection(source, section.str(), *table, keys));
  }
  return absl::OkStatus();
}

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      quoted += absl::StrFormat("\\u%04X", byte);
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string FormatValue(const ConfigKey& key) {
  if (auto* const* text = std::get_if<std::string*>(&key.target)) {
    return Quoted(**text);
  }
  if (auto* const* list = std::get_if<std::vector<std::string>*>(&key.target)) {
    std::string joined;
    for (const std::string& element : **list) {
      joined += (joined.empty() ? "" : ", ") + Quoted(element);
    }
    return "[" + joined + "]";
  }
  if (auto* const* flag = std::get_if<bool*>(&key.target)) {
    return **flag ? "true" : "false";
  }
  double value = 0;
  if (auto* const* count = std::get_if<uint64_t*>(&key.target)) {
    value = static_cast<double>(**count);
  } else if (auto* const* small = std::get_if<int*>(&key.target)) {
    value = **small;
  } else {
    value = *std::get<double*>(key.target);
  }
  const std::string text = FormatQuantity(value, key.unit);
  const bool is_plain = text.find_first_not_of("0123456789.") == std::string::npos;
  return is_plain ? text : "\"" + text + "\"";
}

absl::Status CheckName(const std::string& name) {
  constexpr size_t kNameBytesMax = 64;
  const bool fits =
      name.size() <= kNameBytesMax && std::all_of(name.begin(), name.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '-' || c == '_' || c == '.';
      });
  if (fits) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "server.name is \"%s\"; it must be letters, digits, '-', '_' and '.', at most %d", name,
      kNameBytesMax));
}

absl::Status CheckAddresses(const ServerConfig& config) {
  std::vector<std::string> all = config.listen_addresses;
  if (!config.unix_socket.empty()) {
    all.push_back("unix:" + config.unix_socket);
  }
  if (all.empty()) {
    return absl::InvalidArgumentError(
        "there is no address to listen on: give listen.addresses or listen.unix_socket");
  }
  for (const std::string& text : all) {
    ASSIGN_OR_RETURN(const ListenAddress address, ParseListenAddress(text));
    RETURN_IF_ERROR(CheckAddressPolicy(address, config.insecure));
  }
  return absl::OkStatus();
}

absl::Status CheckLimits(const Limits& limits) {
  if (limits.lease_seconds < limits.lease_seconds_min ||
      limits.lease_seconds > limits.lease_seconds_max) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "limits.lease_seconds is %g; it must lie between limits.lease_seconds_min, %g, "
        "and limits.lease_seconds_max, %g",
        limits.lease_seconds, limits.lease_seconds_min, limits.lease_seconds_max));
  }
  if (limits.inline_bytes > limits.message_bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("limits.inline_bytes, %d, is above limits.message_bytes, %d: such values "
                        "would not fit a message",
                        limits.inline_bytes, limits.message_bytes));
  }
  if (limits.message_bytes > limits.transport_bytes / 2) {
    return absl::InvalidArgumentError(
        absl::StrFormat("limits.message_bytes, %d, is above half of limits.transport_bytes, %d: "
                        "such messages would not arrive; raise transport_bytes",
                        limits.message_bytes, limits.transport_bytes));
  }
  if (limits.chunk_bytes > limits.message_bytes / 2) {
    return absl::InvalidArgumentError(
        absl::StrFormat("limits.chunk_bytes, %d, is above half of limits.message_bytes, %d: a "
                        "message must have room for a chunk "
                        "and what is said about it",
                        limits.chunk_bytes, limits.message_bytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ServerConfig> ParseConfig(std::string_view toml_text, std::string_view source_name) {
  if (toml_text.size() > kConfigBytesMax) {
    return ErrorAt({source_name, 1},
                   absl::StrFormat("the file has %d bytes, at most %d are allowed",
                                   toml_text.size(), kConfigBytesMax));
  }
  ServerConfig config;
  // The packaged toml++ reports errors as exceptions; none leaves this function.
  try {
    const toml::table document = toml::parse(toml_text, std::string(source_name));
    RETURN_IF_ERROR(ReadDocument(source_name, document, ConfigKeys(config)));
  } catch (const toml::parse_error& error) {
    return ErrorAt({source_name, error.source().begin.line}, std::string(error.description()));
  } catch (const std::exception& error) {
    return ErrorAt({source_name, 1}, error.what());
  }
  return config;
}

absl::StatusOr<ServerConfig> ReadConfigFile(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  // One byte more than allowed, so that ParseConfig sees that it is too long.
  std::string text(kConfigBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file && file.gcount() == 0 && !(file.eof() && errno == 0)) {
    return absl::ErrnoToStatus(errno, absl::StrFormat("can't read the config file %s", path));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  return ParseConfig(text, path);
}

absl::Status CheckConfig(const ServerConfig& config) {
  RETURN_IF_ERROR(CheckName(config.name));
  if (FindGpuModel(config.devices.sim_model) == nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat("simulated.model is \"%s\"; known: %s",
                                                      config.devices.sim_model, GpuModelNames()));
  }
  RETURN_IF_ERROR(CheckAddresses(config));
  return CheckLimits(config.limits);
}

std::string FormatConfig(const ServerConfig& config) {
  ServerConfig copy = config;
  std::string text;
  std::string_view section;
  for (const ConfigKey& key : ConfigKeys(copy)) {
    if (key.section() != section) {
      section = key.section();
      text += absl::StrFormat("%s[%s]\n", text.empty() ? "" : "\n", section);
    }
    text += absl::StrFormat("%s = %s\n", key.leaf(), FormatValue(key));
  }
  return text;
}

}  // namespace devserver
