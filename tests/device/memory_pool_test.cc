#include "server/device/memory_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "server/base/error_details.h"

namespace devserver {
namespace {

constexpr uint64_t kMiB = 1 << 20;

MemoryPool::Options Options(uint64_t limit_bytes, uint64_t cache_limit_bytes) {
  return {"gpu:0", limit_bytes, cache_limit_bytes};
}

TEST(MemoryPool, FreedBlocksAreUsedAgain) {
  HostMemory host(64 * kMiB);
  MemoryPool pool(Options(32 * kMiB, 32 * kMiB), &host);
  std::byte* const first = *pool.Allocate(3 * kMiB);
  pool.Free(first, 3 * kMiB);
  EXPECT_EQ(pool.reserved_bytes(), MemoryPool::BlockBytes(3 * kMiB));
  std::byte* const second = *pool.Allocate(3 * kMiB - 100);  // of the same class
  EXPECT_EQ(second, first);
  EXPECT_EQ(pool.reserved_bytes(), 0u);
  pool.Free(second, 3 * kMiB - 100);
}

TEST(MemoryPool, BlocksLoseAtMostAQuarter) {
  size_t last = 0;
  for (size_t size = 1; size < 5000; ++size) {
    const size_t block = MemoryPool::BlockBytes(size);
    ASSERT_GE(block, size);
    ASSERT_GE(block, last);
    ASSERT_TRUE(size <= 64 || static_cast<double>(block) < 1.25 * static_cast<double>(size) + 1)
        << size << " " << block;
    ASSERT_EQ(MemoryPool::BlockBytes(block), block);
    last = block;
  }
  EXPECT_EQ(MemoryPool::BlockBytes(size_t{5} << 30), size_t{5} << 30);
}

TEST(MemoryPool, CountsExactSizesAgainstTheLimit) {
  HostMemory host(64 * kMiB);
  MemoryPool pool(Options(1000, kMiB), &host);
  std::byte* const all = *pool.Allocate(1000);
  EXPECT_EQ(pool.used_bytes(), 1000u);
  const auto more = pool.Allocate(1);
  ASSERT_TRUE(absl::IsResourceExhausted(more.status()));
  const auto details = DetailsOf(more.status());
  ASSERT_TRUE(details.has_value());
  EXPECT_EQ(details->device, "gpu:0");
  EXPECT_EQ(details->asked, 1u);
  EXPECT_EQ(details->used, 1000u);
  EXPECT_EQ(details->limit, 1000u);
  EXPECT_EQ(pool.used_bytes(), 1000u);
  pool.Free(all, 1000);
  EXPECT_EQ(pool.used_bytes(), 0u);
  EXPECT_EQ(pool.peak_bytes(), 1000u);
}

TEST(MemoryPool, CacheStaysWithinItsLimit) {
  HostMemory host(64 * kMiB);
  MemoryPool pool(Options(32 * kMiB, 2 * kMiB), &host);
  std::vector<std::byte*> blocks;
  for (int i = 0; i < 8; ++i) {
    blocks.push_back(*pool.Allocate(kMiB));
  }
  for (std::byte* const block : blocks) {
    pool.Free(block, kMiB);
  }
  EXPECT_LE(pool.reserved_bytes(), 2 * kMiB);
  EXPECT_EQ(host.used_bytes(), pool.reserved_bytes());
}

TEST(MemoryPool, TheBlockUsedLastIsKeptAndLargerOnesMakeRoom) {
  HostMemory host(64 * kMiB);
  MemoryPool pool(Options(32 * kMiB, 8 * kMiB), &host);
  std::byte* const first = *pool.Allocate(6 * kMiB);
  std::byte* const second = *pool.Allocate(7 * kMiB);
  pool.Free(first, 6 * kMiB);
  pool.Free(second, 7 * kMiB);
  EXPECT_EQ(pool.reserved_bytes(), 7 * kMiB);
  EXPECT_EQ(*pool.Allocate(7 * kMiB), second);
  pool.Free(second, 7 * kMiB);
}

TEST(MemoryPool, TrimGivesEverythingBackToTheHost) {
  HostMemory host(64 * kMiB);
  MemoryPool pool(Options(32 * kMiB, 32 * kMiB), &host);
  for (const size_t size : {size_t{1}, size_t{100}, size_t{5000}, 3 * kMiB, 7 * kMiB}) {
    pool.Free(*pool.Allocate(size), size);
  }
  EXPECT_GT(host.used_bytes(), 10 * kMiB);
  pool.Trim();
  EXPECT_EQ(host.used_bytes(), 0u);
  EXPECT_EQ(pool.reserved_bytes(), 0u);
}

TEST(MemoryPool, AnotherPoolsCacheMakesRoom) {
  HostMemory host(8 * kMiB);
  MemoryPool idle(Options(8 * kMiB, 8 * kMiB), &host);
  MemoryPool busy(Options(8 * kMiB, 8 * kMiB), &host);
  idle.Free(*idle.Allocate(6 * kMiB), 6 * kMiB);
  const auto block = busy.Allocate(6 * kMiB);
  ASSERT_TRUE(block.ok()) << block.status();
  EXPECT_EQ(idle.reserved_bytes(), 0u);
  busy.Free(*block, 6 * kMiB);
}

TEST(MemoryPool, HostsLimitHoldsOverAllPools) {
  HostMemory host(8 * kMiB);
  MemoryPool first(Options(8 * kMiB, 0), &host);
  MemoryPool second(Options(8 * kMiB, 0), &host);
  std::byte* const block = *first.Allocate(6 * kMiB);
  const auto refused = second.Allocate(6 * kMiB);
  ASSERT_TRUE(absl::IsResourceExhausted(refused.status()));
  const std::string message(refused.status().message());
  EXPECT_NE(message.find("the host of gpu:0"), std::string::npos) << message;
  EXPECT_EQ(second.used_bytes(), 0u);
  first.Free(block, 6 * kMiB);
  EXPECT_EQ(host.used_bytes(), 0u);
}

TEST(MemoryPool, ThreadsShareItWithoutLosingAByte) {
  constexpr uint64_t kSeed = 99;
  HostMemory host(64 * kMiB);
  MemoryPool pool(Options(16 * kMiB, 4 * kMiB), &host);
  const auto work = [&](uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::pair<std::byte*, size_t>> held;
    for (int i = 0; i < 2000; ++i) {
      const size_t size = random() % 100000 + 1;
      const auto block = pool.Allocate(size);
      if (block.ok()) {
        std::memset(*block, static_cast<int>(seed),
                    size);  // two owners of one block would race here
        held.emplace_back(*block, size);
      }
      if (held.size() > 20 || !block.ok()) {
        const auto [data, bytes] = held.back();
        EXPECT_EQ(data[0], static_cast<std::byte>(seed));
        EXPECT_EQ(data[bytes - 1], static_cast<std::byte>(seed));
        pool.Free(data, bytes);
        held.pop_back();
      }
    }
    for (const auto& [data, bytes] : held) {
      pool.Free(data, bytes);
    }
  };
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 4; ++i) {
    threads.emplace_back(work, kSeed + i);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(pool.used_bytes(), 0u);
  EXPECT_LE(pool.peak_bytes(), 16 * kMiB);
  EXPECT_EQ(host.used_bytes(), pool.reserved_bytes());
}

}  // namespace
}  // namespace devserver
