#include "server/session/account.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "server/base/error_details.h"

namespace devserver {

Account::Account(std::string session_name, const Limits& limits, size_t device_count)
    : session_name_(std::move(session_name)),
      bytes_limit_(limits.session_bytes),
      bytes_by_device_(std::make_unique<std::atomic<uint64_t>[]>(device_count)),
      tensors_by_device_(std::make_unique<std::atomic<uint64_t>[]>(device_count)) {}

absl::Status Account::ReserveBytes(size_t device_index, uint64_t size_bytes) {
  uint64_t used = bytes_.load(std::memory_order_relaxed);
  do {
    if (size_bytes > bytes_limit_ || used > bytes_limit_ - size_bytes) {
      ErrorDetails details;
      details.reason = ErrorReason::kQuota;
      details.asked = size_bytes;
      details.used = used;
      details.limit = bytes_limit_;
      return WithDetails(
          absl::ResourceExhaustedError(absl::StrFormat(
              "session '%s' is over its byte quota: asked %d bytes, used %d, limit %d "
              "(limits.session_bytes); delete tensors",
              session_name_, size_bytes, used, bytes_limit_)),
          details);
    }
  } while (!bytes_.compare_exchange_weak(used, used + size_bytes, std::memory_order_relaxed));
  bytes_by_device_[device_index].fetch_add(size_bytes, std::memory_order_relaxed);
  return absl::OkStatus();
}

void Account::ReleaseBytes(size_t device_index, uint64_t size_bytes) {
  bytes_by_device_[device_index].fetch_sub(size_bytes, std::memory_order_relaxed);
  bytes_.fetch_sub(size_bytes, std::memory_order_relaxed);
}

void Account::AddCopy(uint64_t size_bytes, double measured_seconds, double simulated_seconds) {
  copied_bytes_.fetch_add(size_bytes, std::memory_order_relaxed);
  copy_measured_.fetch_add(measured_seconds, std::memory_order_relaxed);
  copy_simulated_.fetch_add(simulated_seconds, std::memory_order_relaxed);
}

}  // namespace devserver
