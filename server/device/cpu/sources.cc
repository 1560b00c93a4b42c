// full, arange, eye, uniform, normal.
#include <algorithm>
#include <cstring>

#include "server/device/cpu/convert.h"
#include "server/device/cpu/kernels.h"
#include "server/tensor/random.h"

namespace devserver {
namespace {

template <typename Storage, typename Element>
void Fill(const OpCall& call, Element value) {
  static_assert(sizeof(Storage) == sizeof(Element));
  Storage stored;
  std::memcpy(&stored, &value, sizeof(stored));
  std::fill_n(OutputData<Storage>(call), call.output_spec->shape.element_count(), stored);
}

void RunFull(const OpCall& call, double value) {
  if (call.output_spec->dtype == DType::kBool) {
    return Fill<uint8_t>(call, ConvertElement<Bool>(value));
  }
  VisitDType(call.output_spec->dtype,
             [&]<typename T>(TypeTag<T>) { Fill<T>(call, ConvertElement<T>(value)); });
}

void RunArange(const OpCall& call) {
  const double start = call.attributes->start;
  const double step = call.attributes->step;
  VisitDType(call.output_spec->dtype, [&]<typename T>(TypeTag<T>) {
    T* const out = OutputData<T>(call);
    const int64_t n = call.output_spec->shape.element_count();
    for (int64_t i = 0; i < n; ++i) {
      out[i] = ConvertElement<T>(start + static_cast<double>(i) * step);
    }
  });
}

void RunEye(const OpCall& call) {
  const Shape& shape = call.output_spec->shape;
  const int64_t rows = shape.dim(shape.rank() - 2);
  const int64_t columns = shape.dim(shape.rank() - 1);
  std::memset(call.output, 0, call.output_spec->size_bytes());
  VisitDType(call.output_spec->dtype, [&]<typename T>(TypeTag<T>) {
    const T one = ConvertElement<T>(1.0);
    T* const out = OutputData<T>(call);
    const int64_t diagonal = std::min(rows, columns);
    for (int64_t matrix = 0; matrix < shape.element_count(); matrix += rows * columns) {
      for (int64_t i = 0; i < diagonal; ++i) {
        out[matrix + i * (columns + 1)] = one;
      }
    }
  });
}

// Elements [begin, end); `begin` is a multiple of the elements of a Philox block.
template <typename T, typename FromWord, typename FromPair>
void FillRandom(const OpCall& call, double shift, double scale, int64_t begin, int64_t end,
                FromWord from_word, FromPair from_pair) {
  const uint64_t seed = call.attributes->seed;
  T* const out = OutputData<T>(call);
  constexpr int64_t kPerBlock = std::is_same_v<T, double> ? 2 : 4;
  for (int64_t i = begin; i < end; i += kPerBlock) {
    const RandomBlock block = PhiloxBlock(seed, static_cast<uint64_t>(i / kPerBlock));
    const int64_t count = std::min(kPerBlock, end - i);
    for (int64_t j = 0; j < count; ++j) {
      if constexpr (std::is_same_v<T, double>) {
        out[i + j] = ScaleAndShift(shift, scale, from_pair(WordPair(block, static_cast<int>(j))));
      } else {
        out[i + j] = T(ScaleAndShift(shift, scale, from_word(block.words[j])));
      }
    }
  }
}

template <typename FromWord, typename FromPair>
void RunRandom(const OpCall& call, HostMath& math, double shift, double scale, FromWord from_word,
               FromPair from_pair) {
  const int64_t n = call.output_spec->shape.element_count();
  const int threads = math.ThreadsFor(40.0 * static_cast<double>(n));
  VisitDType(call.output_spec->dtype, [&]<typename T>(TypeTag<T>) {
    if constexpr (kIsFloatType<T>) {
      ForChunks(threads, n, kChunk, [&](int64_t begin, int64_t end) {
        FillRandom<T>(call, shift, scale, begin, end, from_word, from_pair);
      });
    }
  });
}

}  // namespace

void RunSource(const OpCall& call, HostMath& math) {
  const OpAttributes& attributes = *call.attributes;
  switch (call.code) {
    case OpCode::kFull:
      return RunFull(call, attributes.value);
    case OpCode::kArange:
      return RunArange(call);
    case OpCode::kEye:
      return RunEye(call);
    case OpCode::kUniform:
      return RunRandom(call, math, attributes.low, attributes.high - attributes.low, UnitUniform24,
                       UnitUniform53);
    default:
      return RunRandom(call, math, attributes.mean, attributes.stddev, UnitNormal32, UnitNormal52);
  }
}

}  // namespace devserver
