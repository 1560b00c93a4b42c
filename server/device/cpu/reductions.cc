// sum, mean, max, argmax, norm over any set of axes.
//
// Neighbouring axes that are all kept or all reduced are one axis here, so the tensor is a nest of
// alternating kept and reduced axes. Where the innermost is reduced, rows are reduced to one
// number; where it is kept, rows are folded into a row of accumulators.
#include <Eigen/Core>
#include <cmath>
#include <limits>
#include <span>
#include <type_traits>

#include "absl/container/inlined_vector.h"
#include "server/device/cpu/kernels.h"

namespace devserver {
namespace {

// An accumulator takes elements as ComputeType with their position in the reduction, one (Add) or a
// row at a time.

template <typename C>
struct SumOf {
  using Wide = std::conditional_t<std::is_floating_point_v<C>, double, uint64_t>;
  Wide total = 0;

  void Add(C x, int64_t /*position*/) { total += Widened(x); }
  void AddRow(const C* x, int64_t n, int64_t /*position*/) {
    constexpr int64_t kLanes =
        8;  // Independent sums, for the vector units; they also keep the error small.
    Wide lanes[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        lanes[lane] += Widened(x[i + lane]);
      }
    }
    for (; i < n; ++i) {
      lanes[0] += Widened(x[i]);
    }
    total += ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) +
             ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
  }
  // Integers wrap; a negative one is its two's complement.
  static Wide Widened(C x) {
    if constexpr (std::is_floating_point_v<C>) {
      return static_cast<double>(x);
    } else {
      return static_cast<uint64_t>(static_cast<int64_t>(x));
    }
  }
  template <typename T>
  void Store(T* out, int64_t /*count*/) const {
    *out = static_cast<T>(total);
  }
};

template <typename C>
struct MeanOf : SumOf<C> {
  template <typename T>
  void Store(T* out, int64_t count) const {
    *out = static_cast<T>(static_cast<double>(this->total) / static_cast<double>(count));
  }
};

template <typename C>
bool IsNan(C x) {
  if constexpr (std::is_floating_point_v<C>) {
    return std::isnan(x);
  } else {
    return false;
  }
}

// The largest of n ≥ 1 elements; NaN if one is.
template <typename C>
C LargestOf(const C* x, int64_t n) {
  const Eigen::Map<const Eigen::Array<C, Eigen::Dynamic, 1>> values(x, n);
  if constexpr (std::is_floating_point_v<C>) {
    return values.template maxCoeff<Eigen::PropagateNaN>();
  } else {
    return values.maxCoeff();
  }
}

template <typename C>
struct MaxOf {
  C largest = std::numeric_limits<C>::has_infinity ? -std::numeric_limits<C>::infinity()
                                                   : std::numeric_limits<C>::lowest();

  void Add(C x, int64_t /*position*/) { largest = ((largest > x) | IsNan(largest)) ? largest : x; }
  void AddRow(const C* x, int64_t n, int64_t position) { Add(LargestOf(x, n), position); }
  template <typename T>
  void Store(T* out, int64_t /*count*/) const {
    *out = static_cast<T>(largest);
  }
};

template <typename C>
struct ArgmaxOf {
  C largest = C(0);
  int64_t index = -1;

  bool IsBeatenBy(C x) const { return index < 0 || x > largest || (IsNan(x) && !IsNan(largest)); }
  void Add(C x, int64_t position) {
    if (IsBeatenBy(x)) {
      largest = x;
      index = position;
    }
  }
  void AddRow(const C* x, int64_t n, int64_t position) {
    const C candidate = LargestOf(x, n);
    if (!IsBeatenBy(candidate)) {
      return;  // The usual case, and the row was only looked at by the vector units.
    }
    const bool is_nan = IsNan(candidate);
    int64_t i = 0;
    while (is_nan ? !IsNan(x[i]) : x[i] != candidate) {
      ++i;
    }
    largest = candidate;
    index = position + i;
  }
  template <typename T>
  void Store(T* out, int64_t /*count*/) const {
    *out = static_cast<T>(index);
  }
};

// Squares of floats fit a double. Those of doubles may not, so they are summed in three ranges
// (Blue's method, constants of LAPACK 3.10's dnrm2; Anderson, ACM TOMS 44, 2017).
template <typename C>
struct NormOf {
  double total = 0;
  double big = 0;
  double small = 0;

  static constexpr double kSmallest = 0x1p-511;
  static constexpr double kBiggest = 0x1p486;
  static constexpr double kSmallScale = 0x1p537;
  static constexpr double kBigScale = 0x1p-538;

  void Add(C value, int64_t /*position*/) {
    const double x = std::fabs(static_cast<double>(value));
    if constexpr (std::is_same_v<C, double>) {
      if (x > kBiggest) {
        big += (x * kBigScale) * (x * kBigScale);
        return;
      }
      if (x < kSmallest) {
        small += (x * kSmallScale) * (x * kSmallScale);
        return;
      }
    }
    total += x * x;
  }
  void AddRow(const C* x, int64_t n, int64_t position) {
    constexpr int64_t kLanes = 8;
    double lanes[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        lanes[lane] += static_cast<double>(x[i + lane]) * static_cast<double>(x[i + lane]);
      }
    }
    double sum = 0;
    for (const double lane : lanes) {
      sum += lane;
    }
    if constexpr (std::is_same_v<C, double>) {
      // In between nothing can have overflowed, nor what vanished matter.
      if (!(sum > 1e-250 && sum < 1e300)) {
        i = 0;
        sum = 0;
      }
    }
    total += sum;
    for (; i < n; ++i) {
      Add(x[i], position + i);
    }
  }
  double Root() const {
    if (big > 0) {
      return std::sqrt(big + (total * kBigScale) * kBigScale) / kBigScale;
    }
    if (!(small > 0)) {
      return std::sqrt(total);
    }
    const double low = std::sqrt(small) / kSmallScale;
    const double middle = std::sqrt(total);
    if (!(middle > 0)) {
      return std::isnan(total) ? total : low;
    }
    const double larger = std::max(low, middle);
    const double ratio = std::min(low, middle) / larger;
    return larger * std::sqrt(1 + ratio * ratio);
  }
  template <typename T>
  void Store(T* out, int64_t /*count*/) const {
    *out = static_cast<T>(Root());
  }
};

struct Axis {
  int64_t size;
  int64_t stride;
};

// Kept and reduced axes apart, each in order, after neighbours of one kind were joined.
struct Plan {
  absl::InlinedVector<Axis, kDimsMax> kept;
  absl::InlinedVector<Axis, kDimsMax> reduced;
  bool inner_is_reduced = true;
  int64_t count = 1;  // elements reduced to one
};

Plan PlanReduction(const OpCall& call) {
  const Shape& shape = call.inputs[0].spec->shape;
  bool is_reduced[kDimsMax] = {};
  for (int axis = 0; axis < shape.rank(); ++axis) {
    is_reduced[axis] = call.attributes->axes.empty();
  }
  for (const int64_t axis : call.attributes->axes) {
    is_reduced[axis < 0 ? axis + shape.rank() : axis] = true;
  }
  Plan plan;
  int64_t stride = 1;
  bool first = true;
  bool last_kind = true;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    const int64_t size = shape.dim(axis);
    if (is_reduced[axis]) {
      plan.count *= size;
    }
    if (size != 1) {
      auto& axes = is_reduced[axis] ? plan.reduced : plan.kept;
      if (!first && last_kind == is_reduced[axis]) {
        axes.front().size *= size;
      } else {
        axes.insert(axes.begin(), {size, stride});
      }
      if (first) {
        plan.inner_is_reduced = is_reduced[axis];
      }
      first = false;
      last_kind = is_reduced[axis];
    }
    stride *= size;
  }
  return plan;
}

// Calls visit(offset) for every index of `axes` in row-major order. No size is 0.
template <typename Visit>
void ForEachOffset(std::span<const Axis> axes, Visit&& visit) {
  int64_t index[kDimsMax] = {};
  int64_t offset = 0;
  while (true) {
    visit(offset);
    size_t axis = axes.size();
    for (; axis > 0; --axis) {
      offset += axes[axis - 1].stride;
      if (++index[axis - 1] < axes[axis - 1].size) {
        break;
      }
      offset -= axes[axis - 1].stride * axes[axis - 1].size;
      index[axis - 1] = 0;
    }
    if (axis == 0) {
      return;
    }
  }
}

// The innermost axis is reduced: one accumulator takes rows.
template <typename Accumulator, typename T, typename Out>
void ReduceRows(const T* x, Out* out, const Plan& plan) {
  const std::span<const Axis> reduced(plan.reduced);
  const std::span<const Axis> outer = reduced.first(reduced.empty() ? 0 : reduced.size() - 1);
  const int64_t n = reduced.empty() ? 1 : reduced.back().size;
  ForEachOffset(plan.kept, [&](int64_t kept) {
    Accumulator accumulator;
    int64_t position = 0;
    ForEachOffset(outer, [&](int64_t offset) {
      ComputeType<T> block[kBlock];
      for (int64_t begin = 0; begin < n; begin += kBlock) {
        const int64_t count = std::min(kBlock, n - begin);
        accumulator.AddRow(Widen(x + kept + offset + begin, block, count), count, position);
        position += count;
      }
    });
    accumulator.Store(out++, plan.count);
  });
}

// The innermost axis is kept: a block of accumulators takes the rows of the reduced axes.
template <typename Accumulator, typename T, typename Out>
void ReduceColumns(const T* x, Out* out, const Plan& plan) {
  const std::span<const Axis> kept(plan.kept);
  const int64_t columns = kept.back().size;
  constexpr int64_t kColumns =
      64;  // Wide enough for the vector units, cheap enough to set up for two columns.
  ForEachOffset(kept.first(kept.size() - 1), [&](int64_t row) {
    for (int64_t begin = 0; begin < columns; begin += kColumns) {
      const int64_t n = std::min(kColumns, columns - begin);
      Accumulator accumulators[kColumns];
      ComputeType<T> block[kColumns];
      int64_t position = 0;
      ForEachOffset(plan.reduced, [&](int64_t offset) {
        const ComputeType<T>* const values = Widen(x + row + offset + begin, block, n);
        for (int64_t i = 0; i < n; ++i) {
          accumulators[i].Add(values[i], position);
        }
        ++position;
      });
      for (int64_t i = 0; i < n; ++i) {
        accumulators[i].Store(out++, plan.count);
      }
    }
  });
}

template <typename Accumulator, typename T, typename Out>
void Reduce(const OpCall& call) {
  const Plan plan = PlanReduction(call);
  const T* const x = InputData<T>(call, 0);
  Out* const out = OutputData<Out>(call);
  if (plan.count == 0) {
    for (int64_t i = 0; i < call.output_spec->shape.element_count(); ++i) {
      Accumulator().Store(out + i, 0);
    }
  } else if (plan.inner_is_reduced) {
    ReduceRows<Accumulator>(x, out, plan);
  } else {
    ReduceColumns<Accumulator>(x, out, plan);
  }
}

}  // namespace

void RunReduction(const OpCall& call, HostMath& /*math*/) {
  VisitDType(call.inputs[0].spec->dtype, [&]<typename T>(TypeTag<T>) {
    using C = ComputeType<T>;
    constexpr bool kIsFloat = std::is_floating_point_v<C>;
    switch (call.code) {  // NOLINT(bugprone-branch-clone): the branches differ in their types
      case OpCode::kSum:
        return Reduce<SumOf<C>, T, std::conditional_t<kIsFloat, T, int64_t>>(call);
      case OpCode::kMax:
        return Reduce<MaxOf<C>, T, T>(call);
      case OpCode::kArgmax:
        return Reduce<ArgmaxOf<C>, T, int64_t>(call);
      default:
        if constexpr (kIsFloat) {
          return call.code == OpCode::kMean ? Reduce<MeanOf<C>, T, T>(call)
                                            : Reduce<NormOf<C>, T, T>(call);
        }
    }
  });
}

}  // namespace devserver
