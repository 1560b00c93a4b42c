// What a program needs of an error so that it does not parse texts. Travels inside an absl::Status
// as a payload; the RPC layer turns it into the typed detail devserver.v1.OpError and the client
// library turns that back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace devserver {

// The numbers travel: see OpError.Reason in proto/devserver/v1/types.proto.
enum class ErrorReason : int32_t {
  kUnspecified = 0,
  kNoSuchTensor = 1,
  kNoSuchDevice = 2,
  kNoSuchOp = 3,
  kShapeMismatch = 4,
  kDeviceMismatch = 5,
  kDtypeUnsupported = 6,
  kDeviceMemory = 7,
  kQuota = 8,
  kLimit = 9,
  kInputFailed = 10,
  kDuplicateId = 11,
  kDeviceLost = 12,
  kTooExpensive = 13,
  kSessionExpired = 14,
  kCancelled = 15,
};

struct ErrorDetails {
  ErrorReason reason = ErrorReason::kUnspecified;
  uint64_t origin_tensor = 0;   // the tensor whose command failed first; 0: none
  uint64_t command_number = 0;  // of the origin, 0 outside Execute
  std::string device;

  // For kDeviceMemory, kQuota, kLimit. Bytes, handles, or commands, as the message says.
  uint64_t asked = 0;
  uint64_t used = 0;
  uint64_t limit = 0;

  // For kDeviceMismatch: the copy that would mend it, and its price (negative: unknown).
  uint64_t cure_source = 0;
  std::string cure_device;
  uint64_t cure_bytes = 0;
  double cure_seconds = -1;
};

// `status` with `details` attached; `status` must not be OK. Strings in `details` hold no NUL.
absl::Status WithDetails(absl::Status status, const ErrorDetails& details);

// What WithDetails attached, if anything.
std::optional<ErrorDetails> DetailsOf(const absl::Status& status);

// An error of `code` with only a reason attached.
absl::Status MakeError(absl::StatusCode code, ErrorReason reason, const std::string& message);

}  // namespace devserver
