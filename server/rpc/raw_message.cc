#include "server/rpc/raw_message.h"

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include "absl/strings/str_format.h"
#include "server/base/error_details.h"

namespace devserver {

grpc::ByteBuffer Serialize(const google::protobuf::Message& message) {
  grpc::ByteBuffer buffer;
  bool own_buffer = false;
  const grpc::Status status =
      grpc::GenericSerialize<grpc::ProtoBufferWriter, google::protobuf::Message>(message, &buffer,
                                                                                 &own_buffer);
  return status.ok() ? buffer : grpc::ByteBuffer();
}

absl::Status CheckMessageBytes(const grpc::ByteBuffer& bytes, const Limits& limits,
                               std::string_view method, std::string_view cure) {
  if (bytes.Length() <= limits.message_bytes) {
    return absl::OkStatus();
  }
  ErrorDetails details;
  details.reason = ErrorReason::kLimit;
  details.asked = bytes.Length();
  details.limit = limits.message_bytes;
  return WithDetails(absl::ResourceExhaustedError(absl::StrFormat(
                         "%s: a message of %d bytes, the limit is %d (limits.message_bytes); %s",
                         method, details.asked, details.limit, cure)),
                     details);
}

absl::Status ParseMessage(grpc::ByteBuffer* bytes, std::string_view method,
                          google::protobuf::Message* message) {
  bool parsed = false;
  {
    grpc::ProtoBufferReader reader(bytes);
    parsed = reader.status().ok() && message->ParseFromZeroCopyStream(&reader);
  }
  bytes->Clear();
  return parsed ? absl::OkStatus()
                : absl::InvalidArgumentError(absl::StrFormat(
                      "%s: a message is not a %s", method, message->GetDescriptor()->full_name()));
}

}  // namespace devserver
