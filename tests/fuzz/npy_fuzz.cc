// Any bytes read as a .npy file. What is accepted, written again and read again is the same.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "devserver/npy.h"
#include "tests/fuzz/require.h"

namespace devserver::client {
namespace {

void Check(std::span<const std::byte> file) {
  const absl::StatusOr<NpyArray> array = ParseNpy(file, "fuzz");
  if (!array.ok()) {
    Require(array.status().code() == absl::StatusCode::kInvalidArgument);
    return;
  }
  Require(array->bytes.size() == array->spec.size_bytes());
  Require(array->bytes.size() < file.size());
  const absl::StatusOr<std::string> header = EncodeNpyHeader(array->spec);
  Require(header.ok());
  Require(header->size() % 64 == 0);
  std::vector<std::byte> again(header->size());
  std::memcpy(again.data(), header->data(), header->size());
  again.insert(again.end(), array->bytes.begin(), array->bytes.end());
  const absl::StatusOr<NpyArray> reread = ParseNpy(again, "fuzz");
  Require(reread.ok());
  Require(reread->spec == array->spec);
  Require(std::ranges::equal(reread->bytes, array->bytes));
}

}  // namespace
}  // namespace devserver::client

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  devserver::client::Check(std::as_bytes(std::span(data, size)));
  return 0;
}
