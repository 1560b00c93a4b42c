// The controls' arithmetic: the same oneDNN calls as devserverd's, in this process, as lean as they
// can be made: primitive and memory objects made once, one call per product.
// Thread safety: a LocalProduct is for one thread; RandomFloats and Rotation are pure.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

namespace devserver::bench {

// To be freed with std::free.
void* AllocateLikeDevice(size_t size_bytes);

// Memory as devserverd's (server/device/memory_pool.h): cache lines of its own, huge pages where
// they fit.
template <typename T>
struct DeviceLikeAllocator {
  using value_type = T;
  DeviceLikeAllocator() = default;
  template <typename U>
  explicit DeviceLikeAllocator(const DeviceLikeAllocator<U>& /*other*/) {}
  T* allocate(size_t n) { return static_cast<T*>(AllocateLikeDevice(n * sizeof(T))); }
  void deallocate(T* data, size_t /*n*/) { std::free(data); }
  bool operator==(const DeviceLikeAllocator& /*other*/) const { return true; }
};
using Floats = std::vector<float, DeviceLikeAllocator<float>>;

class LocalProduct {
 public:
  // out[m,n] = a[m,k] · b[k,n] on `threads` threads, with bias and ReLU if `dense`. Large plain
  // products run in dnnl_sgemm, which is the faster of oneDNN's two ways there.
  LocalProduct(int64_t m, int64_t k, int64_t n, bool dense, int threads);

  void Run(const float* a, const float* b, const float* bias, float* out);

  double flops() const { return 2.0 * static_cast<double>(m_ * k_ * n_); }

 private:
  const int64_t m_;
  const int64_t k_;
  const int64_t n_;
  const bool dense_;
  [[maybe_unused]] const int threads_;  // Without OpenMP there is one.
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul matmul_;
  dnnl::memory a_;
  dnnl::memory b_;
  dnnl::memory bias_;
  dnnl::memory out_;
};

// Once per thread that computes: denormals are zero, as on devserverd's compute threads.
void FlushDenormals();

// As many threads as cpu:0 uses for a product of so many flops.
int ThreadsOfCpu(double flops);

// Uniform in [-1, 1).
Floats RandomFloats(int64_t count, uint32_t seed);

// A random orthogonal matrix: products with it keep their norm, so that a chain of a thousand
// neither grows nor decays into denormals, which are fourteen times slower.
Floats Rotation(int64_t size, uint32_t seed);

// Of all elements.
float FrobeniusNorm(const Floats& values);

}  // namespace devserver::bench
