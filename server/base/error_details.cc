#include "server/base/error_details.h"

#include <array>
#include <string_view>

#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace devserver {
namespace {

// The payload is text, "reason=DEVICE_MISMATCH cure_source=3 ..", with what is not its default:
// people see it wherever a status is printed whole. Lives inside one process only.
constexpr char kPayloadUrl[] = "devserver/error_details";

// By number; the names are those of OpError.Reason.
constexpr std::array<std::string_view, 16> kReasonNames = {
    "REASON_UNSPECIFIED", "NO_SUCH_TENSOR",    "NO_SUCH_DEVICE", "NO_SUCH_OP",    "SHAPE_MISMATCH",
    "DEVICE_MISMATCH",    "DTYPE_UNSUPPORTED", "DEVICE_MEMORY",  "QUOTA",         "LIMIT",
    "INPUT_FAILED",       "DUPLICATE_ID",      "DEVICE_LOST",    "TOO_EXPENSIVE", "SESSION_EXPIRED",
    "CANCELLED",
};

std::string ReasonToText(ErrorReason reason) {
  const auto number = static_cast<size_t>(reason);
  return number < kReasonNames.size() ? std::string(kReasonNames[number]) : absl::StrCat(number);
}

ErrorReason ReasonFromText(std::string_view text) {
  for (size_t i = 0; i < kReasonNames.size(); ++i) {
    if (kReasonNames[i] == text) {
      return static_cast<ErrorReason>(i);
    }
  }
  int32_t number = 0;
  (void)absl::SimpleAtoi(absl::string_view(text.data(), text.size()), &number);
  return static_cast<ErrorReason>(number);
}

// Visits each field with its name, for writing and for reading.
template <typename Details, typename Numbers, typename Strings, typename Seconds>
void ForEachField(Details& details, Numbers number, Strings string, Seconds seconds) {
  number("origin_tensor", details.origin_tensor);
  number("command_number", details.command_number);
  string("device", details.device);
  number("asked", details.asked);
  number("used", details.used);
  number("limit", details.limit);
  number("cure_source", details.cure_source);
  string("cure_device", details.cure_device);
  number("cure_bytes", details.cure_bytes);
  seconds("cure_seconds", details.cure_seconds);
}

}  // namespace

absl::Status WithDetails(absl::Status status, const ErrorDetails& details) {
  std::string text = absl::StrCat("reason=", ReasonToText(details.reason));
  ForEachField(
      details,
      [&](const char* name, uint64_t value) {
        if (value != 0) {
          absl::StrAppend(&text, " ", name, "=", value);
        }
      },
      [&](const char* name, const std::string& value) {
        if (!value.empty()) {
          // Names hold no blanks; one from outside might.
          absl::StrAppend(&text, " ", name, "=",
                          absl::StrReplaceAll(absl::CEscape(value), {{" ", "\\040"}}));
        }
      },
      [&](const char* name, double value) {
        if (value >= 0) {
          absl::StrAppendFormat(&text, " %s=%.17g", name, value);
        }
      });
  status.SetPayload(kPayloadUrl, absl::Cord(text));
  return status;
}

std::optional<ErrorDetails> DetailsOf(const absl::Status& status) {
  const auto cord = status.GetPayload(kPayloadUrl);
  if (!cord.has_value()) {
    return std::nullopt;
  }
  const std::string text(*cord);
  ErrorDetails details;
  for (const absl::string_view field : absl::StrSplit(text, ' ')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(field, absl::MaxSplits('=', 1));
    const auto& [key, value] = parts;
    if (key == "reason") {
      details.reason = ReasonFromText({value.data(), value.size()});
      continue;
    }
    ForEachField(
        details,
        [&, &key = key, &value = value](const char* name, uint64_t& number) {
          if (key == name) {
            (void)absl::SimpleAtoi(value, &number);
          }
        },
        [&, &key = key, &value = value](const char* name, std::string& string) {
          if (key == name) {
            (void)absl::CUnescape(value, &string);
          }
        },
        [&, &key = key, &value = value](const char* name, double& seconds) {
          if (key == name) {
            (void)absl::SimpleAtod(value, &seconds);
          }
        });
  }
  return details;
}

absl::Status MakeError(absl::StatusCode code, ErrorReason reason, const std::string& message) {
  ErrorDetails details;
  details.reason = reason;
  return WithDetails(absl::Status(code, message), details);
}

}  // namespace devserver
