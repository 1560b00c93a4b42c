#include "devserver/safetensors.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/file_bytes.h"
#include "server/base/status_macros.h"

namespace devserver::client {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr size_t kSizeBytes = 8;
constexpr size_t kAlignBytes = 8;  // The widest dtype.
constexpr size_t kJsonErrorBytesMax = 200;

constexpr std::pair<std::string_view, DType> kDTypes[] = {
    {"F32", DType::kF32}, {"F64", DType::kF64}, {"F16", DType::kF16}, {"BF16", DType::kBF16},
    {"I32", DType::kI32}, {"I64", DType::kI64}, {"U8", DType::kU8},   {"BOOL", DType::kBool}};

std::optional<DType> FindDType(std::string_view name) {
  for (const auto& [known, dtype] : kDTypes) {
    if (name == known) {
      return dtype;
    }
  }
  return std::nullopt;
}

uint64_t ReadSize(std::span<const std::byte> file) {
  uint64_t size = 0;
  std::memcpy(&size, file.data(), kSizeBytes);
  return size;
}

// Reads the header as a stream of JSON events and stops at the first that the format does not
// allow, so a header costs no more memory than the tensors it describes.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(std::span<const std::byte> data, std::string_view source)
      : data_(data), source_(source) {}

  const absl::Status& status() const { return status_; }
  SafetensorsContents TakeContents() { return std::move(contents_); }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a bool"); }
  bool number_float(double, const std::string& text) override {
    return Unexpected(absl::StrFormat("the number %s", text));
  }
  bool number_integer(int64_t value) override {
    return Unexpected(absl::StrFormat("the number %d", value));
  }
  bool number_unsigned(uint64_t value) override;
  bool string(std::string& value) override;
  bool binary(nlohmann::json::binary_t&) override { return Unexpected("binary data"); }
  bool start_object(size_t) override;
  bool key(std::string& name) override;
  bool end_object() override;
  bool start_array(size_t) override;
  bool end_array() override;
  bool parse_error(size_t position, const std::string& token,
                   const nlohmann::detail::exception& error) override;

 private:
  // What the next event has to be.
  enum class State {
    kStart,          // the object
    kNames,          // a tensor's name, or the end
    kMetadataStart,  // the object of __metadata__
    kMetadata,       // a key, or its end
    kMetadataValue,  // a string
    kTensorStart,    // a tensor's object
    kTensor,         // a key, or its end
    kDType,          // a string
    kShapeStart,     // [
    kShape,          // a size, or ]
    kOffsetsStart,   // [
    kOffsets,        // a byte count, or ] after two
    kDone,           // nothing
  };
  struct Pending {
    std::string name;
    std::optional<DType> dtype;
    std::array<int64_t, kDimsMax> dims = {};
    size_t rank = 0;
    std::array<uint64_t, 2> offsets = {};
    size_t offset_count = 0;
    bool has_shape = false;
    bool has_offsets = false;
  };

  bool Fail(const std::string& message) {
    status_ = absl::InvalidArgumentError(absl::StrFormat("%s: %s", source_, message));
    return false;
  }
  bool FailTensor(const std::string& message) {
    return Fail(absl::StrFormat("tensor %s: %s", Shown(pending_.name), message));
  }
  bool Unexpected(const std::string& found);
  bool TensorKey(std::string_view name);
  bool FinishTensor();

  // Constant after construction.
  const std::span<const std::byte> data_;
  const std::string source_;

  State state_ = State::kStart;
  Pending pending_;
  std::string metadata_key_;
  std::set<std::string> names_;
  SafetensorsContents contents_;
  absl::Status status_;
};

bool HeaderReader::Unexpected(const std::string& found) {
  switch (state_) {
    case State::kStart:
      return Fail(absl::StrFormat("the header is %s; it must be a JSON object", found));
    case State::kMetadataStart:
      return Fail(absl::StrFormat("%s is %s; it must be an object", kMetadataKey, found));
    case State::kMetadataValue:
      return Fail(absl::StrFormat("%s: %s is %s; its values must be strings", kMetadataKey,
                                  Shown(metadata_key_), found));
    case State::kTensorStart:
      return FailTensor(
          absl::StrFormat("is %s; it must be an object of dtype, shape and data_offsets", found));
    case State::kDType:
      return FailTensor(absl::StrFormat("dtype is %s; it must be a string such as \"F32\"", found));
    case State::kShapeStart:
    case State::kShape:
      return FailTensor(
          absl::StrFormat("shape has %s; it must be a list of sizes such as [2,3]", found));
    case State::kOffsetsStart:
    case State::kOffsets:
      return FailTensor(
          absl::StrFormat("data_offsets has %s; it must be two byte counts such as [0,24]", found));
    case State::kNames:
    case State::kMetadata:
    case State::kTensor:
    case State::kDone:
      break;  // JSON has only keys and ends here.
  }
  return Fail(absl::StrFormat("the header has %s where a key belongs", found));
}

bool HeaderReader::number_unsigned(uint64_t value) {
  if (state_ == State::kShape) {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return FailTensor(absl::StrFormat("size %d in its shape is above 2^63 - 1", value));
    }
    if (pending_.rank == pending_.dims.size()) {
      return FailTensor(
          absl::StrFormat("has more than %d dimensions; reshape it before it is saved", kDimsMax));
    }
    pending_.dims[pending_.rank++] = static_cast<int64_t>(value);
    return true;
  }
  if (state_ == State::kOffsets && pending_.offset_count < pending_.offsets.size()) {
    pending_.offsets[pending_.offset_count++] = value;
    return true;
  }
  return Unexpected(absl::StrFormat("the number %d", value));
}

bool HeaderReader::string(std::string& value) {
  if (state_ == State::kMetadataValue) {
    if (!contents_.metadata.emplace(metadata_key_, std::move(value)).second) {
      return Fail(absl::StrFormat("%s: %s is there twice", kMetadataKey, Shown(metadata_key_)));
    }
    state_ = State::kMetadata;
    return true;
  }
  if (state_ != State::kDType) {
    return Unexpected(absl::StrFormat("the string %s", Shown(value)));
  }
  pending_.dtype = FindDType(value);
  if (!pending_.dtype.has_value()) {
    return FailTensor(absl::StrFormat(
        "dtype %s is not one that devserverd keeps (F32, F64, F16, BF16, I32, I64, U8, BOOL); "
        "convert the tensor to one of these before it is saved",
        Shown(value)));
  }
  state_ = State::kTensor;
  return true;
}

bool HeaderReader::start_object(size_t) {
  switch (state_) {
    case State::kStart:
      state_ = State::kNames;
      return true;
    case State::kMetadataStart:
      state_ = State::kMetadata;
      return true;
    case State::kTensorStart:
      state_ = State::kTensor;
      return true;
    default:
      return Unexpected("an object");
  }
}

bool HeaderReader::key(std::string& name) {
  if (state_ == State::kTensor) {
    return TensorKey(name);
  }
  if (state_ == State::kMetadata) {
    metadata_key_ = std::move(name);
    state_ = State::kMetadataValue;
    return true;
  }
  if (!names_.insert(name).second) {
    return Fail(absl::StrFormat("the header has %s twice; names must be unique", Shown(name)));
  }
  if (name == kMetadataKey) {
    state_ = State::kMetadataStart;
    return true;
  }
  pending_ = Pending();
  pending_.name = std::move(name);
  state_ = State::kTensorStart;
  return true;
}

bool HeaderReader::TensorKey(std::string_view name) {
  bool seen = false;
  if (name == "dtype") {
    seen = pending_.dtype.has_value();
    state_ = State::kDType;
  } else if (name == "shape") {
    seen = std::exchange(pending_.has_shape, true);
    state_ = State::kShapeStart;
  } else if (name == "data_offsets") {
    seen = std::exchange(pending_.has_offsets, true);
    state_ = State::kOffsetsStart;
  } else {
    return FailTensor(absl::StrFormat(
        "has an unknown key %s; the format knows dtype, shape and data_offsets", Shown(name)));
  }
  return !seen || FailTensor(absl::StrFormat("%s is there twice", name));
}

bool HeaderReader::end_object() {
  switch (state_) {
    case State::kMetadata:
      state_ = State::kNames;
      return true;
    case State::kTensor:
      state_ = State::kNames;
      return FinishTensor();
    default:
      state_ = State::kDone;
      return true;
  }
}

bool HeaderReader::start_array(size_t) {
  if (state_ == State::kShapeStart) {
    state_ = State::kShape;
    return true;
  }
  if (state_ == State::kOffsetsStart) {
    state_ = State::kOffsets;
    return true;
  }
  return Unexpected("a list");
}

bool HeaderReader::end_array() {
  if (state_ == State::kOffsets && pending_.offset_count != pending_.offsets.size()) {
    return Unexpected(absl::StrFormat("%d numbers", pending_.offset_count));
  }
  state_ = State::kTensor;
  return true;
}

bool HeaderReader::FinishTensor() {
  if (!pending_.dtype.has_value() || !pending_.has_shape || !pending_.has_offsets) {
    return FailTensor("lacks one of dtype, shape and data_offsets");
  }
  const absl::StatusOr<Shape> shape =
      Shape::Create(std::span<const int64_t>(pending_.dims.data(), pending_.rank));
  if (!shape.ok()) {
    return FailTensor(std::string(shape.status().message()));
  }
  const TensorSpec spec = {*pending_.dtype, *shape};
  const auto [begin, end] = pending_.offsets;
  if (begin > end || end > data_.size()) {
    return FailTensor(absl::StrFormat(
        "data_offsets [%d,%d] are outside the file, which has %d data bytes; it may be cut short: "
        "fetch it again",
        begin, end, data_.size()));
  }
  if (end - begin != spec.size_bytes()) {
    return FailTensor(absl::StrFormat("%s takes %d bytes, data_offsets [%d,%d] span %d",
                                      spec.ToString(), spec.size_bytes(), begin, end, end - begin));
  }
  contents_.tensors.push_back({std::move(pending_.name), spec, data_.subspan(begin, end - begin)});
  return true;
}

bool HeaderReader::parse_error(size_t, const std::string&,
                               const nlohmann::detail::exception& error) {
  std::string_view what = error.what();
  // "[json.exception.parse_error.101] parse error at line 1, column 9: ..."
  if (const size_t bracket = what.find("] "); bracket != std::string_view::npos) {
    what.remove_prefix(bracket + 2);
  }
  return Fail(absl::StrFormat("the header is not JSON: %s", what.substr(0, kJsonErrorBytesMax)));
}

// That the tensors fill `data` from end to end, each byte once.
absl::Status CheckLayout(const SafetensorsContents& contents, std::span<const std::byte> data,
                         std::string_view source) {
  std::vector<const SafetensorsEntry*> by_offset;
  by_offset.reserve(contents.tensors.size());
  for (const SafetensorsEntry& tensor : contents.tensors) {
    by_offset.push_back(&tensor);
  }
  const auto range = [&data](const SafetensorsEntry& tensor) {
    const auto begin = static_cast<size_t>(tensor.bytes.data() - data.data());
    return std::pair(begin, begin + tensor.bytes.size());
  };
  std::ranges::sort(by_offset, {}, [&](const SafetensorsEntry* tensor) { return range(*tensor); });
  size_t covered = 0;
  for (size_t i = 0; i < by_offset.size(); ++i) {
    const auto [begin, end] = range(*by_offset[i]);
    if (begin < covered) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: tensor %s at [%d,%d] overlaps %s, which ends at %d; every tensor needs bytes of its "
          "own",
          source, Shown(by_offset[i]->name), begin, end, Shown(by_offset[i - 1]->name), covered));
    }
    if (begin > covered) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: bytes %d to %d of its data, before tensor %s, belong to no tensor",
                          source, covered, begin, Shown(by_offset[i]->name)));
    }
    covered = end;
  }
  if (covered != data.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: the last %d of its %d data bytes belong to no tensor", source,
                        data.size() - covered, data.size()));
  }
  return absl::OkStatus();
}

// `text` as a JSON string.
absl::StatusOr<std::string> Quoted(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    return absl::InvalidArgumentError(
        absl::StrFormat("safetensors: %s is not UTF-8; names and metadata must be", Shown(text)));
  }
}

absl::StatusOr<std::string> MetadataJson(const SafetensorsMetadata& metadata) {
  std::string json;
  for (const auto& [key, value] : metadata) {
    ASSIGN_OR_RETURN(const std::string quoted_key, Quoted(key));
    ASSIGN_OR_RETURN(const std::string quoted_value, Quoted(value));
    absl::StrAppendFormat(&json, "%s%s:%s", json.empty() ? "" : ",", quoted_key, quoted_value);
  }
  return absl::StrFormat("\"%s\":{%s}", kMetadataKey, json);
}

}  // namespace

std::string_view SafetensorsDTypeName(DType dtype) {
  const auto* const found =
      std::ranges::find(kDTypes, dtype, &std::pair<std::string_view, DType>::second);
  return found == std::end(kDTypes) ? "unspecified" : found->first;
}

const SafetensorsEntry* SafetensorsContents::Find(std::string_view name) const {
  const auto found = std::ranges::find(tensors, name, &SafetensorsEntry::name);
  return found == tensors.end() ? nullptr : &*found;
}

absl::StatusOr<SafetensorsContents> ParseSafetensors(std::span<const std::byte> file,
                                                     std::string_view source) {
  if (file.size() < kSizeBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d bytes are too few for a safetensors file", source, file.size()));
  }
  const uint64_t header_size = ReadSize(file);
  if (header_size > kSafetensorsHeaderBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: its first 8 bytes say a header of %d bytes, the limit is %d; is it a "
                        "safetensors file?",
                        source, header_size, kSafetensorsHeaderBytesMax));
  }
  if (header_size > file.size() - kSizeBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: its header should have %d bytes, %d are there; it may be cut short: fetch it again",
        source, header_size, file.size() - kSizeBytes));
  }
  const std::span<const std::byte> header = file.subspan(kSizeBytes, header_size);
  if (header.empty() || header[0] != std::byte{'{'}) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: its header doesn't start with '{'; is it a safetensors file?", source));
  }
  const std::span<const std::byte> data = file.subspan(kSizeBytes + header_size);
  HeaderReader reader(data, source);
  const auto* const text = reinterpret_cast<const char*>(header.data());
  if (!nlohmann::json::sax_parse(text, text + header.size(), &reader)) {
    return reader.status();
  }
  SafetensorsContents contents = reader.TakeContents();
  RETURN_IF_ERROR(CheckLayout(contents, data, source));
  return contents;
}

absl::StatusOr<SafetensorsFile> LoadSafetensors(const std::string& path) {
  ASSIGN_OR_RETURN(FileBytes bytes, ReadFile(path));
  ASSIGN_OR_RETURN(SafetensorsContents contents, ParseSafetensors(bytes.span(), path));
  return SafetensorsFile{std::move(bytes.data), std::move(contents)};
}

absl::StatusOr<std::string> EncodeSafetensorsHeader(std::span<const SafetensorsEntry> tensors,
                                                    const SafetensorsMetadata& metadata) {
  std::string json = "{";
  if (!metadata.empty()) {
    ASSIGN_OR_RETURN(const std::string metadata_json, MetadataJson(metadata));
    json += metadata_json;
  }
  std::set<std::string_view> names;
  uint64_t offset = 0;
  for (const SafetensorsEntry& tensor : tensors) {
    if (tensor.name == kMetadataKey || !names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "safetensors: a tensor can't be named %s: %s", Shown(tensor.name),
          tensor.name == kMetadataKey ? "the format keeps its metadata there" : "another one is"));
    }
    if (tensor.bytes.size() != tensor.spec.size_bytes() ||
        tensor.spec.dtype == DType::kUnspecified) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "safetensors: tensor %s: %s takes %d bytes, %d were given", Shown(tensor.name),
          tensor.spec.ToString(), tensor.spec.size_bytes(), tensor.bytes.size()));
    }
    ASSIGN_OR_RETURN(const std::string name, Quoted(tensor.name));
    const uint64_t end = offset + tensor.bytes.size();
    absl::StrAppendFormat(&json, "%s%s:{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%d,%d]}",
                          json.size() == 1 ? "" : ",", name,
                          SafetensorsDTypeName(tensor.spec.dtype), tensor.spec.shape.ToString(),
                          offset, end);
    offset = end;
  }
  json += "}";
  json.resize((json.size() + kAlignBytes - 1) / kAlignBytes * kAlignBytes, ' ');
  if (json.size() > kSafetensorsHeaderBytesMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "safetensors: %d tensors need a header of %d bytes, the limit is %d; use several files",
        tensors.size(), json.size(), kSafetensorsHeaderBytesMax));
  }
  const uint64_t size = json.size();
  std::string header(kSizeBytes, '\0');
  std::memcpy(header.data(), &size, kSizeBytes);
  return header + json;
}

absl::Status SaveSafetensors(const std::string& path, std::span<const SafetensorsEntry> tensors,
                             const SafetensorsMetadata& metadata) {
  ASSIGN_OR_RETURN(const std::string header, EncodeSafetensorsHeader(tensors, metadata));
  std::vector<std::span<const std::byte>> parts;
  parts.reserve(tensors.size() + 1);
  parts.push_back(std::as_bytes(std::span(header)));
  for (const SafetensorsEntry& tensor : tensors) {
    parts.push_back(tensor.bytes);
  }
  return WriteFile(path, parts);
}

}  // namespace devserver::client
