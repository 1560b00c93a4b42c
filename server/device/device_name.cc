#include "server/device/device_name.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "server/base/error_details.h"

namespace devserver {
namespace {

constexpr size_t kShownMax = 64;  // A name from outside may be a megabyte.

std::string Shown(std::string_view name) {
  std::string text;
  for (const char c : name.substr(0, kShownMax)) {
    text += absl::ascii_isprint(static_cast<unsigned char>(c)) ? c : '?';
  }
  return name.size() > kShownMax ? text + "..." : text;
}

absl::Status Unknown(std::string_view name) {
  return MakeError(
      absl::StatusCode::kInvalidArgument, ErrorReason::kNoSuchDevice,
      absl::StrFormat("\"%s\" is no device name; give cpu:0 or gpu:N (cpu, gpu and cuda:N are "
                      "understood too), or nothing for cpu:0",
                      Shown(name)));
}

}  // namespace

absl::StatusOr<std::string> CanonicalDeviceName(std::string_view name) {
  if (name.empty()) {
    return "cpu:0";
  }
  const size_t slash = name.find('/');
  if (slash != std::string_view::npos) {
    return MakeError(absl::StatusCode::kNotFound, ErrorReason::kNoSuchDevice,
                     absl::StrFormat("\"%s\" is a device of server \"%s\"; this server knows no "
                                     "other servers, name its own devices, as in gpu:0",
                                     Shown(name), Shown(name.substr(0, slash))));
  }
  const size_t colon = name.find(':');
  std::string kind(name.substr(0, std::min(colon, name.size())));
  absl::AsciiStrToLower(&kind);
  if (kind == "cuda") {
    kind = "gpu";
  }
  if (kind != "cpu" && kind != "gpu") {
    return Unknown(name);
  }
  if (colon == std::string_view::npos) {
    return kind + ":0";
  }
  const std::string_view digits = name.substr(colon + 1);
  // Four digits: more devices than any machine has, and no number that could overflow.
  if (digits.empty() || digits.size() > 4 ||
      !std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; })) {
    return Unknown(name);
  }
  return absl::StrFormat("%s:%d", kind, std::stoi(std::string(digits)));
}

}  // namespace devserver
