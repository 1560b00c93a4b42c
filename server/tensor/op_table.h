// The op table: one entry per op. It drives wire validation, shape inference on the server and in
// the client, dispatch, ListOps, the simulated devices' clocks and the conformance tests. To add an
// op: one entry here, one kernel per backend (server/device/cpu/), its cases in
// tests/conformance/op_cases.cc and its definition in tests/conformance/oracle.cc.
//
// Tensors are row-major and packed. Operands of one op live on one device; that is checked
// elsewhere (server/session/). Thread safety: the table is constant.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "server/tensor/dtype.h"
#include "server/tensor/shape.h"

namespace devserver {

enum class OpCode : uint8_t {
  // Sources: no inputs; make a tensor of attributes.shape and attributes.dtype.
  kFull,     // every element is `value`
  kArange,   // start + i·step over the flat index
  kEye,      // rank 2 or more: 1 where the last two indices are equal, else 0
  kUniform,  // Philox, see random.h: low + (high − low)·u, u in [0, 1)
  kNormal,   // Philox, see random.h: mean + stddev·z
  // Products.
  kMatMul,  // out[..,m,n] = a[..,m,k] · b[..,k,n]; batch dimensions broadcast
  kDense,   // out[..,n] = activation(x[..,k] · w[k,n] + b[n]); b may be left out
  // Element by element; the two-operand ones broadcast as NumPy does.
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMaximum,
  kEqual,
  kNeg,
  kExp,
  kLog,
  kSqrt,
  kRelu,
  kGelu,
  kTanh,
  kSigmoid,
  kCast,
  // Along axes.
  kSoftmax,
  kSum,
  kMean,
  kMax,
  kArgmax,
  kNorm,
  // Moving elements.
  kTranspose,
  kReshape,
  kSlice,
  kConcat,
};
inline constexpr int kOpCount = static_cast<int>(OpCode::kConcat) + 1;

// The numbers travel (Activation in compute.proto).
enum class Activation : uint8_t { kNone = 0, kRelu = 1, kGelu = 2, kTanh = 3, kSigmoid = 4 };

using IntList = absl::InlinedVector<int64_t, 4>;

// One flat set for all ops; which of them an op reads is OpDef::attributes. Untouched fields hold
// their defaults.
struct OpAttributes {
  bool transpose_a = false;  // matmul: read a as its transpose (last two dimensions)
  bool transpose_b = false;
  bool keep_dims = false;  // reductions: keep the reduced axes with size 1
  Activation activation = Activation::kNone;
  DType dtype = DType::kUnspecified;  // sources (unspecified: f32); cast: the result's
  IntList axes;  // reductions: empty means all. softmax, concat: one axis. transpose: a
                 // permutation, empty reverses. Negative axes count from the end.
  IntList shape;                // sources and reshape; reshape infers at most one -1
  IntList starts;               // slice: one per axis, negative counts from the end
  IntList stops;                // slice: exclusive; clipped as NumPy does
  double value = 0;             // full
  double start = 0, step = 1;   // arange
  double low = 0, high = 1;     // uniform
  double mean = 0, stddev = 1;  // normal
  uint64_t seed = 0;            // uniform, normal

  friend bool operator==(const OpAttributes& a, const OpAttributes& b) = default;
};

struct OpDef {
  OpCode code;
  std::string_view name;  // as on the wire: "matmul"
  int inputs_min;
  int inputs_max;               // concat: kConcatInputsMax
  DTypeSet dtypes;              // the inputs' (for sources: the result's)
  std::string_view attributes;  // those it reads, comma-separated: "axes, keep_dims"
  std::string_view result;      // shape and dtype rule, for people
  std::string_view
      error_bound;  // against exact arithmetic, for people; conformance/oracle.cc applies it
  // Only called by InferSpec, which has checked the number of inputs and their dtypes.
  absl::StatusOr<TensorSpec> (*infer)(const OpDef& op, std::span<const TensorSpec> inputs,
                                      const OpAttributes& attributes);
  // Floating-point operations, counting a multiply-add as two and a transcendental function as ten.
  double (*flops)(std::span<const TensorSpec> inputs, const TensorSpec& output,
                  const OpAttributes& attributes);
};

inline constexpr int kConcatInputsMax =
    65536;  // The log of an epoch in one call; bounded by the message size too.

std::span<const OpDef> AllOps();  // in the order of OpCode
const OpDef& GetOp(OpCode code);
const OpDef* FindOp(std::string_view name);  // nullptr if there is none

// The result's spec. INVALID_ARGUMENT (kShapeMismatch, kDtypeUnsupported) names the op, the inputs'
// specs and the cure.
absl::StatusOr<TensorSpec> InferSpec(OpCode code, std::span<const TensorSpec> inputs,
                                     const OpAttributes& attributes);

// Bytes an op must at least read and write.
double OpBytes(std::span<const TensorSpec> inputs, const TensorSpec& output);

// NumPy's broadcasting; INVALID_ARGUMENT names both shapes and the axis.
absl::StatusOr<Shape> BroadcastShapes(const Shape& a, const Shape& b);

// Axes as sorted, unique, non-negative numbers below `rank`; empty stays "all" and gives 0..rank-1.
// INVALID_ARGUMENT if one is out of range or named twice.
absl::StatusOr<IntList> NormalizeAxes(std::span<const int64_t> axes, int rank);

struct SliceRange {
  int64_t start = 0;
  int64_t size = 0;
};
// The range of axis `axis` that a slice with `starts` and `stops` reads; clipped as NumPy does.
SliceRange ResolveSlice(const Shape& input, const OpAttributes& attributes, int axis);

}  // namespace devserver
