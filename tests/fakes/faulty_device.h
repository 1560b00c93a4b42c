// A real device whose calls fail when the plan says so, to walk through every point of failure of a
// scenario: fail call 1, call 2, .. until the scenario passes untouched.
//
// Thread safety: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

#include "server/device/device.h"

namespace devserver {

// Counts the calls of all devices that share it.
class FaultPlan {
 public:
  enum class Kind : uint8_t { kTransient, kPersistent };

  // Call number `call` (from 1, counted from now) fails; persistent: and every later one.
  void Fail(uint64_t call, Kind kind);
  // Nothing fails any more.
  void Stop() { Fail(0, Kind::kTransient); }
  // Whether a call was failed since Fail.
  bool tripped() const { return tripped_.load(std::memory_order_relaxed); }
  uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }

  // UNAVAILABLE, naming `what` and the call's number, if this call is to fail.
  absl::Status Check(std::string_view what);

 private:
  // Counts and settings; order nothing.
  std::atomic<uint64_t> calls_ = 0;
  std::atomic<uint64_t> fail_call_ = 0;  // 0: none
  std::atomic<bool> persistent_ = false;
  std::atomic<bool> tripped_ = false;
};

class FaultyDevice final : public Device {
 public:
  enum class Memory : uint8_t {
    kHost,     // as the real device says
    kForeign,  // like a GPU's: the host may not read it but through CopyToHost, and ops end at
               // Synchronize
  };

  // `plan` must outlive the device.
  FaultyDevice(std::unique_ptr<Device> real, FaultPlan* plan, Memory memory)
      : real_(std::move(real)), plan_(*plan), memory_(memory) {}

  const DeviceProperties& properties() const override { return real_->properties(); }
  DeviceMemory memory() const override { return real_->memory(); }
  Telemetry telemetry() const override { return real_->telemetry(); }
  bool Supports(OpCode code, DType dtype) const override { return real_->Supports(code, dtype); }
  bool host_readable() const override { return memory_ == Memory::kHost && real_->host_readable(); }
  double simulated_seconds() const override { return real_->simulated_seconds(); }

  absl::StatusOr<DeviceBuffer> Allocate(size_t size_bytes) override;
  absl::Status CopyFromHost(std::span<const std::byte> source, std::byte* target) override;
  absl::Status CopyToHost(const std::byte* source, std::span<std::byte> target) override;
  absl::Status CopyFromPeer(Device& peer, const std::byte* source, std::byte* target,
                            size_t size_bytes) override;
  absl::Status Run(const OpCall& call) override;
  absl::Status Synchronize() override;
  void AdvanceClock(double simulated_seconds) override { real_->AdvanceClock(simulated_seconds); }

 private:
  // Buffers belong to the real device.
  void Free(std::byte* /*data*/, size_t /*size_bytes*/) override {}

  // Constant after construction.
  const std::unique_ptr<Device> real_;
  FaultPlan& plan_;
  const Memory memory_;
};

}  // namespace devserver
