// What the host's kernels need beside their operands: how many threads they may use, scratch
// memory, and oneDNN with its primitives kept by shape (making one costs 0.3 ms, running a cached
// one of 100×100 costs 14 us).
//
// Numerics: threads that compute flush subnormal numbers to zero and take subnormal operands for
// zero (FTZ and DAZ): a chain whose values decay would otherwise be 14 times slower. Ops that only
// move elements keep every bit. Threads: one HostMath per device, used by that device's queue
// thread only, and destroyed after its last use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "server/device/memory_pool.h"
#include "server/tensor/op_table.h"

namespace devserver {

// One product as oneDNN sees it: out[batch,m,n] = activation(a[a_batch,m,k] · b[b_batch,k,n] +
// bias[n]), all f32, packed; a_batch and b_batch are `batch` or 1. A transposed operand is stored
// as [k,m] or [n,k]. No size is 0.
struct ProductShape {
  int64_t batch = 1;
  int64_t a_batch = 1;
  int64_t b_batch = 1;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  bool has_bias = false;
  Activation activation = Activation::kNone;
  int threads = 1;  // a primitive is planned for a number of threads

  friend bool operator==(const ProductShape& x, const ProductShape& y) = default;
  template <typename H>
  friend H AbslHashValue(H h, const ProductShape& p) {
    return H::combine(std::move(h), p.batch, p.a_batch, p.b_batch, p.m, p.n, p.k, p.transpose_a,
                      p.transpose_b, p.has_bias, p.activation, p.threads);
  }
};

class HostMath {
 public:
  // `threads`: the most an op may use, 1 or more. Scratch memory counts against `host`.
  HostMath(int threads, HostMemory* host);
  ~HostMath() { FreeScratch(); }
  HostMath(const HostMath&) = delete;
  HostMath& operator=(const HostMath&) = delete;

  // Sets FTZ and DAZ in the calling thread, once.
  static void PrepareThread();

  // How many threads are worth their start for an op of `flops`.
  int ThreadsFor(double flops) const { return flops >= kParallelFlops ? threads_ : 1; }
  int threads() const { return threads_; }

  // Memory that lasts until the next call with the same slot; 64-byte aligned. Throws
  // std::bad_alloc, which RunHostOp turns into a status, also when the host's budget is used up.
  std::byte* Scratch(int slot, size_t size_bytes);
  // Gives back scratch memory beyond what is worth keeping. Called after every op.
  void TrimScratch() {
    if (scratch_bytes_ > kScratchKeptBytes) {
      FreeScratch();
    }
  }

  // Runs a product, making its primitive at the first use of its shape. Throws dnnl::error.
  void RunProduct(const ProductShape& shape, const float* a, const float* b, const float* bias,
                  float* out);

  static constexpr int kScratchSlots = 5;

 private:
  struct Primitive {
    dnnl::matmul matmul;
    dnnl::memory a;
    dnnl::memory b;
    dnnl::memory bias;
    dnnl::memory out;
    dnnl::memory scratchpad;
    size_t scratchpad_bytes = 0;
    uint64_t last_use = 0;
  };

  static constexpr double kParallelFlops =
      50e6;  // Below, waking the other threads costs more than it saves.
  static constexpr size_t kScratchKeptBytes = size_t{64}
                                              << 20;  // Two f32 copies of 2048×4096; more is rare.
  static constexpr size_t kPrimitivesMax =
      256;  // About 10 KB each; programs use a few dozen shapes.

  Primitive MakePrimitive(const ProductShape& shape);
  Primitive& FindPrimitive(const ProductShape& shape);
  void EvictOldest();

  struct FreeAligned {
    void operator()(std::byte* data) const;
  };
  struct ScratchBlock {
    std::unique_ptr<std::byte, FreeAligned> data;
    size_t size_bytes = 0;
  };
  void FreeBlock(ScratchBlock& block);
  void FreeScratch();

  // Constant after construction.
  const int threads_;
  HostMemory* const host_;
  // Touched only by the queue thread.
  dnnl::engine engine_;
  dnnl::stream stream_;
  absl::flat_hash_map<ProductShape, std::unique_ptr<Primitive>> primitives_;
  uint64_t uses_ = 0;
  ScratchBlock scratch_[kScratchSlots];
  size_t scratch_bytes_ = 0;
};

}  // namespace devserver
