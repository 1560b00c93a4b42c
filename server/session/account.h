// What a session may use and does use. Shared by the session and its tensors: work that is still
// queued when a session is closed keeps its account alive until the last buffer is back. Thread
// safety: any thread; the counters are atomic and, but for in_flight, order nothing. Those that
// different threads write at every command are kept on cache lines of their own.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "server/session/limits.h"

namespace devserver {

class Account {
 public:
  Account(std::string session_name, const Limits& limits, size_t device_count);

  // ResourceExhausted (kQuota, with asked, used and limit) if the session's byte quota would be
  // exceeded.
  absl::Status ReserveBytes(size_t device_index, uint64_t size_bytes);
  void ReleaseBytes(size_t device_index, uint64_t size_bytes);
  uint64_t bytes_on(size_t device_index) const {
    return bytes_by_device_[device_index].load(std::memory_order_relaxed);
  }
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

  // Tensors on a device: in the table, or still needed by queued work.
  void TensorAdded(size_t device_index) {
    tensors_by_device_[device_index].fetch_add(1, std::memory_order_relaxed);
  }
  void TensorRemoved(size_t device_index) {
    tensors_by_device_[device_index].fetch_sub(1, std::memory_order_relaxed);
  }
  uint64_t tensors_on(size_t device_index) const {
    return tensors_by_device_[device_index].load(std::memory_order_relaxed);
  }

  // Commands that were accepted and have not finished.
  void CommandStarted() { started_.fetch_add(1, std::memory_order_relaxed); }
  void CommandFinished() { done_.fetch_add(1, std::memory_order_release); }
  uint64_t in_flight() const {
    // In this order: the start of whatever is counted as done is seen.
    const uint64_t done = done_.load(std::memory_order_acquire);
    return started_.load(std::memory_order_relaxed) - done;
  }
  uint64_t done() const { return done_.load(std::memory_order_relaxed); }

  // The transfer ledger: copies between devices that finished.
  void AddCopy(uint64_t size_bytes, double measured_seconds, double simulated_seconds);
  uint64_t copied_bytes() const { return copied_bytes_.load(std::memory_order_relaxed); }
  double copy_seconds_measured() const { return copy_measured_.load(std::memory_order_relaxed); }
  double copy_seconds_simulated() const { return copy_simulated_.load(std::memory_order_relaxed); }

  // Set once when the session is closed; queued work that sees it does not start.
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

  const std::string& session_name() const { return session_name_; }

 private:
  static constexpr size_t kCacheLine = 64;
  // Constant after construction.
  const std::string session_name_;
  const uint64_t bytes_limit_;
  const std::unique_ptr<std::atomic<uint64_t>[]> bytes_by_device_;
  const std::unique_ptr<std::atomic<uint64_t>[]> tensors_by_device_;

  alignas(kCacheLine) std::atomic<uint64_t> started_ = 0;  // by who accepts commands
  alignas(kCacheLine) std::atomic<uint64_t> done_ = 0;     // by devices
  alignas(kCacheLine) std::atomic<uint64_t> bytes_ = 0;    // by both
  alignas(kCacheLine) std::atomic<uint64_t> copied_bytes_ = 0;
  std::atomic<double> copy_measured_ = 0;
  std::atomic<double> copy_simulated_ = 0;
  std::atomic<bool> cancelled_ = false;
};

}  // namespace devserver
