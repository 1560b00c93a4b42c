#include "client/tensor_handle.h"

#include "absl/strings/str_format.h"
#include "client/connection.h"
#include "server/base/error_details.h"

namespace devserver::client {

TensorHandle::~TensorHandle() {
  if (connection != nullptr) {
    connection->Release(this);
  }
}

absl::Status PassOn(std::string_view name, const TensorHandle& input) {
  ErrorDetails details = DetailsOf(input.failure).value_or(ErrorDetails{});
  if (details.reason == ErrorReason::kInputFailed ||
      details.reason == ErrorReason::kSessionExpired ||
      (details.reason == ErrorReason::kUnspecified &&
       input.failure.code() == absl::StatusCode::kUnavailable)) {
    return input.failure;  // It quotes the root cause already, or is nobody's in particular.
  }
  details.reason = ErrorReason::kInputFailed;
  if (details.origin_tensor == 0) {
    details.origin_tensor = input.id;
    details.command_number = input.command_number;
  }
  return WithDetails(
      absl::FailedPreconditionError(absl::StrFormat("%s: an input has failed: %s: %s", name,
                                                    absl::StatusCodeToString(input.failure.code()),
                                                    std::string(input.failure.message()))),
      details);
}

}  // namespace devserver::client
