#include "devserver/npy.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/file_bytes.h"
#include "server/base/status_macros.h"

namespace devserver::client {
namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr size_t kAlignBytes = 64;  // As NumPy pads: the data can be memory-mapped.
constexpr std::string_view kKept = "f32, f64, f16, i32, i64, u8 and bool";

// "f4" without its byte order.
constexpr std::pair<std::string_view, DType> kDTypes[] = {
    {"f4", DType::kF32}, {"f8", DType::kF64}, {"f2", DType::kF16}, {"i4", DType::kI32},
    {"i8", DType::kI64}, {"u1", DType::kU8},  {"b1", DType::kBool}};

// What the header says, not checked yet beyond its syntax.
struct Header {
  std::string descr;
  bool fortran_order = false;
  std::array<int64_t, kDimsMax> dims = {};
  size_t rank = 0;
};

// Reads the header's dict literal: three keys in any order, as NumPy writes them. Nothing of Python
// beyond that.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, std::string_view source) : text_(text), source_(source) {}

  absl::StatusOr<Header> Parse();

 private:
  absl::Status Fail(const std::string& message) const {
    return absl::InvalidArgumentError(absl::StrFormat("%s: its header, at character %d, %s: %s",
                                                      source_, position_, message, Shown(text_)));
  }
  void SkipSpace() {
    while (position_ < text_.size() &&
           (text_[position_] == ' ' || text_[position_] == '\n' || text_[position_] == '\t')) {
      ++position_;
    }
  }
  // Whether `token` comes next; if so, it is read.
  bool Take(std::string_view token) {
    SkipSpace();
    if (!text_.substr(position_).starts_with(token)) {
      return false;
    }
    position_ += token.size();
    return true;
  }
  absl::Status Expect(std::string_view token) {
    return Take(token) ? absl::OkStatus() : Fail(absl::StrFormat("lacks a '%s'", token));
  }
  absl::StatusOr<std::string> String();
  absl::StatusOr<bool> Bool();
  absl::StatusOr<int64_t> Size();
  absl::Status Descr();
  absl::Status ShapeTuple();

  const std::string_view text_;
  const std::string_view source_;
  size_t position_ = 0;
  Header header_;
};

absl::StatusOr<std::string> HeaderParser::String() {
  SkipSpace();
  const char quote = position_ < text_.size() ? text_[position_] : '\0';
  if (quote != '\'' && quote != '"') {
    return Fail("lacks a string in quotes");
  }
  const size_t end = text_.find(quote, position_ + 1);
  if (end == std::string_view::npos) {
    return Fail("has a string without an end");
  }
  std::string value(text_.substr(position_ + 1, end - position_ - 1));
  position_ = end + 1;
  return value;
}

absl::StatusOr<bool> HeaderParser::Bool() {
  if (Take("True")) {
    return true;
  }
  if (Take("False")) {
    return false;
  }
  return Fail("lacks True or False");
}

absl::StatusOr<int64_t> HeaderParser::Size() {
  SkipSpace();
  const size_t start = position_;
  int64_t value = 0;
  while (position_ < text_.size() && text_[position_] >= '0' && text_[position_] <= '9') {
    const int64_t digit = text_[position_] - '0';
    if (value > (std::numeric_limits<int64_t>::max() - digit) / 10) {
      return Fail("has a size above 2^63 - 1");
    }
    value = value * 10 + digit;
    ++position_;
  }
  if (position_ == start) {
    return Fail("lacks a size of 0 or more");
  }
  Take("L");  // Python 2 wrote longs so.
  return value;
}

absl::Status HeaderParser::Descr() {
  if (Take("[")) {
    return Fail("describes a structured array; save its fields one by one, each with np.save");
  }
  ASSIGN_OR_RETURN(header_.descr, String());
  return absl::OkStatus();
}

absl::Status HeaderParser::ShapeTuple() {
  RETURN_IF_ERROR(Expect("("));
  while (!Take(")")) {
    if (header_.rank == header_.dims.size()) {
      return Fail(absl::StrFormat("has more than %d dimensions; array.reshape(...) it", kDimsMax));
    }
    ASSIGN_OR_RETURN(header_.dims[header_.rank++], Size());
    if (!Take(",")) {
      return Expect(")");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Header> HeaderParser::Parse() {
  bool has_descr = false;
  bool has_order = false;
  bool has_shape = false;
  RETURN_IF_ERROR(Expect("{"));
  while (!Take("}")) {
    ASSIGN_OR_RETURN(const std::string key, String());
    RETURN_IF_ERROR(Expect(":"));
    bool seen = false;
    if (key == "descr") {
      seen = std::exchange(has_descr, true);
      RETURN_IF_ERROR(Descr());
    } else if (key == "fortran_order") {
      seen = std::exchange(has_order, true);
      ASSIGN_OR_RETURN(header_.fortran_order, Bool());
    } else if (key == "shape") {
      seen = std::exchange(has_shape, true);
      header_.rank = 0;
      RETURN_IF_ERROR(ShapeTuple());
    } else {
      return Fail(absl::StrFormat("has an unknown key %s", Shown(key)));
    }
    if (seen) {
      return Fail(absl::StrFormat("has the key '%s' twice", key));
    }
    if (!Take(",")) {
      RETURN_IF_ERROR(Expect("}"));
      break;
    }
  }
  SkipSpace();
  if (position_ != text_.size()) {
    return Fail("goes on after its '}'");
  }
  if (!has_descr || !has_order || !has_shape) {
    return Fail("lacks one of 'descr', 'fortran_order' and 'shape'");
  }
  return header_;
}

absl::StatusOr<DType> DTypeOf(std::string_view descr, std::string_view source) {
  const char order = descr.empty() ? '\0' : descr[0];
  const bool has_order = order == '<' || order == '>' || order == '=' || order == '|';
  const std::string_view kind = has_order ? descr.substr(1) : descr;
  for (const auto& [name, dtype] : kDTypes) {
    if (kind != name) {
      continue;
    }
    if (order == '>' && DTypeSize(dtype) > 1) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: dtype '%s' is big-endian; save array.astype('<%s') instead", source, descr, kind));
    }
    return dtype;
  }
  if (kind == "V2") {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: dtype '%s' is raw bytes, perhaps bf16, which .npy can't tell; save the array as "
        ".safetensors or save array.astype(np.float32)",
        source, descr));
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: dtype %s is not one that devserverd keeps (%s); save "
                      "array.astype(np.float32) or another "
                      "of these instead",
                      source, Shown(descr), kKept));
}

// The header's text and where the data starts.
struct Framing {
  std::string_view header;
  size_t data_offset = 0;
};

absl::StatusOr<Framing> SplitFile(std::span<const std::byte> file, std::string_view source) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (!text.starts_with(kMagic)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: doesn't start as a .npy file does; write it with np.save", source));
  }
  const std::string_view after_magic = text.substr(kMagic.size());
  const unsigned major = after_magic.empty() ? 0 : static_cast<unsigned char>(after_magic[0]);
  const size_t length_bytes = major == 1 ? 2 : 4;
  if (after_magic.size() < 2 + length_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: ends after %d bytes, inside its header; fetch it again", source, file.size()));
  }
  const unsigned minor = static_cast<unsigned char>(after_magic[1]);
  if (major < 1 || major > 3 || minor != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: .npy version %d.%d is not known (1.0, 2.0 and 3.0 are)", source, major, minor));
  }
  uint32_t header_size = 0;
  std::memcpy(&header_size, after_magic.data() + 2, length_bytes);
  const std::string_view rest = after_magic.substr(2 + length_bytes);
  if (header_size > kNpyHeaderBytesMax || header_size > rest.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: says a header of %d bytes; %d are there and the limit is %d", source,
                        header_size, rest.size(), kNpyHeaderBytesMax));
  }
  return Framing{rest.substr(0, header_size), kMagic.size() + 2 + length_bytes + header_size};
}

}  // namespace

absl::StatusOr<NpyArray> ParseNpy(std::span<const std::byte> file, std::string_view source) {
  ASSIGN_OR_RETURN(const Framing framing, SplitFile(file, source));
  ASSIGN_OR_RETURN(const Header header, HeaderParser(framing.header, source).Parse());
  ASSIGN_OR_RETURN(const DType dtype, DTypeOf(header.descr, source));
  const absl::StatusOr<Shape> shape =
      Shape::Create(std::span<const int64_t>(header.dims.data(), header.rank));
  if (!shape.ok()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s", source, std::string(shape.status().message())));
  }
  const TensorSpec spec = {dtype, *shape};
  if (header.fortran_order && shape->rank() > 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %s is in Fortran order (column by column); save np.ascontiguousarray(array) instead",
        source, spec.ToString()));
  }
  const std::span<const std::byte> data = file.subspan(framing.data_offset);
  if (data.size() != spec.size_bytes()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %s takes %d bytes, the file has %d after its header; it may be cut short or hold "
        "several arrays: save the one array again with np.save",
        source, spec.ToString(), spec.size_bytes(), data.size()));
  }
  return NpyArray{spec, data};
}

absl::StatusOr<NpyFile> LoadNpy(const std::string& path) {
  ASSIGN_OR_RETURN(FileBytes bytes, ReadFile(path));
  ASSIGN_OR_RETURN(const NpyArray array, ParseNpy(bytes.span(), path));
  return NpyFile{std::move(bytes.data), array};
}

absl::StatusOr<std::string> EncodeNpyHeader(const TensorSpec& spec) {
  std::string descr;
  for (const auto& [name, dtype] : kDTypes) {
    if (dtype == spec.dtype) {
      descr = absl::StrFormat("%c%s", DTypeSize(dtype) == 1 ? '|' : '<', name);
    }
  }
  if (descr.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "npy: %s: NumPy has no such dtype (.npy holds %s); cast the tensor to f32 first, or use a "
        ".safetensors file",
        spec.ToString(), kKept));
  }
  std::string shape;
  for (const int64_t dim : spec.shape.dims()) {
    absl::StrAppendFormat(&shape, "%s%d", shape.empty() ? "" : ", ", dim);
  }
  shape += spec.shape.rank() == 1 ? "," : "";
  std::string header =
      absl::StrFormat("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, shape);
  const size_t prefix = kMagic.size() + 2 + 2;
  const size_t end = (prefix + header.size() + 1 + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
  header.resize(end - prefix - 1, ' ');
  header += '\n';
  const auto size = static_cast<uint16_t>(header.size());
  std::string start(kMagic);
  start += '\x01';
  start += '\x00';
  start += static_cast<char>(size & 0xFF);
  start += static_cast<char>(size >> 8);
  return start + header;
}

absl::Status SaveNpy(const std::string& path, const NpyArray& array) {
  if (array.bytes.size() != array.spec.size_bytes()) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: %s takes %d bytes, %d were given", path,
                                                      array.spec.ToString(),
                                                      array.spec.size_bytes(), array.bytes.size()));
  }
  ASSIGN_OR_RETURN(const std::string header, EncodeNpyHeader(array.spec));
  const std::span<const std::byte> parts[] = {std::as_bytes(std::span(header)), array.bytes};
  return WriteFile(path, parts);
}

}  // namespace devserver::client
