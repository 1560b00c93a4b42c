// transpose, reshape, slice, concat: elements move, every bit of them stays.
#include <cstring>

#include "absl/container/inlined_vector.h"
#include "server/device/cpu/kernels.h"

namespace devserver {
namespace {

struct StridedAxis {
  int64_t size;
  int64_t stride;             // of the source, in elements
  int64_t target_stride = 0;  // of the packed target; known once the axes are joined
};
using StridedAxes = absl::InlinedVector<StridedAxis, kDimsMax>;  // first to last

// Drops axes of one element, joins those that follow each other without a gap in the source, and
// numbers the target.
StridedAxes JoinAxes(const StridedAxes& axes) {
  StridedAxes joined;
  for (const StridedAxis& axis : axes) {
    if (axis.size == 1) {
      continue;
    }
    if (!joined.empty() && joined.back().stride == axis.stride * axis.size) {
      joined.back() = {joined.back().size * axis.size, axis.stride};
    } else {
      joined.push_back(axis);
    }
  }
  int64_t target_stride = 1;
  for (size_t i = joined.size(); i-- > 0;) {
    joined[i].target_stride = target_stride;
    target_stride *= joined[i].size;
  }
  return joined;
}

// Calls visit(source_offset, target_offset) for every index of `axes`, in row-major order; once if
// there are none.
template <typename Visit>
void ForEachOffset(std::span<const StridedAxis> axes, Visit&& visit) {
  int64_t index[kDimsMax] = {};
  int64_t source = 0;
  int64_t target = 0;
  while (true) {
    visit(source, target);
    size_t axis = axes.size();
    for (; axis > 0; --axis) {
      const StridedAxis& moved = axes[axis - 1];
      source += moved.stride;
      target += moved.target_stride;
      if (++index[axis - 1] < moved.size) {
        break;
      }
      source -= moved.stride * moved.size;
      target -= moved.target_stride * moved.size;
      index[axis - 1] = 0;
    }
    if (axis == 0) {
      return;
    }
  }
}

// A matrix in tiles, so that both sides stay in the cache.
template <typename T>
void CopyMatrix(const T* source, T* target, const StridedAxis& rows, const StridedAxis& columns) {
  constexpr int64_t kTile = 32;
  for (int64_t i0 = 0; i0 < rows.size; i0 += kTile) {
    const int64_t i1 = std::min(i0 + kTile, rows.size);
    for (int64_t j0 = 0; j0 < columns.size; j0 += kTile) {
      const int64_t j1 = std::min(j0 + kTile, columns.size);
      for (int64_t i = i0; i < i1; ++i) {
        for (int64_t j = j0; j < j1; ++j) {
          target[i * rows.target_stride + j] = source[i * rows.stride + j * columns.stride];
        }
      }
    }
  }
}

// Copies a strided view into packed memory.
template <typename T>
void CopyStrided(const T* source, T* target, const StridedAxes& all_axes) {
  const StridedAxes axes = JoinAxes(all_axes);
  if (axes.empty()) {
    *target = *source;
    return;
  }
  StridedAxes outer(axes.begin(), axes.end() - 1);
  const StridedAxis inner = axes.back();
  if (inner.stride == 1) {
    ForEachOffset(outer, [&](int64_t from, int64_t to) {
      std::memcpy(target + to, source + from, static_cast<size_t>(inner.size) * sizeof(T));
    });
    return;
  }
  // The source's innermost axis against the target's, as a matrix for every index of the others.
  StridedAxis rows = {1, 0, 0};
  if (!outer.empty()) {
    const auto innermost = std::ranges::min_element(outer, {}, &StridedAxis::stride);
    rows = *innermost;
    outer.erase(innermost);
  }
  ForEachOffset(outer, [&](int64_t from, int64_t to) {
    CopyMatrix(source + from, target + to, rows, inner);
  });
}

// Elements are moved as integers of their size, which keeps every bit.
void CopyStridedBytes(const std::byte* source, std::byte* target, const StridedAxes& axes,
                      size_t element_bytes) {
  const auto copy = [&]<typename T>(TypeTag<T>) {
    CopyStrided(reinterpret_cast<const T*>(source), reinterpret_cast<T*>(target), axes);
  };
  switch (element_bytes) {
    case 1:
      return copy(TypeTag<uint8_t>());
    case 2:
      return copy(TypeTag<uint16_t>());
    case 4:
      return copy(TypeTag<uint32_t>());
    default:
      return copy(TypeTag<uint64_t>());
  }
}

StridedAxes PackedAxes(const Shape& shape) {
  StridedAxes axes(static_cast<size_t>(shape.rank()));
  int64_t stride = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    axes[static_cast<size_t>(axis)] = {shape.dim(axis), stride};
    stride *= shape.dim(axis);
  }
  return axes;
}

void RunTranspose(const OpCall& call) {
  const TensorSpec& spec = *call.inputs[0].spec;
  const int64_t rank = spec.shape.rank();
  const StridedAxes packed = PackedAxes(spec.shape);
  const IntList& order = call.attributes->axes;
  StridedAxes axes;
  for (int64_t i = 0; i < rank; ++i) {
    const int64_t axis = order.empty() ? rank - 1 - i : order[static_cast<size_t>(i)];
    axes.push_back(packed[static_cast<size_t>(axis < 0 ? axis + rank : axis)]);
  }
  CopyStridedBytes(call.inputs[0].data, call.output, axes, DTypeSize(spec.dtype));
}

void RunSlice(const OpCall& call) {
  const TensorSpec& spec = *call.inputs[0].spec;
  StridedAxes axes = PackedAxes(spec.shape);
  int64_t offset = 0;
  for (int axis = 0; axis < spec.shape.rank(); ++axis) {
    const SliceRange range = ResolveSlice(spec.shape, *call.attributes, axis);
    offset += range.start * axes[static_cast<size_t>(axis)].stride;
    axes[static_cast<size_t>(axis)].size = range.size;
  }
  CopyStridedBytes(call.inputs[0].data + static_cast<size_t>(offset) * DTypeSize(spec.dtype),
                   call.output, axes, DTypeSize(spec.dtype));
}

void RunConcat(const OpCall& call) {
  const Shape& out = call.output_spec->shape;
  const int64_t named = call.attributes->axes.empty() ? 0 : call.attributes->axes[0];
  const int axis = static_cast<int>(named < 0 ? named + out.rank() : named);
  int64_t outer = 1;
  for (int i = 0; i < axis; ++i) {
    outer *= out.dim(i);
  }
  const size_t row_bytes = call.output_spec->size_bytes() / static_cast<size_t>(outer);
  size_t row_offset = 0;
  for (const OpInput& input : call.inputs) {
    const size_t part_bytes = input.spec->size_bytes() / static_cast<size_t>(outer);
    if (part_bytes == 0) {
      continue;
    }
    for (size_t i = 0; i < static_cast<size_t>(outer); ++i) {
      std::memcpy(call.output + i * row_bytes + row_offset, input.data + i * part_bytes,
                  part_bytes);
    }
    row_offset += part_bytes;
  }
}

}  // namespace

void RunMove(const OpCall& call, HostMath& /*math*/) {
  switch (call.code) {
    case OpCode::kTranspose:
      return RunTranspose(call);
    case OpCode::kSlice:
      return RunSlice(call);
    case OpCode::kConcat:
      return RunConcat(call);
    default:
      std::memcpy(call.output, call.inputs[0].data, call.output_spec->size_bytes());
  }
}

}  // namespace devserver
