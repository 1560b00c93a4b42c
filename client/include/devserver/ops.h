// Every op of the op table (server/tensor/op_table.h says what each computes) as a free function on
// tensors.
//
// They return at once and never fail in place: a failure is a state of the result (Tensor::status).
// Operands must be on one device; nothing is moved for you. Two-operand ops broadcast as NumPy
// does. Thread safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "devserver/tensor.h"
#include "server/tensor/op_table.h"

namespace devserver::client {

using Dims = IntList;  // {2, 3}; {} is a scalar

// ---- Tensors from nothing. All wait for nothing.
Tensor zeros(const Dims& shape, const Device& device, DType dtype = DType::kF32);
Tensor ones(const Dims& shape, const Device& device, DType dtype = DType::kF32);
Tensor full(const Dims& shape, double value, const Device& device, DType dtype = DType::kF32);
// start, start + step, .. : `count` of them.
Tensor arange(int64_t count, const Device& device, double start = 0, double step = 1,
              DType dtype = DType::kF32);
// Ones where the row is the column.
Tensor eye(int64_t size, const Device& device, DType dtype = DType::kF32);

struct UniformOptions {
  double low = 0;
  double high = 1;
  uint64_t seed = 0;
  DType dtype = DType::kF32;
};
// The same numbers on every device for one seed.
Tensor uniform(const Dims& shape, const Device& device, const UniformOptions& options = {});

struct NormalOptions {
  double mean = 0;
  double stddev = 1;
  uint64_t seed = 0;
  DType dtype = DType::kF32;
};
Tensor normal(const Dims& shape, const Device& device, const NormalOptions& options = {});

// ---- Tensors from values.
// `bytes` are the packed elements of `spec`. Small ones travel with the command, which returns at
// once; larger ones (above ServerLimits::inline_bytes) go by a stream of their own, straight from
// `bytes`, and this waits for its end.
Tensor upload(const TensorSpec& spec, std::span<const std::byte> bytes, const Device& device,
              const TransferOptions& options = {});

// `values` in row-major order, as many as `shape` holds.
template <typename T>
Tensor from(const std::vector<T>& values, const Dims& shape, const Device& device,
            const TransferOptions& options = {});

// ---- Any op by its code.
Tensor apply(OpCode op, std::span<const Tensor> inputs, const OpAttributes& attributes = {});

// ---- Products.
Tensor matmul(const Tensor& a, const Tensor& b, bool transpose_a = false, bool transpose_b = false);
// activation(x · w + bias); the forward pass of a Dense layer.
Tensor dense(const Tensor& x, const Tensor& w, const Tensor& bias,
             Activation activation = Activation::kNone);
Tensor dense(const Tensor& x, const Tensor& w, Activation activation = Activation::kNone);

// ---- Element by element.
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor equal(const Tensor& a, const Tensor& b);  // bool
Tensor neg(const Tensor& x);
Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor relu(const Tensor& x);
Tensor gelu(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor sigmoid(const Tensor& x);
Tensor cast(const Tensor& x, DType dtype);

// Element by element. A number stands for a scalar of the tensor's dtype on its device.
inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator-(const Tensor& x) { return neg(x); }
Tensor operator+(const Tensor& a, double b);
Tensor operator-(const Tensor& a, double b);
Tensor operator*(const Tensor& a, double b);
Tensor operator/(const Tensor& a, double b);
Tensor operator+(double a, const Tensor& b);
Tensor operator-(double a, const Tensor& b);
Tensor operator*(double a, const Tensor& b);
Tensor operator/(double a, const Tensor& b);

// ---- Along axes; negative ones count from the end, none means all.
Tensor softmax(const Tensor& x, int64_t axis = -1);
Tensor sum(const Tensor& x, const Dims& axes = {}, bool keep_dims = false);
Tensor mean(const Tensor& x, const Dims& axes = {}, bool keep_dims = false);
Tensor max(const Tensor& x, const Dims& axes = {}, bool keep_dims = false);
Tensor argmax(const Tensor& x, const Dims& axes = {}, bool keep_dims = false);  // i64
Tensor norm(const Tensor& x, const Dims& axes = {}, bool keep_dims = false);    // Frobenius

// ---- Moving elements.
Tensor transpose(const Tensor& x, const Dims& permutation = {});  // {}: the axes in reverse
Tensor reshape(const Tensor& x, const Dims& shape);               // one -1 is inferred
Tensor slice(const Tensor& x, const Dims& starts, const Dims& stops);
Tensor concat(std::span<const Tensor> inputs, int64_t axis = 0);

// from<T>() is instantiated for float, double, int32_t, int64_t and uint8_t (ops.cc).

}  // namespace devserver::client
