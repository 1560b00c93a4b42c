// A real input: a trained network classifies 500 images of handwritten digits on gpu:0.
//
//   digits HOST:PORT [DIR]     DIR holds digits_mlp.safetensors and digits_test.safetensors;
//   default tests/data
//
// It prints the accuracy and compares its 500 decisions with those of the same network in double
// precision.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "devserver/client.h"
#include "devserver/nn.h"
#include "devserver/safetensors.h"
#include "server/base/status_macros.h"

namespace devserver::client {
namespace {

absl::StatusOr<Tensor> Upload(const SafetensorsFile& file, const std::string& name,
                              const Device& device) {
  const SafetensorsEntry* entry = file.contents.Find(name);
  if (entry == nullptr) {
    return absl::NotFoundError(absl::StrFormat("the test file holds no \"%s\"", name));
  }
  return upload(entry->spec, entry->bytes, device);
}

absl::Status Classify(const std::string& address, const std::string& directory) {
  ASSIGN_OR_RETURN(const Client client, Client::connect(address));
  const Device device = client.try_gpu();
  std::printf("Server %s, computing on %s (%s). %s\n", address.c_str(), device.name().c_str(),
              device.info().model.c_str(), device.note().c_str());

  nn::Sequential net({nn::Dense(128, {.activation = Activation::kRelu}),
                      nn::Dense(64, {.activation = Activation::kRelu}), nn::Dense(10)});
  RETURN_IF_ERROR(net.load_parameters(directory + "/digits_mlp.safetensors", device));
  for (const nn::Parameter& parameter : net.parameters()) {
    std::printf("  %-16s %-12s on %s\n", parameter.name.c_str(),
                parameter.value.spec().ToString().c_str(), parameter.value.device_name().c_str());
  }

  ASSIGN_OR_RETURN(const SafetensorsFile file,
                   LoadSafetensors(directory + "/digits_test.safetensors"));
  ASSIGN_OR_RETURN(const Tensor images, Upload(file, "images", device));
  ASSIGN_OR_RETURN(const Tensor labels, Upload(file, "labels", device));
  ASSIGN_OR_RETURN(const Tensor reference, Upload(file, "logits_f64_as_f32", device));
  std::printf("%d images of %d pixels each are on %s.\n", static_cast<int>(images.shape().dim(0)),
              static_cast<int>(images.shape().dim(1)), images.device_name().c_str());

  // Everything stays on the device; three numbers come back.
  const Tensor logits = net(images);
  const Tensor decisions = argmax(logits, {1});
  const Tensor right = sum(cast(equal(decisions, labels), DType::kI64));
  const Tensor same = sum(cast(equal(decisions, argmax(reference, {1})), DType::kI64));
  const Tensor largest_error = max(maximum(logits - reference, reference - logits));
  ASSIGN_OR_RETURN(const int64_t right_count, right.item<int64_t>());
  ASSIGN_OR_RETURN(const int64_t same_count, same.item<int64_t>());
  ASSIGN_OR_RETURN(const float error, largest_error.item<float>());
  const int64_t count = images.shape().dim(0);
  std::printf("Accuracy: %d of %d right (%.1f %%).\n", static_cast<int>(right_count),
              static_cast<int>(count),
              100.0 * static_cast<double>(right_count) / static_cast<double>(count));
  std::printf(
      "The same decision as in double precision: %d of %d; outputs differ by at most %.2g.\n",
      static_cast<int>(same_count), static_cast<int>(count), static_cast<double>(error));

  ASSIGN_OR_RETURN(const std::vector<int64_t> first, slice(decisions, {0}, {10}).fetch<int64_t>());
  std::printf("The first ten digits read:");
  for (const int64_t digit : first) {
    std::printf(" %d", static_cast<int>(digit));
  }
  std::printf("\n");
  if (same_count != count) {
    return absl::InternalError(
        absl::StrFormat("%d of %d decisions differ from the reference", count - same_count, count));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace devserver::client

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(
        stderr,
        "usage: %s HOST:PORT [DIR]\n"
        "DIR holds digits_mlp.safetensors and digits_test.safetensors (default tests/data)\n",
        argv[0]);
    return 2;
  }
  const absl::Status status =
      devserver::client::Classify(argv[1], argc == 3 ? argv[2] : "tests/data");
  if (!status.ok()) {
    std::fprintf(stderr, "digits: %s\n",
                 status.ToString(absl::StatusToStringMode::kWithNoExtraData).c_str());
    return 1;
  }
  return 0;
}
