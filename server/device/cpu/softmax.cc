// softmax along one axis. The tensor is [outer, n, inner] with the axis in the middle.
#include <Eigen/Core>

#include "server/device/cpu/kernels.h"

namespace devserver {
namespace {

template <typename C>
using Values = Eigen::Map<Eigen::Array<C, Eigen::Dynamic, 1>>;
template <typename C>
using ConstValues = Eigen::Map<const Eigen::Array<C, Eigen::Dynamic, 1>>;

// out = e^(x - largest); returns the sum of out, in double.
template <typename C>
double Exponentials(const C* x, C* out, int64_t n, C largest) {
  Values<C>(out, n) = (ConstValues<C>(x, n) - largest).exp();
  double lanes[4] = {};
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (int64_t lane = 0; lane < 4; ++lane) {
      lanes[lane] += static_cast<double>(out[i + lane]);
    }
  }
  for (; i < n; ++i) {
    lanes[0] += static_cast<double>(out[i]);
  }
  return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

// The axis is the last one: a row at a time, in blocks. NaN anywhere reaches the sum, and so the
// whole row.
template <typename T>
void SoftmaxRow(const T* x, T* out, int64_t n) {
  using C = ComputeType<T>;
  C widened[kBlock];
  C exponentials[kBlock];
  C largest = static_cast<C>(x[0]);
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = std::min(kBlock, n - begin);
    const C* const values = Widen(x + begin, widened, count);
    largest = std::max(largest, ConstValues<C>(values, count).maxCoeff());
  }
  double sum = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = std::min(kBlock, n - begin);
    const C* const values = Widen(x + begin, widened, count);
    if constexpr (kIsHalf<T>) {
      sum += Exponentials(values, exponentials, count, largest);
    } else {
      sum += Exponentials(values, out + begin, count, largest);
    }
  }
  const C total = static_cast<C>(sum);
  if constexpr (!kIsHalf<T>) {
    Values<C>(out, n) /= total;
    return;
  }
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = std::min(kBlock, n - begin);
    const C* const values = Widen(x + begin, widened, count);
    Values<C>(exponentials, count) = (ConstValues<C>(values, count) - largest).exp() / total;
    for (int64_t i = 0; i < count; ++i) {
      out[begin + i] = static_cast<T>(exponentials[i]);
    }
  }
}

// The axis has others behind it: `columns` neighbours at a time, n rows of stride `inner`.
template <typename T>
void SoftmaxColumns(const T* x, T* out, int64_t n, int64_t inner, int64_t columns) {
  using C = ComputeType<T>;
  C widened[kBlock];
  C largest[kBlock];
  C exponentials[kBlock];
  double sums[kBlock] = {};
  std::copy_n(Widen(x, widened, columns), columns, largest);
  for (int64_t row = 1; row < n; ++row) {
    const C* const values = Widen(x + row * inner, widened, columns);
    for (int64_t i = 0; i < columns; ++i) {
      largest[i] = values[i] > largest[i] ? values[i] : largest[i];
    }
  }
  const auto exponentiate = [&](int64_t row) {
    const C* const values = Widen(x + row * inner, widened, columns);
    Values<C>(exponentials, columns) =
        (ConstValues<C>(values, columns) - ConstValues<C>(largest, columns)).exp();
  };
  for (int64_t row = 0; row < n; ++row) {
    exponentiate(row);
    for (int64_t i = 0; i < columns; ++i) {
      sums[i] += static_cast<double>(exponentials[i]);
    }
  }
  for (int64_t row = 0; row < n; ++row) {
    exponentiate(row);
    for (int64_t i = 0; i < columns; ++i) {
      out[row * inner + i] = static_cast<T>(exponentials[i] / static_cast<C>(sums[i]));
    }
  }
}

template <typename T>
void Softmax(const T* x, T* out, int64_t outer, int64_t n, int64_t inner) {
  for (int64_t i = 0; i < outer; ++i) {
    const int64_t offset = i * n * inner;
    if (inner == 1) {
      SoftmaxRow(x + offset, out + offset, n);
      continue;
    }
    for (int64_t begin = 0; begin < inner; begin += kBlock) {
      SoftmaxColumns(x + offset + begin, out + offset + begin, n, inner,
                     std::min(kBlock, inner - begin));
    }
  }
}

}  // namespace

void RunSoftmax(const OpCall& call, HostMath& math) {
  const Shape& shape = call.output_spec->shape;
  const int64_t named = call.attributes->axes.empty() ? -1 : call.attributes->axes[0];
  const int axis = static_cast<int>(named < 0 ? named + shape.rank() : named);
  const int64_t n = shape.dim(axis);
  int64_t inner = 1;
  for (int i = axis + 1; i < shape.rank(); ++i) {
    inner *= shape.dim(i);
  }
  const int64_t outer = shape.element_count() / (n * inner);
  const int threads = math.ThreadsFor(14.0 * static_cast<double>(shape.element_count()));
  VisitDType(call.output_spec->dtype, [&]<typename T>(TypeTag<T>) {
    if constexpr (std::is_floating_point_v<ComputeType<T>>) {
      const int64_t rows_per_chunk = std::max<int64_t>(1, kChunk / (n * inner));
      ForChunks(threads, outer, rows_per_chunk, [&](int64_t begin, int64_t end) {
        Softmax(InputData<T>(call, 0) + begin * n * inner, OutputData<T>(call) + begin * n * inner,
                end - begin, n, inner);
      });
    }
  });
}

}  // namespace devserver
