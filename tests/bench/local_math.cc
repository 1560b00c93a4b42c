#include "tests/bench/local_math.h"

#include <sys/mman.h>
#include <unistd.h>

#include <Eigen/Core>
#include <Eigen/QR>
#include <algorithm>
#include <new>
#include <random>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

namespace devserver::bench {
namespace {

// Both as devserverd (server/device/cpu/products.cc and host_math.h).
constexpr int64_t kSgemmSizeMin = 512;
constexpr double kParallelFlops = 5e7;

dnnl::memory::desc RowMajor(int64_t rows, int64_t columns) {
  return {{rows, columns}, dnnl::memory::data_type::f32, dnnl::memory::format_tag::ab};
}

}  // namespace

void* AllocateLikeDevice(size_t size_bytes) {
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t alignment = size_bytes >= kHugePage ? kHugePage : 64;
  const size_t rounded = (size_bytes + alignment - 1) / alignment * alignment;
  void* const data = std::aligned_alloc(alignment, rounded);
  if (data == nullptr) {
    throw std::bad_alloc();  // From an allocator, as containers expect.
  }
  if (alignment == kHugePage) {
    madvise(data, rounded, MADV_HUGEPAGE);
  }
  return data;
}

LocalProduct::LocalProduct(int64_t m, int64_t k, int64_t n, bool dense, int threads)
    : m_(m),
      k_(k),
      n_(n),
      dense_(dense),
      threads_(threads),
      engine_(dnnl::engine::kind::cpu, 0),
      stream_(engine_) {
  FlushDenormals();
#ifdef _OPENMP
  omp_set_num_threads(threads_);  // The primitive is planned for so many.
#endif
  dnnl::primitive_attr attributes;
  if (dense) {
    dnnl::post_ops ops;
    ops.append_eltwise(1.0f, dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
    attributes.set_post_ops(ops);
  }
  const dnnl::matmul::desc desc =
      dense ? dnnl::matmul::desc(RowMajor(m, k), RowMajor(k, n), RowMajor(1, n), RowMajor(m, n))
            : dnnl::matmul::desc(RowMajor(m, k), RowMajor(k, n), RowMajor(m, n));
  matmul_ = dnnl::matmul(dnnl::matmul::primitive_desc(desc, attributes, engine_));
  a_ = dnnl::memory(RowMajor(m, k), engine_, nullptr);
  b_ = dnnl::memory(RowMajor(k, n), engine_, nullptr);
  bias_ = dnnl::memory(RowMajor(1, n), engine_, nullptr);
  out_ = dnnl::memory(RowMajor(m, n), engine_, nullptr);
}

void LocalProduct::Run(const float* a, const float* b, const float* bias, float* out) {
#ifdef _OPENMP
  omp_set_num_threads(threads_);
#endif
  if (!dense_ && std::min({m_, k_, n_}) >= kSgemmSizeMin) {
    dnnl_sgemm('N', 'N', m_, n_, k_, 1.0f, a, k_, b, n_, 0.0f, out, n_);
    return;
  }
  // The C functions: the C++ ones build a hash map of the arguments for every call.
  dnnl_exec_arg_t args[4];
  int count = 0;
  const auto add = [&](int role, const dnnl::memory& memory, const float* data) {
    dnnl_memory_set_data_handle_v2(memory.get(), const_cast<float*>(data), stream_.get());
    args[count++] = {role, memory.get()};
  };
  add(DNNL_ARG_SRC, a_, a);
  add(DNNL_ARG_WEIGHTS, b_, b);
  add(DNNL_ARG_DST, out_, out);
  if (dense_) {
    add(DNNL_ARG_BIAS, bias_, bias);
  }
  dnnl_primitive_execute(matmul_.get(), stream_.get(), count, args);
}

void FlushDenormals() {
#if defined(__x86_64__)
  constexpr unsigned kFlushToZero = 0x8000;
  constexpr unsigned kDenormalsAreZero = 0x0040;
  _mm_setcsr(_mm_getcsr() | kFlushToZero | kDenormalsAreZero);
#endif
}

int ThreadsOfCpu(double flops) {
  return flops >= kParallelFlops ? static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)) : 1;
}

Floats RandomFloats(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  Floats values(static_cast<size_t>(count));
  std::ranges::generate(values, [&] { return uniform(random); });
  return values;
}

Floats Rotation(int64_t size, uint32_t seed) {
  using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Floats values = RandomFloats(size * size, seed);
  const Matrix random =
      Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>(
          values.data(), size, size)
          .cast<double>();
  const Matrix q = Eigen::HouseholderQR<Matrix>(random).householderQ();
  Floats rotation(values.size());
  std::ranges::transform(q.reshaped<Eigen::RowMajor>(), rotation.begin(),
                         [](double value) { return static_cast<float>(value); });
  return rotation;
}

float FrobeniusNorm(const Floats& values) {
  return Eigen::Map<const Eigen::VectorXf>(values.data(), static_cast<Eigen::Index>(values.size()))
      .norm();
}

}  // namespace devserver::bench
