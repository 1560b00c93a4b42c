// matmul and dense. f32 runs in oneDNN, f16 and bf16 through f32 copies, f64 in Eigen.
#include <Eigen/Core>
#include <cstring>

#include "server/device/cpu/kernels.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace devserver {
namespace {

// From here on dnnl_sgemm beats oneDNN's matmul primitive on plain products.
constexpr int64_t kSgemmSizeMin = 512;

constexpr int kSlotA = 0;
constexpr int kSlotB = 1;
constexpr int kSlotBias = 2;
constexpr int kSlotOut = 3;

// How often each operand's matrix is used over the batch of the result.
struct BatchedProduct {
  ProductShape shape;
  IntList batch_dims;    // the result's
  IntList a_batch_step;  // in matrices; 0 where a is broadcast
  IntList b_batch_step;
};

IntList BatchSteps(const Shape& shape, const Shape& out) {
  const int batch_rank = out.rank() - 2;
  IntList steps(static_cast<size_t>(batch_rank), 0);
  int64_t step = 1;
  for (int i = 1; i <= shape.rank() - 2; ++i) {
    const int64_t size = shape.dim(shape.rank() - 2 - i);
    steps[static_cast<size_t>(batch_rank - i)] = size == 1 ? 0 : step;
    step *= size;
  }
  return steps;
}

int64_t MatrixCount(const Shape& shape) {
  int64_t count = 1;
  for (int axis = 0; axis < shape.rank() - 2; ++axis) {
    count *= shape.dim(axis);
  }
  return count;
}

BatchedProduct PlanMatMul(const OpCall& call) {
  const Shape& a = call.inputs[0].spec->shape;
  const Shape& b = call.inputs[1].spec->shape;
  const Shape& out = call.output_spec->shape;
  BatchedProduct plan;
  ProductShape& shape = plan.shape;
  shape.transpose_a = call.attributes->transpose_a;
  shape.transpose_b = call.attributes->transpose_b;
  shape.m = out.dim(out.rank() - 2);
  shape.n = out.dim(out.rank() - 1);
  shape.k = a.dim(shape.transpose_a ? a.rank() - 2 : a.rank() - 1);
  shape.batch = MatrixCount(out);
  shape.a_batch = MatrixCount(a);
  shape.b_batch = MatrixCount(b);
  if (shape.b_batch == 1 && shape.a_batch == shape.batch && !shape.transpose_a) {
    shape.m *= shape.batch;  // One tall matrix.
    shape.batch = shape.a_batch = 1;
  }
  if (shape.batch > 1) {
    plan.batch_dims.assign(out.dims().begin(), out.dims().end() - 2);
    plan.a_batch_step = BatchSteps(a, out);
    plan.b_batch_step = BatchSteps(b, out);
  }
  return plan;
}

ProductShape PlanDense(const OpCall& call) {
  const Shape& w = call.inputs[1].spec->shape;
  ProductShape shape;
  shape.k = w.dim(0);
  shape.n = w.dim(1);
  shape.m = call.output_spec->shape.element_count() / shape.n;
  shape.has_bias = call.inputs.size() > 2;
  shape.activation = call.attributes->activation;
  return shape;
}

double Flops(const ProductShape& shape) {
  return 2.0 * static_cast<double>(shape.batch) * static_cast<double>(shape.m) *
         static_cast<double>(shape.n) * static_cast<double>(shape.k);
}

void RunSgemm(const ProductShape& shape, const float* a, const float* b, float* out) {
#ifdef _OPENMP
  omp_set_num_threads(shape.threads);
#endif
  dnnl::error::wrap_c_api(
      dnnl_sgemm(shape.transpose_a ? 'T' : 'N', shape.transpose_b ? 'T' : 'N', shape.m, shape.n,
                 shape.k, 1.0f, a, shape.transpose_a ? shape.m : shape.k, b,
                 shape.transpose_b ? shape.k : shape.n, 0.0f, out, shape.n),
      "sgemm failed");
}

// Products of nothing (k = 0): bias and activation still apply.
template <typename C>
void RunEmptyProduct(const ProductShape& shape, const C* bias, C* out) {
  for (int64_t row = 0; row < shape.batch * shape.m; ++row) {
    for (int64_t j = 0; j < shape.n; ++j) {
      out[row * shape.n + j] = shape.has_bias ? bias[j] : C(0);
    }
  }
}

void Activate(Activation activation, float* values, int64_t n) {
  ActivateFloats(activation, values, n);
}
void Activate(Activation activation, double* values, int64_t n) {
  ActivateDoubles(activation, values, n);
}

void RunPlain(HostMath& math, const ProductShape& shape, const float* a, const float* b,
              const float* bias, float* out) {
  const bool plain = !shape.has_bias && shape.activation == Activation::kNone && shape.batch == 1;
  if (plain && std::min({shape.m, shape.n, shape.k}) >= kSgemmSizeMin) {
    RunSgemm(shape, a, b, out);
  } else {
    math.RunProduct(shape, a, b, bias, out);
  }
}

void RunPlain(HostMath& /*math*/, const ProductShape& shape, const double* a, const double* b,
              const double* bias, double* out) {
#ifdef _OPENMP
  omp_set_num_threads(shape.threads);  // Eigen splits its products with OpenMP.
#endif
  using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using Row = Eigen::Matrix<double, 1, Eigen::Dynamic>;
  for (int64_t i = 0; i < shape.batch; ++i) {
    const double* const a_i = a + (shape.a_batch == 1 ? 0 : i * shape.m * shape.k);
    const double* const b_i = b + (shape.b_batch == 1 ? 0 : i * shape.k * shape.n);
    Eigen::Map<Matrix> result(out + i * shape.m * shape.n, shape.m, shape.n);
    const Eigen::Map<const Matrix> left(a_i, shape.transpose_a ? shape.k : shape.m,
                                        shape.transpose_a ? shape.m : shape.k);
    const Eigen::Map<const Matrix> right(b_i, shape.transpose_b ? shape.n : shape.k,
                                         shape.transpose_b ? shape.k : shape.n);
    if (shape.transpose_a && shape.transpose_b) {
      result.noalias() = left.transpose() * right.transpose();
    } else if (shape.transpose_a) {
      result.noalias() = left.transpose() * right;
    } else if (shape.transpose_b) {
      result.noalias() = left * right.transpose();
    } else {
      result.noalias() = left * right;
    }
    if (shape.has_bias) {
      result.rowwise() += Eigen::Map<const Row>(bias, shape.n);
    }
  }
  Activate(shape.activation, out, shape.batch * shape.m * shape.n);
}

// The whole call in the type it is computed in.
template <typename C>
void RunComputed(HostMath& math, const BatchedProduct& plan, const C* a, const C* b, const C* bias,
                 C* out) {
  ProductShape shape = plan.shape;
  if (shape.k == 0) {
    RunEmptyProduct(shape, bias, out);
    return Activate(shape.activation, out, shape.batch * shape.m * shape.n);
  }
  shape.threads = math.ThreadsFor(Flops(shape));
  const bool uniform = (shape.a_batch == 1 || shape.a_batch == shape.batch) &&
                       (shape.b_batch == 1 || shape.b_batch == shape.batch);
  const bool large = std::min({shape.m, shape.n, shape.k}) >= kSgemmSizeMin;
  if (shape.batch == 1 || (uniform && !large)) {
    return RunPlain(math, shape, a, b, bias, out);
  }
  // Matrix by matrix: large ones gain nothing from being run together, and not every broadcast is
  // one stride.
  const int64_t batch = shape.batch;
  shape.batch = shape.a_batch = shape.b_batch = 1;
  shape.threads = math.ThreadsFor(Flops(shape));
  IntList index(plan.batch_dims.size(), 0);
  int64_t a_matrix = 0;
  int64_t b_matrix = 0;
  for (int64_t i = 0; i < batch; ++i) {
    RunPlain(math, shape, a + a_matrix * shape.m * shape.k, b + b_matrix * shape.k * shape.n, bias,
             out + i * shape.m * shape.n);
    for (size_t axis = index.size(); axis-- > 0;) {
      a_matrix += plan.a_batch_step[axis];
      b_matrix += plan.b_batch_step[axis];
      if (++index[axis] < plan.batch_dims[axis]) {
        break;
      }
      a_matrix -= plan.a_batch_step[axis] * plan.batch_dims[axis];
      b_matrix -= plan.b_batch_step[axis] * plan.batch_dims[axis];
      index[axis] = 0;
    }
  }
}

template <typename T>
const float* WidenInput(const OpCall& call, HostMath& math, size_t input, int slot) {
  const int64_t n = call.inputs[input].spec->shape.element_count();
  float* const floats =
      reinterpret_cast<float*>(math.Scratch(slot, static_cast<size_t>(n) * sizeof(float)));
  return Widen(InputData<T>(call, input), floats, n);
}

template <typename T>
void RunTyped(const OpCall& call, HostMath& math, const BatchedProduct& plan) {
  const bool has_bias = plan.shape.has_bias;
  if constexpr (std::is_floating_point_v<T>) {
    RunComputed(math, plan, InputData<T>(call, 0), InputData<T>(call, 1),
                has_bias ? InputData<T>(call, 2) : nullptr, OutputData<T>(call));
  } else if constexpr (kIsHalf<T>) {
    const float* const a = WidenInput<T>(call, math, 0, kSlotA);
    const float* const b = WidenInput<T>(call, math, 1, kSlotB);
    const float* const bias = has_bias ? WidenInput<T>(call, math, 2, kSlotBias) : nullptr;
    const int64_t n = call.output_spec->shape.element_count();
    float* const out =
        reinterpret_cast<float*>(math.Scratch(kSlotOut, static_cast<size_t>(n) * sizeof(float)));
    RunComputed(math, plan, a, b, bias, out);
    Narrow(out, OutputData<T>(call), n);
  }
}

}  // namespace

void RunProduct(const OpCall& call, HostMath& math) {
  BatchedProduct plan;
  if (call.code == OpCode::kMatMul) {
    plan = PlanMatMul(call);
  } else {
    plan.shape = PlanDense(call);
  }
  VisitDType(call.output_spec->dtype,
             [&]<typename T>(TypeTag<T>) { RunTyped<T>(call, math, plan); });
}

}  // namespace devserver
