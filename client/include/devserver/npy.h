// .npy files: one NumPy array each (format versions 1, 2 and 3).
//
//   file   = "\x93NUMPY" major:u8 minor:u8 size header data; size is u16 in version 1, else u32
//   header = `size` bytes, a Python dict literal such as
//            {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
//   data   = the packed elements
//
// Source: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html.
// Read and written are f32, f64, f16, i32, i64, u8 and bool in little-endian row-major order. NumPy
// has no bf16; other dtypes, big-endian and Fortran order are refused with the line of Python that
// makes a file which can be read. No pickles.
//
// Thread safety: any thread. Errors are INVALID_ARGUMENT and name the file, the values and a cure;
// files add NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED and UNAVAILABLE.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/tensor/dtype.h"
#include "server/tensor/shape.h"

namespace devserver::client {

// NumPy's own come to 128; version 1 can't hold more.
inline constexpr size_t kNpyHeaderBytesMax = 65536;

struct NpyArray {
  TensorSpec spec;
  std::span<const std::byte> bytes;  // spec.size_bytes() of them, owned by somebody else
};

// A file read into memory; the array's bytes point into `buffer` and stay valid when this is moved.
struct NpyFile {
  std::unique_ptr<std::byte[]> buffer;
  NpyArray array;
};

// The array in `file`, whose bytes must outlive the result. `source` names the file in errors.
absl::StatusOr<NpyArray> ParseNpy(std::span<const std::byte> file, std::string_view source);

absl::StatusOr<NpyFile> LoadNpy(const std::string& path);

// Everything before the data, padded so that the data starts at a multiple of 64. Refuses bf16.
absl::StatusOr<std::string> EncodeNpyHeader(const TensorSpec& spec);

// Replaces `path` only when everything is written.
absl::Status SaveNpy(const std::string& path, const NpyArray& array);

}  // namespace devserver::client
