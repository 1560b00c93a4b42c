// Layers: inferred sizes, where parameters live, files of parameters, and a real network on real
// images.
#include "devserver/nn.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "devserver/safetensors.h"
#include "tests/client/client_fixture.h"

namespace devserver::client::nn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class NnTest : public ClientTest {
 protected:
  std::string Path(const std::string& name) {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    return absl::StrFormat("%s/%s.%s", testing::TempDir(), test->name(), name);
  }
};

TEST_F(NnTest, TheFirstInputSaysHowLargeADenseLayerIs) {
  const Client client = Connect();
  Dense layer(4);
  layer.initialize(*client.gpu(0), 1);
  EXPECT_FALSE(layer.has_parameters());
  EXPECT_EQ(layer.weight().status().code(), absl::StatusCode::kFailedPrecondition);
  const Tensor y = layer(ones({2, 3}, *client.gpu(0)));
  EXPECT_EQ(y.spec().ToString(), "f32[2,4]");
  EXPECT_EQ(layer.weight()->spec().ToString(), "f32[3,4]");
  EXPECT_EQ(layer.bias()->spec().ToString(), "f32[4]");
  EXPECT_TRUE(y.sync().ok()) << y.status();
  // Fixed from now on.
  EXPECT_EQ(layer(ones({2, 5}, *client.gpu(0))).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(NnTest, ALayerWithoutADeviceSaysWhatToDo) {
  const Client client = Connect();
  Dense layer(4);
  const absl::Status status = layer(ones({2, 3}, client.cpu())).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("initialize(device)"));
}

TEST_F(NnTest, OneSeedMakesTheSameParametersOnEveryDevice) {
  const Client client = Connect();
  for (const Initializer& initializer : {Initializer::Uniform(0.5), Initializer::Normal(0.1)}) {
    std::vector<std::vector<float>> weights;
    for (const Device& device : {client.cpu(), *client.gpu(1)}) {
      Dense layer(8, {.in_units = 3, .weights = initializer});
      layer.initialize(device, 5);
      weights.push_back(*layer.weight()->fetch<float>());
    }
    EXPECT_EQ(weights[0], weights[1]);
    EXPECT_NE(weights[0][0], weights[0][1]);
  }
}

TEST_F(NnTest, ADenseLayerComputesActivationOfXWPlusB) {
  const Client client = Connect();
  const Device device = *client.gpu(0);
  Dense layer(2, {.activation = Activation::kRelu});
  ASSERT_TRUE(layer
                  .set_parameters(from<float>({1, 2, 3, 4}, {2, 2}, device),
                                  from<float>({-10, 1}, {2}, device))
                  .ok());
  EXPECT_THAT(*layer(from<float>({1, 1}, {1, 2}, device)).fetch<float>(), ElementsAre(0, 7));
  EXPECT_EQ(layer.set_parameters(ones({2, 3}, device), ones({2}, device)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(layer.set_parameters(ones({2, 2}, device), std::nullopt).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(NnTest, ANetworkComputesWhereItsParametersAreAndNothingMoves) {
  const Client client = Connect();
  Sequential net({Dense(4, {.activation = Activation::kTanh}), Dense(1)});
  net.initialize(*client.gpu(0), 1);
  ASSERT_TRUE(net(ones({2, 3}, *client.gpu(0))).sync().ok());
  for (const Parameter& parameter : net.parameters()) {
    EXPECT_EQ(parameter.value.device_name(), "gpu:0") << parameter.name;
  }
  EXPECT_EQ(ReasonOf(net(ones({2, 3}, *client.gpu(1))).sync()), ErrorReason::kInputFailed);
  net.to(*client.gpu(1));
  EXPECT_TRUE(net(ones({2, 3}, *client.gpu(1))).sync().ok());
}

TEST_F(NnTest, ParametersAreSavedAndReadBackBitForBit) {
  const Client client = Connect();
  Sequential net({Dense(5), Dense(2, {.use_bias = false})});
  net.initialize(*client.gpu(0), 3);
  EXPECT_EQ(net.save_parameters(Path("none")).code(), absl::StatusCode::kFailedPrecondition);
  const Tensor x = uniform({4, 3}, *client.gpu(0), {.seed = 9});
  const std::vector<float> before = *net(x).fetch<float>();
  ASSERT_TRUE(net.save_parameters(Path("net")).ok());
  const absl::StatusOr<SafetensorsFile> file = LoadSafetensors(Path("net"));
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<std::string> names;
  for (const SafetensorsEntry& entry : file->contents.tensors) {
    names.push_back(entry.name);
  }
  EXPECT_THAT(names,
              testing::UnorderedElementsAre("layers.0.weight", "layers.0.bias", "layers.1.weight"));
  Sequential again({Dense(5), Dense(2, {.use_bias = false})});
  ASSERT_TRUE(again.load_parameters(Path("net"), *client.gpu(0)).ok());
  EXPECT_EQ(*again(x).fetch<float>(), before);
  std::filesystem::remove(Path("net"));
}

TEST_F(NnTest, AnotherNetworksFileIsRefusedAndNothingChanges) {
  const Client client = Connect();
  Sequential net({Dense(5)});
  net.initialize(client.cpu(), 3);
  const Tensor x = ones({1, 3}, client.cpu());
  const std::vector<float> before = *net(x).fetch<float>();
  ASSERT_TRUE(net.save_parameters(Path("net")).ok());
  Sequential deeper({Dense(5), Dense(1)});
  EXPECT_THAT(std::string(deeper.load_parameters(Path("net"), client.cpu()).message()),
              HasSubstr("layers.1.weight"));
  Sequential wider({Dense(6)});
  wider.initialize(client.cpu(), 4);
  EXPECT_EQ(wider.load_parameters(Path("net"), client.cpu()).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(wider(x).spec().ToString(), "f32[1,6]");
  EXPECT_EQ(net.load_parameters(Path("missing"), client.cpu()).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(*net(x).fetch<float>(), before);
  std::filesystem::remove(Path("net"));
}

TEST_F(NnTest, TheTrainedNetworkReadsTheDigitsAsInDoublePrecision) {
  const Client client = Connect();
  const Device device = *client.gpu(0);
  Sequential net({Dense(128, {.activation = Activation::kRelu}),
                  Dense(64, {.activation = Activation::kRelu}), Dense(10)});
  const absl::Status loaded = net.load_parameters("tests/data/digits_mlp.safetensors", device);
  ASSERT_TRUE(loaded.ok()) << loaded;
  const absl::StatusOr<SafetensorsFile> file =
      LoadSafetensors("tests/data/digits_test.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  const auto put = [&](const char* name) {
    const SafetensorsEntry* entry = file->contents.Find(name);
    return entry == nullptr ? Tensor() : upload(entry->spec, entry->bytes, device);
  };
  const Tensor logits = net(put("images"));
  const Tensor decisions = argmax(logits, {1});
  EXPECT_EQ(*sum(cast(equal(decisions, put("labels")), DType::kI64)).item<int64_t>(), 487);
  const Tensor reference = put("logits_f64_as_f32");
  EXPECT_EQ(*sum(cast(equal(decisions, argmax(reference, {1})), DType::kI64)).item<int64_t>(), 500);
  EXPECT_NEAR(*norm(logits).item<float>(), 549.785979, 1e-3);
}

}  // namespace
}  // namespace devserver::client::nn
