// Any bytes as a message of Upload, for the parser that copies no chunk. What protobuf's parser of
// the message accepts, ours does; what ours accepts has the header and the chunk that protobuf's
// parser of fields finds, in however many pieces the message came. (Between the two are spellings
// such as a tag of ten bytes.)
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/unknown_field_set.h>

#include <cstdint>
#include <optional>
#include <string>

#include "server/rpc/wire.h"
#include "tests/fuzz/require.h"

namespace devserver {
namespace {

struct Parsed {
  std::optional<v1::UploadHeader> header;
  std::string chunk;
};

std::optional<Parsed> ParseOurs(const uint8_t* data, size_t size, int block_size) {
  google::protobuf::io::ArrayInputStream stream(data, static_cast<int>(size), block_size);
  v1::UploadHeader header;
  bool has_header = false;
  Parsed parsed;
  const absl::Status status =
      ParseUploadMessage(&stream, &header, &has_header, [&](std::span<const std::byte> piece) {
        parsed.chunk.append(reinterpret_cast<const char*>(piece.data()), piece.size());
        return absl::OkStatus();
      });
  if (!status.ok()) {
    Require(status.code() == absl::StatusCode::kInvalidArgument);
    return std::nullopt;
  }
  if (has_header) {
    parsed.header = header;
  }
  return parsed;
}

// By protobuf's own parsers: the fields of the message, then the headers among them merged.
std::optional<Parsed> ParseTheirs(const uint8_t* data, size_t size) {
  google::protobuf::UnknownFieldSet fields;
  if (!fields.ParseFromArray(data, static_cast<int>(size))) {
    return std::nullopt;
  }
  Parsed parsed;
  for (int i = 0; i < fields.field_count(); ++i) {
    const google::protobuf::UnknownField& field = fields.field(i);
    if (field.type() != google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED) {
      continue;
    }
    if (field.number() == v1::UploadRequest::kHeaderFieldNumber) {
      if (!parsed.header.has_value()) {
        parsed.header.emplace();
      }
      if (!parsed.header->MergeFromString(field.length_delimited())) {
        return std::nullopt;
      }
    } else if (field.number() == v1::UploadRequest::kChunkFieldNumber) {
      parsed.chunk += field.length_delimited();
    }
  }
  return parsed;
}

void RequireSame(const Parsed& a, const std::optional<Parsed>& b) {
  Require(b.has_value());
  Require(a.chunk == b->chunk);
  Require(a.header.has_value() == b->header.has_value());
  if (a.header.has_value()) {
    Require(a.header->SerializeAsString() == b->header->SerializeAsString());
  }
}

void Check(const uint8_t* data, size_t size) {
  const std::optional<Parsed> whole = ParseOurs(data, size, -1);
  if (!whole.has_value()) {
    Require(!v1::UploadRequest().ParseFromArray(data, static_cast<int>(size)));
    Require(!ParseOurs(data, size, 1).has_value());
    return;
  }
  RequireSame(*whole, ParseTheirs(data, size));
  RequireSame(*whole, ParseOurs(data, size, 1));
  RequireSame(*whole, ParseOurs(data, size, 7));
}

}  // namespace
}  // namespace devserver

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  devserver::Check(data, size);
  return 0;
}
