// Layers: plain compositions of ops that keep their parameters on a device.
//
//   nn::Sequential net({nn::Dense(256, {.activation = Activation::kRelu}), nn::Dense(1)});
//   net.initialize(gpu, /*seed=*/1);
//   const Tensor y = net(x);  // the first layer's input size is inferred from x here
//
// A layer computes where its parameters and its input live; if those are two devices the result
// fails as any op's does. Thread safety: a layer is for one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "devserver/client.h"

namespace devserver::client::nn {

// Where new weights come from; biases start as zeros.
struct Initializer {
  enum class Kind : uint8_t { kUniform, kNormal };
  Kind kind = Kind::kUniform;
  double scale =
      0.07;  // uniform: in [-scale, scale), MXNet's default; normal: the standard deviation

  static Initializer Uniform(double scale) { return {Kind::kUniform, scale}; }
  static Initializer Normal(double stddev) { return {Kind::kNormal, stddev}; }
};

struct Parameter {
  std::string name;  // "layers.0.weight"
  Tensor value;
};

struct DenseOptions {
  Activation activation = Activation::kNone;
  bool use_bias = true;
  int64_t in_units = 0;  // 0: inferred from the first input
  DType dtype = DType::kF32;
  Initializer weights = {};
};

// y = activation(x · weight + bias): x [.., in], weight [in, units], bias [units].
class Dense {
 public:
  explicit Dense(int64_t units, DenseOptions options = {});

  // Says where the parameters shall live. They are made now if in_units is known, else at the first
  // call.
  void initialize(const Device& device, uint64_t seed = 0);
  Tensor operator()(const Tensor& x);

  bool has_parameters() const { return weight_.has_value(); }
  // FAILED_PRECONDITION while there are none.
  absl::StatusOr<Tensor> weight() const;
  absl::StatusOr<Tensor> bias() const;
  // Takes these in place of its own. INVALID_ARGUMENT if they don't fit the layer.
  absl::Status set_parameters(Tensor weight, std::optional<Tensor> bias);
  // Copies the parameters to `device` unless they are there.
  void to(const Device& device);

  int64_t units() const { return units_; }
  const DenseOptions& options() const { return options_; }

 private:
  void MakeParameters(int64_t in_units);

  int64_t units_;
  DenseOptions options_;
  std::optional<Device> device_;
  uint64_t seed_ = 0;
  std::optional<Tensor> weight_;
  std::optional<Tensor> bias_;
};

// Dense layers one after the other.
class Sequential {
 public:
  explicit Sequential(std::vector<Dense> layers) : layers_(std::move(layers)) {}

  // Layer i takes the seed `seed` + i.
  void initialize(const Device& device, uint64_t seed = 0);
  Tensor operator()(const Tensor& x);

  size_t size() const { return layers_.size(); }
  Dense& operator[](size_t index) { return layers_[index]; }

  // "layers.0.weight", "layers.0.bias", "layers.1.weight", .. ; those that exist.
  std::vector<Parameter> parameters() const;
  void to(const Device& device);

  // As a safetensors file. FAILED_PRECONDITION while a layer has no parameters yet.
  absl::Status save_parameters(const std::string& path,
                               absl::Duration timeout = kDefaultTimeout) const;
  // From a safetensors file that has exactly this network's names, onto `device`. All or nothing.
  absl::Status load_parameters(const std::string& path, const Device& device);

 private:
  std::vector<Dense> layers_;
};

}  // namespace devserver::client::nn
