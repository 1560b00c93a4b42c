#include "tests/fakes/faulty_device.h"

#include "absl/strings/str_format.h"
#include "server/base/status_macros.h"

namespace devserver {

void FaultPlan::Fail(uint64_t call, Kind kind) {
  calls_.store(0, std::memory_order_relaxed);
  fail_call_.store(call, std::memory_order_relaxed);
  persistent_.store(kind == Kind::kPersistent, std::memory_order_relaxed);
  tripped_.store(false, std::memory_order_relaxed);
}

absl::Status FaultPlan::Check(std::string_view what) {
  const uint64_t call = calls_.fetch_add(1, std::memory_order_relaxed) + 1;
  const uint64_t first = fail_call_.load(std::memory_order_relaxed);
  const bool persistent = persistent_.load(std::memory_order_relaxed);
  if (first == 0 || call < first || (call > first && !persistent)) {
    return absl::OkStatus();
  }
  tripped_.store(true, std::memory_order_relaxed);
  return absl::UnavailableError(absl::StrFormat("injected fault: call %d (%s)", call, what));
}

absl::StatusOr<DeviceBuffer> FaultyDevice::Allocate(size_t size_bytes) {
  RETURN_IF_ERROR(plan_.Check("allocate"));
  return real_->Allocate(size_bytes);
}

absl::Status FaultyDevice::CopyFromHost(std::span<const std::byte> source, std::byte* target) {
  RETURN_IF_ERROR(plan_.Check("copy from host"));
  return real_->CopyFromHost(source, target);
}

absl::Status FaultyDevice::CopyToHost(const std::byte* source, std::span<std::byte> target) {
  RETURN_IF_ERROR(plan_.Check("copy to host"));
  return real_->CopyToHost(source, target);
}

absl::Status FaultyDevice::CopyFromPeer(Device& peer, const std::byte* source, std::byte* target,
                                        size_t size_bytes) {
  RETURN_IF_ERROR(plan_.Check("copy from peer"));
  return real_->CopyFromPeer(peer, source, target, size_bytes);
}

absl::Status FaultyDevice::Run(const OpCall& call) {
  RETURN_IF_ERROR(plan_.Check(GetOp(call.code).name));
  return real_->Run(call);
}

absl::Status FaultyDevice::Synchronize() {
  RETURN_IF_ERROR(plan_.Check("synchronize"));
  return real_->Synchronize();
}

}  // namespace devserver
