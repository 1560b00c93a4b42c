// add, sub, mul, div, maximum, equal, with NumPy's broadcasting.
#include <cmath>
#include <type_traits>

#include "absl/container/inlined_vector.h"
#include "server/device/cpu/kernels.h"

namespace devserver {
namespace {

// Integers wrap: computed without sign, where overflow is defined. Not narrower than int, which
// would promote to it.
template <typename T>
using Wrapping = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

struct Add {
  template <typename T>
  static T Apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
    } else {
      return a + b;
    }
  }
};
struct Sub {
  template <typename T>
  static T Apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) - static_cast<Wrapping<T>>(b));
    } else {
      return a - b;
    }
  }
};
struct Mul {
  template <typename T>
  static T Apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
    } else {
      return a * b;
    }
  }
};
struct Div {
  template <typename T>
  static T Apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return a;  // The op table has no integer division.
    } else {
      return a / b;
    }
  }
};
struct Maximum {
  template <typename T>
  static T Apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return a > b ? a : b;
    } else {
      return ((a > b) | std::isnan(a)) ? a : b;  // b where b is NaN: then nothing is greater
    }
  }
};
struct Equal {
  template <typename T>
  static uint8_t Apply(T a, T b) {
    return a == b ? 1 : 0;
  }
};

// One row of the result. An operand that is fixed has one element for the whole row.
struct RowArgs {
  const std::byte* a;
  const std::byte* b;
  std::byte* out;
  int64_t n;
  bool a_fixed;
  bool b_fixed;
};
using RowFunction = void (*)(const RowArgs&);

template <typename Op, typename C, typename Out>
void ComputeRow(const C* __restrict a, const C* __restrict b, Out* __restrict out, int64_t n,
                bool a_fixed, bool b_fixed) {
  if (!a_fixed && !b_fixed) {
    for (int64_t i = 0; i < n; ++i) {
      out[i] = Op::Apply(a[i], b[i]);
    }
  } else if (!a_fixed) {
    const C y = b[0];
    for (int64_t i = 0; i < n; ++i) {
      out[i] = Op::Apply(a[i], y);
    }
  } else if (!b_fixed) {
    const C x = a[0];
    for (int64_t i = 0; i < n; ++i) {
      out[i] = Op::Apply(x, b[i]);
    }
  } else {
    std::fill_n(out, n, Op::Apply(a[0], b[0]));
  }
}

template <typename Op, typename T>
void Row(const RowArgs& row) {
  using C = ComputeType<T>;
  constexpr bool kToBool = std::is_same_v<Op, Equal>;
  const T* const a = reinterpret_cast<const T*>(row.a);
  const T* const b = reinterpret_cast<const T*>(row.b);
  if constexpr (!kIsHalf<T>) {
    using Out = std::conditional_t<kToBool, uint8_t, T>;
    ComputeRow<Op>(a, b, reinterpret_cast<Out*>(row.out), row.n, row.a_fixed, row.b_fixed);
  } else {
    C a_block[kBlock];
    C b_block[kBlock];
    C out_block[kBlock];
    for (int64_t begin = 0; begin < row.n; begin += kBlock) {
      const int64_t n = std::min(kBlock, row.n - begin);
      const C* const x = Widen(row.a_fixed ? a : a + begin, a_block, row.a_fixed ? 1 : n);
      const C* const y = Widen(row.b_fixed ? b : b + begin, b_block, row.b_fixed ? 1 : n);
      if constexpr (kToBool) {
        ComputeRow<Op>(x, y, reinterpret_cast<uint8_t*>(row.out) + begin, n, row.a_fixed,
                       row.b_fixed);
      } else {
        ComputeRow<Op>(x, y, out_block, n, row.a_fixed, row.b_fixed);
        Narrow(out_block, reinterpret_cast<T*>(row.out) + begin, n);
      }
    }
  }
}

template <typename Op>
RowFunction RowOf(DType dtype) {
  RowFunction row = nullptr;
  VisitDType(dtype, [&]<typename T>(TypeTag<T>) { row = &Row<Op, T>; });
  return row;
}

RowFunction FindRow(OpCode code, DType dtype) {
  switch (code) {
    case OpCode::kAdd:
      return RowOf<Add>(dtype);
    case OpCode::kSub:
      return RowOf<Sub>(dtype);
    case OpCode::kMul:
      return RowOf<Mul>(dtype);
    case OpCode::kDiv:
      return RowOf<Div>(dtype);
    case OpCode::kMaximum:
      return RowOf<Maximum>(dtype);
    default:
      return RowOf<Equal>(dtype);
  }
}

// Neighbouring axes over which each operand either moves or stands still, as one. Packed operands
// merge without gaps.
struct AxisGroup {
  int64_t size = 1;
  bool a_moves = false;
  bool b_moves = false;
};
using AxisGroups = absl::InlinedVector<AxisGroup, kDimsMax>;  // from the last axis to the first

AxisGroups GroupAxes(const Shape& a, const Shape& b, const Shape& out) {
  AxisGroups groups;
  for (int i = 1; i <= out.rank(); ++i) {
    const int64_t size = out.dim(out.rank() - i);
    if (size == 1) {
      continue;
    }
    const bool a_moves = i <= a.rank() && a.dim(a.rank() - i) != 1;
    const bool b_moves = i <= b.rank() && b.dim(b.rank() - i) != 1;
    if (!groups.empty() && groups.back().a_moves == a_moves && groups.back().b_moves == b_moves) {
      groups.back().size *= size;
    } else {
      groups.push_back({size, a_moves, b_moves});
    }
  }
  if (groups.empty()) {
    groups.push_back({});
  }
  return groups;
}

void RunBroadcast(const OpCall& call, RowFunction row, size_t in_bytes, size_t out_bytes) {
  const AxisGroups groups =
      GroupAxes(call.inputs[0].spec->shape, call.inputs[1].spec->shape, call.output_spec->shape);
  // What one step along a group adds to each operand's address, in elements.
  absl::InlinedVector<int64_t, kDimsMax> a_step;
  absl::InlinedVector<int64_t, kDimsMax> b_step;
  int64_t a_count = 1;
  int64_t b_count = 1;
  for (const AxisGroup& group : groups) {
    a_step.push_back(group.a_moves ? a_count : 0);
    b_step.push_back(group.b_moves ? b_count : 0);
    a_count *= group.a_moves ? group.size : 1;
    b_count *= group.b_moves ? group.size : 1;
  }
  const AxisGroup& inner = groups[0];
  const int64_t rows = call.output_spec->shape.element_count() / inner.size;
  absl::InlinedVector<int64_t, kDimsMax> index(groups.size(), 0);
  int64_t a_offset = 0;
  int64_t b_offset = 0;
  for (int64_t i = 0; i < rows; ++i) {
    row({call.inputs[0].data + static_cast<size_t>(a_offset) * in_bytes,
         call.inputs[1].data + static_cast<size_t>(b_offset) * in_bytes,
         call.output + static_cast<size_t>(i * inner.size) * out_bytes, inner.size, !inner.a_moves,
         !inner.b_moves});
    for (size_t axis = 1; axis < groups.size(); ++axis) {
      a_offset += a_step[axis];
      b_offset += b_step[axis];
      if (++index[axis] < groups[axis].size) {
        break;
      }
      a_offset -= a_step[axis] * groups[axis].size;
      b_offset -= b_step[axis] * groups[axis].size;
      index[axis] = 0;
    }
  }
}

}  // namespace

void RunBinary(const OpCall& call, HostMath& math) {
  const TensorSpec& a = *call.inputs[0].spec;
  const TensorSpec& b = *call.inputs[1].spec;
  const RowFunction row = FindRow(call.code, a.dtype);
  const int64_t n = call.output_spec->shape.element_count();
  const size_t in_bytes = DTypeSize(a.dtype);
  const size_t out_bytes = DTypeSize(call.output_spec->dtype);
  // As one row: equal shapes, or an operand of one element.
  const bool a_fixed = a.shape.element_count() == 1;
  const bool b_fixed = b.shape.element_count() == 1;
  if (!(a_fixed || b_fixed || a.shape == b.shape)) {
    return RunBroadcast(call, row, in_bytes, out_bytes);
  }
  ForChunks(math.ThreadsFor(static_cast<double>(n)), n, kChunk, [&](int64_t begin, int64_t end) {
    const size_t in_offset = static_cast<size_t>(begin) * in_bytes;
    row({call.inputs[0].data + (a_fixed ? 0 : in_offset),
         call.inputs[1].data + (b_fixed ? 0 : in_offset),
         call.output + static_cast<size_t>(begin) * out_bytes, end - begin, a_fixed, b_fixed});
  });
}

}  // namespace devserver
