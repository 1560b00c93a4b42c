// .safetensors files: named tensors and text metadata, as PyTorch and others write parameters.
//
//   file   = size:u64 header data, all numbers little-endian
//   header = `size` bytes, a JSON object that may end in spaces:
//            {"__metadata__": {"KEY": "text", ..},
//             "NAME": {"dtype": "F32", "shape": [2,3], "data_offsets": [begin,end]}, ..}
//   data   = the tensors' packed, row-major elements; offsets count from its start, leave no gap
//            and don't overlap
//
// Source: https://github.com/huggingface/safetensors, "Format".
// Files come from outside: every size and offset is checked before it is used, and nothing is
// allocated that the file itself doesn't hold.
//
// Thread safety: any thread. Errors are INVALID_ARGUMENT and name the file, the tensor, the values
// and a cure; files add NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED and UNAVAILABLE.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/tensor/dtype.h"
#include "server/tensor/shape.h"

namespace devserver::client {

inline constexpr size_t kSafetensorsHeaderBytesMax = 100'000'000;  // The format's own limit.

using SafetensorsMetadata = std::map<std::string, std::string>;

struct SafetensorsEntry {
  std::string name;
  TensorSpec spec;
  std::span<const std::byte> bytes;  // spec.size_bytes() of them, owned by somebody else
};

struct SafetensorsContents {
  std::vector<SafetensorsEntry> tensors;  // in the order of the header
  SafetensorsMetadata metadata;

  // nullptr if there is none of that name.
  const SafetensorsEntry* Find(std::string_view name) const;
};

// A file read into memory; the contents' bytes point into `buffer` and stay valid when this is
// moved.
struct SafetensorsFile {
  std::unique_ptr<std::byte[]> buffer;
  SafetensorsContents contents;
};

// The contents of `file`, whose bytes must outlive the result. `source` names the file in errors.
absl::StatusOr<SafetensorsContents> ParseSafetensors(std::span<const std::byte> file,
                                                     std::string_view source);

absl::StatusOr<SafetensorsFile> LoadSafetensors(const std::string& path);

// The size and the header of a file that holds `tensors` in this order; their bytes follow it in
// the same order. The header is padded so that the data starts at a multiple of 8. Refused: a name
// used twice or "__metadata__", text that is not UTF-8, bytes that don't fill the shape.
absl::StatusOr<std::string> EncodeSafetensorsHeader(std::span<const SafetensorsEntry> tensors,
                                                    const SafetensorsMetadata& metadata);

// Replaces `path` only when everything is written.
absl::Status SaveSafetensors(const std::string& path, std::span<const SafetensorsEntry> tensors,
                             const SafetensorsMetadata& metadata = {});

// "F32", "BF16", "BOOL": the format's name of a dtype.
std::string_view SafetensorsDTypeName(DType dtype);

}  // namespace devserver::client
