// Messages of the streams that take bytes as they came (ByteBuffer) and decode them themselves: so
// that a message which is none, or is too large, is answered in words. gRPC's own decoding only
// says that the stream has ended.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <string_view>

#include "absl/status/status.h"
#include "server/session/limits.h"

namespace devserver {

grpc::ByteBuffer Serialize(const google::protobuf::Message& message);

// RESOURCE_EXHAUSTED (kLimit) if `bytes` is larger than limits.message_bytes; `cure` ends the text.
absl::Status CheckMessageBytes(const grpc::ByteBuffer& bytes, const Limits& limits,
                               std::string_view method, std::string_view cure);

// INVALID_ARGUMENT if `bytes` is not a message of this type. Empties `bytes`.
absl::Status ParseMessage(grpc::ByteBuffer* bytes, std::string_view method,
                          google::protobuf::Message* message);

}  // namespace devserver
