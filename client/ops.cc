#include "devserver/ops.h"

#include <memory>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_format.h"
#include "client/connection.h"
#include "client/transfer.h"
#include "server/base/error_details.h"

namespace devserver::client {
namespace {

using Inputs = std::span<const Tensor>;

std::shared_ptr<TensorHandle> NewHandle(const Device& device) {
  auto handle = std::make_shared<TensorHandle>();
  handle->connection = Connection::ConnectionOf(device);
  handle->device = Connection::InfoOf(device);
  return handle;
}

Tensor Failed(std::shared_ptr<TensorHandle> handle, absl::Status failure) {
  handle->failure = std::move(failure);
  return Connection::TensorOf(std::move(handle));
}

// That all are tensors of one client which were sent. Whether they are on one device is the
// server's to say: it knows what the copy that mends it would cost.
absl::Status CheckOperands(std::string_view op, Inputs inputs) {
  const TensorHandle* first = nullptr;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const TensorHandle* input = Connection::HandleOf(inputs[i]).get();
    if (input == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: operand %d is a default-constructed Tensor", op, i + 1));
    }
    if (input->id == 0 && !input->failure.ok()) {
      return PassOn(op, *input);
    }
    if (first == nullptr) {
      first = input;
    } else if (input->connection != first->connection) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: tensor %d is of server %s, tensor %d of server %s or of another "
          "client of it; a tensor lives in one client's session",
          op, first->id, first->connection->address(), input->id, input->connection->address()));
    }
  }
  return first != nullptr ? absl::OkStatus()
                          : absl::InvalidArgumentError(absl::StrFormat("%s: no operands", op));
}

Tensor Source(OpCode source, const Device& device, const OpAttributes& attributes) {
  const OpDef& op = GetOp(source);
  const std::shared_ptr<TensorHandle> result = NewHandle(device);
  if (result->connection == nullptr) {
    return Failed(result,
                  absl::InvalidArgumentError(absl::StrFormat(
                      "%s: no device given; Client::device(\"gpu:0\") gives one", op.name)));
  }
  absl::StatusOr<TensorSpec> spec = InferSpec(source, {}, attributes);
  if (!spec.ok()) {
    return Failed(result, std::move(spec).status());
  }
  result->spec = *spec;
  v1::Create create;
  EncodeSource(source, attributes, &create);
  create.set_device(device.name());
  result->connection->Submit(v1::Command::kCreateFieldNumber, &create, op.name, {}, result.get());
  return Connection::TensorOf(result);
}

Tensor Apply(OpCode code, std::initializer_list<const Tensor> inputs,
             const OpAttributes& attributes = {}) {
  return apply(code, Inputs(inputs.begin(), inputs.size()), attributes);
}

Tensor Reduce(OpCode code, const Tensor& x, const Dims& axes, bool keep_dims) {
  OpAttributes attributes;
  attributes.axes = axes;
  attributes.keep_dims = keep_dims;
  return Apply(code, {x}, attributes);
}

// `value` beside `x`; a failed x comes back itself, so that its failure is what is passed on.
Tensor ScalarBeside(const Tensor& x, double value) {
  const TensorHandle* handle = Connection::HandleOf(x).get();
  if (handle == nullptr || handle->id == 0) {
    return x;
  }
  return full({}, value, x.device(), x.dtype());
}

}  // namespace

Tensor apply(OpCode code, Inputs inputs, const OpAttributes& attributes) {
  const OpDef& op = GetOp(code);
  absl::Status status = CheckOperands(op.name, inputs);
  auto result = std::make_shared<TensorHandle>();
  absl::InlinedVector<TensorHandle*, 4> handles;
  absl::InlinedVector<TensorSpec, 4> specs;
  if (status.ok()) {
    for (const Tensor& input : inputs) {
      handles.push_back(Connection::HandleOf(input).get());
      specs.push_back(handles.back()->spec);
    }
    result->connection = handles[0]->connection;
    result->device = handles[0]->device;
    absl::StatusOr<TensorSpec> spec = InferSpec(code, specs, attributes);
    status = spec.status();
    if (spec.ok()) {
      result->spec = *spec;
    }
  }
  if (!status.ok()) {
    return Failed(result, std::move(status));
  }
  thread_local v1::Op message;  // Its memory is used again.
  message.Clear();
  message.set_name(op.name.data(), op.name.size());
  for (const TensorHandle* handle : handles) {
    message.add_inputs(handle->id);
  }
  EncodeAttributes(attributes, &message);
  result->connection->Submit(v1::Command::kOpFieldNumber, &message, op.name, handles, result.get());
  return Connection::TensorOf(std::move(result));
}

Tensor full(const Dims& shape, double value, const Device& device, DType dtype) {
  OpAttributes attributes;
  attributes.shape = shape;
  attributes.dtype = dtype;
  attributes.value = value;
  return Source(OpCode::kFull, device, attributes);
}

Tensor zeros(const Dims& shape, const Device& device, DType dtype) {
  return full(shape, 0, device, dtype);
}

Tensor ones(const Dims& shape, const Device& device, DType dtype) {
  return full(shape, 1, device, dtype);
}

Tensor arange(int64_t count, const Device& device, double start, double step, DType dtype) {
  OpAttributes attributes;
  attributes.shape = {count};
  attributes.dtype = dtype;
  attributes.start = start;
  attributes.step = step;
  return Source(OpCode::kArange, device, attributes);
}

Tensor eye(int64_t size, const Device& device, DType dtype) {
  OpAttributes attributes;
  attributes.shape = {size, size};
  attributes.dtype = dtype;
  return Source(OpCode::kEye, device, attributes);
}

Tensor uniform(const Dims& shape, const Device& device, const UniformOptions& options) {
  OpAttributes attributes;
  attributes.shape = shape;
  attributes.dtype = options.dtype;
  attributes.seed = options.seed;
  attributes.low = options.low;
  attributes.high = options.high;
  return Source(OpCode::kUniform, device, attributes);
}

Tensor normal(const Dims& shape, const Device& device, const NormalOptions& options) {
  OpAttributes attributes;
  attributes.shape = shape;
  attributes.dtype = options.dtype;
  attributes.seed = options.seed;
  attributes.mean = options.mean;
  attributes.stddev = options.stddev;
  return Source(OpCode::kNormal, device, attributes);
}

Tensor upload(const TensorSpec& spec, std::span<const std::byte> bytes, const Device& device,
              const TransferOptions& options) {
  const std::shared_ptr<TensorHandle> result = NewHandle(device);
  result->spec = spec;
  if (result->connection == nullptr) {
    return Failed(result, absl::InvalidArgumentError(
                              "upload: no device given; Client::device(\"gpu:0\") gives one"));
  }
  if (spec.size_bytes() != bytes.size() || DTypeSize(spec.dtype) == 0) {
    return Failed(result, absl::InvalidArgumentError(
                              absl::StrFormat("upload: %s has %d bytes, %d were given",
                                              spec.ToString(), spec.size_bytes(), bytes.size())));
  }
  Connection& connection = *result->connection;
  if (bytes.size() > connection.inline_bytes()) {
    const absl::StatusOr<uint64_t> id =
        Upload(&connection, connection.PickId(), spec, bytes, *result->device, options);
    if (!id.ok()) {
      return Failed(result, id.status());
    }
    result->id = *id;
    result->delete_at_end = true;
    return Connection::TensorOf(result);
  }
  if (options.progress != nullptr) {
    options.progress(0, bytes.size());
  }
  v1::Create create;
  create.mutable_shape()->Add(spec.shape.dims().begin(), spec.shape.dims().end());
  create.set_dtype(WireDType(spec.dtype));
  create.set_device(device.name());
  create.set_label(options.label);
  create.mutable_values()->set_raw(bytes.data(), bytes.size());
  connection.Submit(v1::Command::kCreateFieldNumber, &create, "create", {}, result.get());
  if (options.progress != nullptr) {
    options.progress(bytes.size(), bytes.size());
  }
  return Connection::TensorOf(result);
}

template <typename T>
Tensor from(const std::vector<T>& values, const Dims& shape, const Device& device,
            const TransferOptions& options) {
  absl::StatusOr<Shape> checked = Shape::Create(shape);
  if (checked.ok() && static_cast<uint64_t>(checked->element_count()) != values.size()) {
    checked = absl::InvalidArgumentError(
        absl::StrFormat("from: shape %s holds %d values, %d were given", checked->ToString(),
                        checked->element_count(), values.size()));
  }
  if (!checked.ok()) {
    return Failed(NewHandle(device), checked.status());
  }
  return upload({ElementOf<T>::kDType, *checked}, std::as_bytes(std::span(values)), device,
                options);
}

template Tensor from(const std::vector<float>&, const Dims&, const Device&, const TransferOptions&);
template Tensor from(const std::vector<double>&, const Dims&, const Device&,
                     const TransferOptions&);
template Tensor from(const std::vector<int32_t>&, const Dims&, const Device&,
                     const TransferOptions&);
template Tensor from(const std::vector<int64_t>&, const Dims&, const Device&,
                     const TransferOptions&);
template Tensor from(const std::vector<uint8_t>&, const Dims&, const Device&,
                     const TransferOptions&);

Tensor matmul(const Tensor& a, const Tensor& b, bool transpose_a, bool transpose_b) {
  OpAttributes attributes;
  attributes.transpose_a = transpose_a;
  attributes.transpose_b = transpose_b;
  return Apply(OpCode::kMatMul, {a, b}, attributes);
}

Tensor dense(const Tensor& x, const Tensor& w, const Tensor& bias, Activation activation) {
  OpAttributes attributes;
  attributes.activation = activation;
  return Apply(OpCode::kDense, {x, w, bias}, attributes);
}

Tensor dense(const Tensor& x, const Tensor& w, Activation activation) {
  OpAttributes attributes;
  attributes.activation = activation;
  return Apply(OpCode::kDense, {x, w}, attributes);
}

Tensor add(const Tensor& a, const Tensor& b) { return Apply(OpCode::kAdd, {a, b}); }
Tensor sub(const Tensor& a, const Tensor& b) { return Apply(OpCode::kSub, {a, b}); }
Tensor mul(const Tensor& a, const Tensor& b) { return Apply(OpCode::kMul, {a, b}); }
Tensor div(const Tensor& a, const Tensor& b) { return Apply(OpCode::kDiv, {a, b}); }
Tensor maximum(const Tensor& a, const Tensor& b) { return Apply(OpCode::kMaximum, {a, b}); }
Tensor equal(const Tensor& a, const Tensor& b) { return Apply(OpCode::kEqual, {a, b}); }
Tensor neg(const Tensor& x) { return Apply(OpCode::kNeg, {x}); }
Tensor exp(const Tensor& x) { return Apply(OpCode::kExp, {x}); }
Tensor log(const Tensor& x) { return Apply(OpCode::kLog, {x}); }
Tensor sqrt(const Tensor& x) { return Apply(OpCode::kSqrt, {x}); }
Tensor relu(const Tensor& x) { return Apply(OpCode::kRelu, {x}); }
Tensor gelu(const Tensor& x) { return Apply(OpCode::kGelu, {x}); }
Tensor tanh(const Tensor& x) { return Apply(OpCode::kTanh, {x}); }
Tensor sigmoid(const Tensor& x) { return Apply(OpCode::kSigmoid, {x}); }

Tensor cast(const Tensor& x, DType dtype) {
  OpAttributes attributes;
  attributes.dtype = dtype;
  return Apply(OpCode::kCast, {x}, attributes);
}

Tensor operator+(const Tensor& a, double b) { return add(a, ScalarBeside(a, b)); }
Tensor operator-(const Tensor& a, double b) { return sub(a, ScalarBeside(a, b)); }
Tensor operator*(const Tensor& a, double b) { return mul(a, ScalarBeside(a, b)); }
Tensor operator/(const Tensor& a, double b) { return div(a, ScalarBeside(a, b)); }
Tensor operator+(double a, const Tensor& b) { return add(ScalarBeside(b, a), b); }
Tensor operator-(double a, const Tensor& b) { return sub(ScalarBeside(b, a), b); }
Tensor operator*(double a, const Tensor& b) { return mul(ScalarBeside(b, a), b); }
Tensor operator/(double a, const Tensor& b) { return div(ScalarBeside(b, a), b); }

Tensor softmax(const Tensor& x, int64_t axis) { return Reduce(OpCode::kSoftmax, x, {axis}, false); }
Tensor sum(const Tensor& x, const Dims& axes, bool keep_dims) {
  return Reduce(OpCode::kSum, x, axes, keep_dims);
}
Tensor mean(const Tensor& x, const Dims& axes, bool keep_dims) {
  return Reduce(OpCode::kMean, x, axes, keep_dims);
}
Tensor max(const Tensor& x, const Dims& axes, bool keep_dims) {
  return Reduce(OpCode::kMax, x, axes, keep_dims);
}
Tensor argmax(const Tensor& x, const Dims& axes, bool keep_dims) {
  return Reduce(OpCode::kArgmax, x, axes, keep_dims);
}
Tensor norm(const Tensor& x, const Dims& axes, bool keep_dims) {
  return Reduce(OpCode::kNorm, x, axes, keep_dims);
}

Tensor transpose(const Tensor& x, const Dims& permutation) {
  return Reduce(OpCode::kTranspose, x, permutation, false);
}

Tensor reshape(const Tensor& x, const Dims& shape) {
  OpAttributes attributes;
  attributes.shape = shape;
  return Apply(OpCode::kReshape, {x}, attributes);
}

Tensor slice(const Tensor& x, const Dims& starts, const Dims& stops) {
  OpAttributes attributes;
  attributes.starts = starts;
  attributes.stops = stops;
  return Apply(OpCode::kSlice, {x}, attributes);
}

Tensor concat(std::span<const Tensor> inputs, int64_t axis) {
  OpAttributes attributes;
  attributes.axes = {axis};
  return apply(OpCode::kConcat, inputs, attributes);
}

}  // namespace devserver::client
