#include "devserver/nn.h"

#include <cstddef>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/connection.h"
#include "devserver/ops.h"
#include "devserver/safetensors.h"
#include "server/base/status_macros.h"

namespace devserver::client::nn {
namespace {

absl::Status NoParameters(std::string_view what) {
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s: there are no parameters yet; call initialize(device) and use the layer once, or load "
      "them from a file",
      what));
}

std::string WeightName(size_t layer) { return absl::StrFormat("layers.%d.weight", layer); }
std::string BiasName(size_t layer) { return absl::StrFormat("layers.%d.bias", layer); }

Tensor Upload(const SafetensorsEntry& entry, const Device& device) {
  TransferOptions options;
  options.label = entry.name;
  return upload(entry.spec, entry.bytes, device, options);
}

}  // namespace

Dense::Dense(int64_t units, DenseOptions options) : units_(units), options_(options) {}

void Dense::initialize(const Device& device, uint64_t seed) {
  device_ = device;
  seed_ = seed;
  weight_.reset();
  bias_.reset();
  if (options_.in_units > 0) {
    MakeParameters(options_.in_units);
  }
}

void Dense::MakeParameters(int64_t in_units) {
  const Dims shape = {in_units, units_};
  const double scale = options_.weights.scale;
  weight_ = options_.weights.kind == Initializer::Kind::kUniform
                ? uniform(shape, *device_, {-scale, scale, seed_, options_.dtype})
                : normal(shape, *device_, {0, scale, seed_, options_.dtype});
  if (options_.use_bias) {
    bias_ = zeros({units_}, *device_, options_.dtype);
  }
}

Tensor Dense::operator()(const Tensor& x) {
  // A failed or scalar input can't say how large the layer is; dense() says what is wrong with it.
  if (!weight_.has_value() && device_.has_value() && x.status().ok() && x.shape().rank() > 0) {
    MakeParameters(x.shape().dim(x.shape().rank() - 1));
  }
  if (!weight_.has_value() && x.status().ok()) {
    auto failed = std::make_shared<TensorHandle>();
    failed->failure = NoParameters("dense");
    return Connection::TensorOf(std::move(failed));
  }
  const Tensor weight = weight_.value_or(x);
  return bias_.has_value() ? dense(x, weight, *bias_, options_.activation)
                           : dense(x, weight, options_.activation);
}

absl::StatusOr<Tensor> Dense::weight() const {
  return weight_.has_value() ? absl::StatusOr<Tensor>(*weight_) : NoParameters("weight");
}

absl::StatusOr<Tensor> Dense::bias() const {
  return bias_.has_value() ? absl::StatusOr<Tensor>(*bias_) : NoParameters("bias");
}

absl::Status Dense::set_parameters(Tensor weight, std::optional<Tensor> bias) {
  RETURN_IF_ERROR(weight.status());
  if (weight.shape().rank() != 2 || weight.shape().dim(1) != units_ ||
      (options_.in_units > 0 && weight.shape().dim(0) != options_.in_units)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "weight is %s; a Dense layer of %d units takes [%s,%d]", weight.spec().ToString(), units_,
        options_.in_units > 0 ? std::to_string(options_.in_units) : "in", units_));
  }
  if (bias.has_value() != options_.use_bias) {
    return absl::InvalidArgumentError(options_.use_bias
                                          ? "the layer has a bias, none was given"
                                          : "the layer has no bias (use_bias), one was given");
  }
  if (bias.has_value()) {
    RETURN_IF_ERROR(bias->status());
    if (bias->shape().rank() != 1 || bias->shape().dim(0) != units_) {
      return absl::InvalidArgumentError(
          absl::StrFormat("bias is %s; a Dense layer of %d units takes [%d]",
                          bias->spec().ToString(), units_, units_));
    }
  }
  device_ = weight.device();
  weight_ = std::move(weight);
  bias_ = std::move(bias);
  return absl::OkStatus();
}

void Dense::to(const Device& device) {
  device_ = device;
  if (weight_.has_value()) {
    weight_ = weight_->to(device);
  }
  if (bias_.has_value()) {
    bias_ = bias_->to(device);
  }
}

void Sequential::initialize(const Device& device, uint64_t seed) {
  for (size_t i = 0; i < layers_.size(); ++i) {
    layers_[i].initialize(device, seed + i);
  }
}

Tensor Sequential::operator()(const Tensor& x) {
  Tensor value = x;
  for (Dense& layer : layers_) {
    value = layer(value);
  }
  return value;
}

std::vector<Parameter> Sequential::parameters() const {
  std::vector<Parameter> parameters;
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (const absl::StatusOr<Tensor> weight = layers_[i].weight(); weight.ok()) {
      parameters.push_back({WeightName(i), *weight});
    }
    if (const absl::StatusOr<Tensor> bias = layers_[i].bias(); bias.ok()) {
      parameters.push_back({BiasName(i), *bias});
    }
  }
  return parameters;
}

void Sequential::to(const Device& device) {
  for (Dense& layer : layers_) {
    layer.to(device);
  }
}

absl::Status Sequential::save_parameters(const std::string& path, absl::Duration timeout) const {
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (!layers_[i].has_parameters()) {
      return NoParameters(WeightName(i));
    }
  }
  std::vector<std::unique_ptr<std::byte[]>> buffers;
  std::vector<SafetensorsEntry> entries;
  for (const Parameter& parameter : parameters()) {
    const size_t size_bytes = parameter.value.size_bytes();
    buffers.push_back(std::make_unique<std::byte[]>(size_bytes));
    const std::span<std::byte> buffer(buffers.back().get(), size_bytes);
    TransferOptions options;
    options.timeout = timeout;
    RETURN_IF_ERROR(parameter.value.fetch_into(buffer, options));
    entries.push_back({parameter.name, parameter.value.spec(), buffer});
  }
  return SaveSafetensors(path, entries);
}

absl::Status Sequential::load_parameters(const std::string& path, const Device& device) {
  ASSIGN_OR_RETURN(const SafetensorsFile file, LoadSafetensors(path));
  std::vector<Dense> loaded = layers_;
  size_t used = 0;
  for (size_t i = 0; i < loaded.size(); ++i) {
    const SafetensorsEntry* weight = file.contents.Find(WeightName(i));
    const SafetensorsEntry* bias = file.contents.Find(BiasName(i));
    if (weight == nullptr || (bias == nullptr && loaded[i].options().use_bias)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: there is no \"%s\"; this network has %d layers", path,
                          weight == nullptr ? WeightName(i) : BiasName(i), loaded.size()));
    }
    used += bias == nullptr ? 1 : 2;
    const absl::Status status = loaded[i].set_parameters(
        Upload(*weight, device),
        bias == nullptr ? std::nullopt : std::optional<Tensor>(Upload(*bias, device)));
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrFormat("%s: %s: %s", path, WeightName(i),
                                                         std::string(status.message())));
    }
  }
  if (used != file.contents.tensors.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s holds %d tensors, this network has %d: it is another network's", path,
                        file.contents.tensors.size(), used));
  }
  layers_ = std::move(loaded);
  return absl::OkStatus();
}

}  // namespace devserver::client::nn
