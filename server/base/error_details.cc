#include "server/base/error_details.h"

#include <cstring>
#include <string_view>

#include "absl/strings/cord.h"

namespace devserver {
namespace {

constexpr char kPayloadUrl[] = "devserver/error_details";

// The fixed part of the payload; the two strings follow, each ended by NUL. Lives inside one
// process only.
struct Fixed {
  int32_t reason;
  uint64_t origin_tensor, command_number, asked, used, limit, cure_source, cure_bytes;
  double cure_seconds;
};

}  // namespace

absl::Status WithDetails(absl::Status status, const ErrorDetails& details) {
  Fixed fixed = {};
  fixed.reason = static_cast<int32_t>(details.reason);
  fixed.origin_tensor = details.origin_tensor;
  fixed.command_number = details.command_number;
  fixed.asked = details.asked;
  fixed.used = details.used;
  fixed.limit = details.limit;
  fixed.cure_source = details.cure_source;
  fixed.cure_bytes = details.cure_bytes;
  fixed.cure_seconds = details.cure_seconds;
  std::string payload(reinterpret_cast<const char*>(&fixed), sizeof(fixed));
  payload.append(details.device.c_str(), details.device.size() + 1);
  payload.append(details.cure_device.c_str(), details.cure_device.size() + 1);
  status.SetPayload(kPayloadUrl, absl::Cord(payload));
  return status;
}

std::optional<ErrorDetails> DetailsOf(const absl::Status& status) {
  const auto cord = status.GetPayload(kPayloadUrl);
  if (!cord.has_value()) {
    return std::nullopt;
  }
  const std::string payload(*cord);
  Fixed fixed;
  std::memcpy(&fixed, payload.data(), sizeof(fixed));
  ErrorDetails details;
  details.reason = static_cast<ErrorReason>(fixed.reason);
  details.origin_tensor = fixed.origin_tensor;
  details.command_number = fixed.command_number;
  details.asked = fixed.asked;
  details.used = fixed.used;
  details.limit = fixed.limit;
  details.cure_source = fixed.cure_source;
  details.cure_bytes = fixed.cure_bytes;
  details.cure_seconds = fixed.cure_seconds;
  details.device = payload.c_str() + sizeof(fixed);
  details.cure_device = payload.c_str() + sizeof(fixed) + details.device.size() + 1;
  return details;
}

absl::Status MakeError(absl::StatusCode code, ErrorReason reason, const std::string& message) {
  ErrorDetails details;
  details.reason = reason;
  return WithDetails(absl::Status(code, message), details);
}

}  // namespace devserver
