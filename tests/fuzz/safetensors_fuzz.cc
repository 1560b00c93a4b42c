// Any bytes read as a .safetensors file. What is accepted, written again and read again is the
// same, and no tensor's bytes lie outside the file.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "devserver/safetensors.h"
#include "tests/fuzz/require.h"

namespace devserver::client {
namespace {

void Check(std::span<const std::byte> file) {
  const absl::StatusOr<SafetensorsContents> contents = ParseSafetensors(file, "fuzz");
  if (!contents.ok()) {
    Require(contents.status().code() == absl::StatusCode::kInvalidArgument);
    return;
  }
  const absl::StatusOr<std::string> header =
      EncodeSafetensorsHeader(contents->tensors, contents->metadata);
  Require(header.ok());
  std::vector<std::byte> again(header->size());
  std::memcpy(again.data(), header->data(), header->size());
  for (const SafetensorsEntry& tensor : contents->tensors) {
    Require(tensor.bytes.size() == tensor.spec.size_bytes());
    Require(tensor.bytes.data() >= file.data());
    Require(tensor.bytes.data() + tensor.bytes.size() <= file.data() + file.size());
    again.insert(again.end(), tensor.bytes.begin(), tensor.bytes.end());
  }
  const absl::StatusOr<SafetensorsContents> reread = ParseSafetensors(again, "fuzz");
  Require(reread.ok());
  Require(reread->metadata == contents->metadata);
  Require(reread->tensors.size() == contents->tensors.size());
  for (size_t i = 0; i < reread->tensors.size(); ++i) {
    Require(reread->tensors[i].name == contents->tensors[i].name);
    Require(reread->tensors[i].spec == contents->tensors[i].spec);
    Require(std::ranges::equal(reread->tensors[i].bytes, contents->tensors[i].bytes));
  }
}

}  // namespace
}  // namespace devserver::client

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  devserver::client::Check(std::as_bytes(std::span(data, size)));
  return 0;
}
