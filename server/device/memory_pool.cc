#include "server/device/memory_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_format.h"
#include "server/base/error_details.h"

namespace devserver {
namespace {

constexpr size_t kBlockBytesMin =
    64;  // A cache line: keeps buffers apart and oneDNN's loads aligned.
constexpr size_t kMapBytesMin = size_t{2}
                                << 20;  // From one huge page on, blocks are mapped for themselves.

// The block size of class `index`; MemoryPool::ClassOf the other way round.
size_t ClassBytes(size_t index) {
  const size_t power = kBlockBytesMin << (index / 4);
  return power + power / 4 * (index % 4);
}

absl::Status OutOfMemory(const std::string& whose, uint64_t asked, uint64_t used, uint64_t limit,
                         std::string_view cure) {
  ErrorDetails details;
  details.reason = ErrorReason::kDeviceMemory;
  details.device = whose;
  details.asked = asked;
  details.used = used;
  details.limit = limit;
  return WithDetails(absl::ResourceExhaustedError(absl::StrFormat(
                         "%s is out of memory: asked %d bytes, used %d, limit %d; %s", whose, asked,
                         used, limit, cure)),
                     details);
}

}  // namespace

bool HostMemory::TryReserve(uint64_t size_bytes) {
  uint64_t used = used_bytes_.load(std::memory_order_relaxed);
  do {
    if (size_bytes > limit_bytes_ || used > limit_bytes_ - size_bytes) {
      return false;
    }
  } while (!used_bytes_.compare_exchange_weak(used, used + size_bytes, std::memory_order_relaxed));
  return true;
}

void HostMemory::Release(uint64_t size_bytes) {
  used_bytes_.fetch_sub(size_bytes, std::memory_order_relaxed);
}

void HostMemory::TrimPools() {
  const MutexLock lock(&mu_);
  for (MemoryPool* const pool : pools_) {
    pool->Trim();
  }
}

MemoryPool::MemoryPool(Options options, HostMemory* host)
    : options_(std::move(options)), host_(host) {
  const MutexLock lock(&host_->mu_);
  host_->pools_.push_back(this);
}

MemoryPool::~MemoryPool() {
  assert(used_bytes() == 0);
  {
    const MutexLock lock(&host_->mu_);
    std::erase(host_->pools_, this);
  }
  Trim();
}

size_t MemoryPool::BlockBytes(size_t size_bytes) {
  if (size_bytes <= kBlockBytesMin) {
    return kBlockBytesMin;
  }
  const size_t quarter = std::bit_floor(size_bytes - 1) / 4;
  return (size_bytes + quarter - 1) / quarter * quarter;
}

int MemoryPool::ClassOf(size_t block_bytes) {
  // A block is (4 + j)·2^e / 4 bytes: e picks the power of two, j the quarter.
  const size_t power = std::bit_floor(block_bytes);
  const int quarter = static_cast<int>((block_bytes - power) / (power / 4));
  return 4 * (std::countr_zero(power) - std::countr_zero(kBlockBytesMin)) + quarter;
}

std::byte* MemoryPool::TakeCached(size_t block_bytes) {
  std::vector<std::byte*>& blocks = free_[static_cast<size_t>(ClassOf(block_bytes))];
  if (blocks.empty()) {
    return nullptr;
  }
  std::byte* const data = blocks.back();
  blocks.pop_back();
  cached_bytes_ -= block_bytes;
  return data;
}

std::byte* MemoryPool::MapBlock(size_t block_bytes) {
  if (!host_->TryReserve(block_bytes)) {
    return nullptr;
  }
  void* data = nullptr;
  if (block_bytes >= kMapBytesMin) {
    data = mmap(nullptr, block_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      data = nullptr;
    } else {
      madvise(data, block_bytes,
              MADV_HUGEPAGE);  // Only advice: fails harmlessly where it is switched off.
    }
  } else {
    data = std::aligned_alloc(kBlockBytesMin,
                              (block_bytes + kBlockBytesMin - 1) / kBlockBytesMin * kBlockBytesMin);
  }
  if (data == nullptr) {
    host_->Release(block_bytes);
  }
  return static_cast<std::byte*>(data);
}

void MemoryPool::UnmapBlock(std::byte* data, size_t block_bytes) {
  if (block_bytes >= kMapBytesMin) {
    munmap(data, block_bytes);
  } else {
    std::free(data);
  }
  host_->Release(block_bytes);
}

absl::StatusOr<std::byte*> MemoryPool::Allocate(size_t size_bytes) {
  if (size_bytes == 0) {
    return nullptr;
  }
  const size_t block_bytes = BlockBytes(size_bytes);
  std::byte* data = nullptr;
  {
    const MutexLock lock(&mu_);
    const uint64_t used = used_bytes();
    if (size_bytes > options_.limit_bytes || used > options_.limit_bytes - size_bytes) {
      return OutOfMemory(options_.device_name, size_bytes, used, options_.limit_bytes,
                         "delete tensors, or use another device");
    }
    used_bytes_.store(used + size_bytes, std::memory_order_relaxed);
    data = TakeCached(block_bytes);
    if (data != nullptr) {
      NotePeak();
      return data;
    }
  }
  data = MapBlock(block_bytes);
  if (data == nullptr) {
    host_->TrimPools();  // Memory that other devices only keep for reuse is free.
    data = MapBlock(block_bytes);
  }
  const MutexLock lock(&mu_);
  if (data == nullptr) {
    used_bytes_.store(used_bytes() - size_bytes, std::memory_order_relaxed);
    return OutOfMemory(absl::StrFormat("the host of %s", options_.device_name), block_bytes,
                       host_->used_bytes(), host_->limit_bytes(),
                       "delete tensors, or raise host_memory_bytes");
  }
  NotePeak();
  return data;
}

void MemoryPool::Free(std::byte* data, size_t size_bytes) {
  const size_t block_bytes = BlockBytes(size_bytes);
  std::vector<std::pair<std::byte*, size_t>> leaving;  // Unmapped after the lock.
  {
    const MutexLock lock(&mu_);
    used_bytes_.store(used_bytes() - size_bytes, std::memory_order_relaxed);
    // The block that was just used is the one worth keeping. The largest of the others go first:
    // that is the fewest system calls, and small blocks are the ones in steady use.
    const uint64_t limit = options_.cache_limit_bytes;
    const auto crowded = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return block_bytes <= limit && cached_bytes_ + block_bytes > limit;
    };
    for (size_t i = free_.size(); crowded() && i-- > 0;) {
      const size_t bytes = ClassBytes(i);
      while (!free_[i].empty() && crowded()) {
        leaving.emplace_back(free_[i].back(), bytes);
        free_[i].pop_back();
        cached_bytes_ -= bytes;
      }
    }
    if (cached_bytes_ + block_bytes <= limit) {
      free_[static_cast<size_t>(ClassOf(block_bytes))].push_back(data);
      cached_bytes_ += block_bytes;
    } else {
      leaving.emplace_back(data, block_bytes);
    }
  }
  for (const auto& [block, bytes] : leaving) {
    UnmapBlock(block, bytes);
  }
}

void MemoryPool::NotePeak() {
  peak_bytes_.store(std::max(peak_bytes(), used_bytes()), std::memory_order_relaxed);
}

uint64_t MemoryPool::reserved_bytes() const {
  const MutexLock lock(&mu_);
  return cached_bytes_;
}

void MemoryPool::Trim() {
  std::array<std::vector<std::byte*>, kClassCount> blocks;
  {
    const MutexLock lock(&mu_);
    std::swap(blocks, free_);
    cached_bytes_ = 0;
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    for (std::byte* const data : blocks[i]) {
      UnmapBlock(data, ClassBytes(i));
    }
  }
}

}  // namespace devserver
