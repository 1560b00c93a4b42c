// Memory of CPU and simulated devices. Fresh pages are the slowest thing on a server, so blocks are
// kept by size class and used again; large ones ask for huge pages.
//
// HostMemory is the machine's budget, shared by every pool: four simulated 16 GB devices must not
// bring down a host of 24. MemoryPool is one device's memory under the device's own limit. Thread
// safety: any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/mutex.h"

namespace devserver {

class MemoryPool;

// Counts bytes of real memory over all pools of this process.
class HostMemory {
 public:
  explicit HostMemory(uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // False if it would exceed the limit; nothing is taken then.
  bool TryReserve(uint64_t size_bytes);
  void Release(uint64_t size_bytes);
  uint64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }
  uint64_t limit_bytes() const { return limit_bytes_; }
  // Asks every pool to give its cached blocks back to the kernel.
  void TrimPools();

 private:
  friend class MemoryPool;

  // Constant after construction.
  const uint64_t limit_bytes_;
  std::atomic<uint64_t> used_bytes_ = 0;  // A count; orders nothing.
  // Guarded by mu_.
  Mutex mu_;
  std::vector<MemoryPool*> pools_ ABSL_GUARDED_BY(mu_);
};

class MemoryPool {
 public:
  struct Options {
    std::string device_name;   // for messages
    uint64_t limit_bytes = 0;  // of tensors, exact sizes
    uint64_t cache_limit_bytes =
        0;  // free blocks kept for reuse; beyond it they go back to the kernel
  };

  // `host` must outlive the pool.
  MemoryPool(Options options, HostMemory* host);
  // All blocks must have been freed.
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // 64-byte aligned, contents undefined, null for size 0. ResourceExhausted (kDeviceMemory: asked,
  // used, limit) if the device's limit or the host's budget would be exceeded, after the cache has
  // been given back and one more try.
  absl::StatusOr<std::byte*> Allocate(size_t size_bytes);
  void Free(std::byte* data, size_t size_bytes);

  uint64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }
  uint64_t peak_bytes() const { return peak_bytes_.load(std::memory_order_relaxed); }
  uint64_t reserved_bytes() const;
  // Gives every cached block back to the kernel.
  void Trim();

  // The block size that serves `size_bytes`: four classes per power of two, so at most a quarter is
  // lost.
  static size_t BlockBytes(size_t size_bytes);

 private:
  static constexpr int kClassCount = 4 * 48;
  static int ClassOf(size_t block_bytes);

  std::byte* TakeCached(size_t block_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NotePeak() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::byte* MapBlock(size_t block_bytes);
  void UnmapBlock(std::byte* data, size_t block_bytes);

  // Constant after construction.
  const Options options_;
  HostMemory* const host_;
  // Written under mu_, read by anybody.
  std::atomic<uint64_t> used_bytes_ = 0;
  std::atomic<uint64_t> peak_bytes_ = 0;
  // Guarded by mu_.
  mutable Mutex mu_;
  std::array<std::vector<std::byte*>, kClassCount> free_ ABSL_GUARDED_BY(mu_);
  uint64_t cached_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace devserver
