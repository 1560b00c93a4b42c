#include "client/transfer.h"

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/bulk_call.h"
#include "client/deadline.h"
#include "client/wire.h"
#include "server/base/mutex.h"
#include "server/base/status_macros.h"

namespace devserver::client {
namespace {

constexpr char kUploadMethod[] = "/devserver.v1.TensorService/Upload";
constexpr char kDownloadMethod[] = "/devserver.v1.TensorService/Download";
// UploadRequest.chunk = 2 and DownloadReply.chunk = 2, both bytes.
constexpr uint8_t kChunkTag = 2 << 3 | 2;
constexpr int kAttemptsMax = 3;  // without progress, when the connection breaks
constexpr double kSlowestBytesPerSecond =
    1e7;  // A transfer below it may run into the default timeout.
constexpr auto kReturnPatience = std::chrono::milliseconds(200);

// Counts how much of the caller's memory gRPC still looks at.
class Loan {
 public:
  grpc::Slice Lend(const std::byte* data, size_t size) {
    {
      MutexLock lock(&mu_);
      ++slices_out_;
    }
    return grpc::Slice(const_cast<std::byte*>(data), size, &Loan::Return, this);
  }
  // False if something is still out after `patience`.
  bool WaitReturned(std::chrono::milliseconds patience) {
    const TimePoint deadline = Clock::Real()->Now() + patience;
    MutexLock lock(&mu_);
    while (slices_out_ > 0) {
      if (!returned_.WaitUntil(&mu_, deadline) && Clock::Real()->Now() >= deadline) {
        return slices_out_ == 0;
      }
    }
    return true;
  }

 private:
  static void Return(void* loan) {
    auto* self = static_cast<Loan*>(loan);
    MutexLock lock(&self->mu_);
    --self->slices_out_;
    self->returned_.NotifyAll();  // Under the lock: behind it `self` may be gone.
  }

  // Guarded by mu_.
  Mutex mu_;
  CondVar returned_;
  int64_t slices_out_ ABSL_GUARDED_BY(mu_) = 0;
};

grpc::ByteBuffer Encode(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

absl::Duration TransferTimeout(const Connection& connection, size_t size_bytes,
                               absl::Duration timeout) {
  if (timeout >= absl::ZeroDuration()) {
    return timeout;
  }
  return connection.options().timeout +
         absl::Seconds(static_cast<double>(size_bytes) / kSlowestBytesPerSecond);
}

void Tell(const Progress& progress, uint64_t done, uint64_t total) {
  if (progress != nullptr) {
    progress(done, total);
  }
}

bool SendChunks(BulkCall* call, Loan* loan, std::span<const std::byte> bytes, size_t chunk_bytes,
                const Progress& progress) {
  using google::protobuf::io::CodedOutputStream;
  for (size_t offset = 0; offset < bytes.size(); offset += chunk_bytes) {
    const size_t size = std::min(chunk_bytes, bytes.size() - offset);
    std::array<uint8_t, 8> head;
    head[0] = kChunkTag;
    const uint8_t* const end =
        CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(size), &head[1]);
    const grpc::Slice slices[] = {grpc::Slice(head.data(), static_cast<size_t>(end - head.data())),
                                  loan->Lend(bytes.data() + offset, size)};
    if (!call->Write(grpc::ByteBuffer(slices, 2))) {
      return false;
    }
    Tell(progress, offset + size, bytes.size());
  }
  return true;
}

absl::Status UploadOnce(Connection* connection, const v1::UploadHeader& header,
                        std::span<const std::byte> bytes, absl::Duration timeout,
                        const Progress& progress, v1::TensorReply* reply) {
  Loan loan;
  grpc::Status status;
  bool parsed = false;
  grpc::ByteBuffer answer;  // Outlives the call, which may write to it until it ends.
  {
    BulkCall call(connection->bulk_transport(), kUploadMethod, connection->token(), timeout);
    v1::UploadRequest first;
    *first.mutable_header() = header;
    Tell(progress, 0, bytes.size());
    call.StartRead(&answer);
    if (call.Write(Encode(first)) &&
        SendChunks(&call, &loan, bytes, connection->chunk_bytes(), progress)) {
      call.WritesDone();
    }
    if (call.FinishRead()) {
      parsed = grpc::SerializationTraits<v1::TensorReply>::Deserialize(&answer, reply).ok();
    }
    status = call.Finish();
  }
  if (!loan.WaitReturned(kReturnPatience)) {
    // A connection that is stuck: only its end makes gRPC let go.
    connection->DropBulkTransport();
    while (!loan.WaitReturned(kReturnPatience)) {
    }
  }
  RETURN_IF_ERROR(StatusFrom(status, absl::StrFormat("server %s", connection->address())));
  if (!parsed || reply->tensor().id() == 0) {
    return absl::InternalError(absl::StrFormat(
        "server %s finished an upload without naming the tensor", connection->address()));
  }
  return absl::OkStatus();
}

// Reads a message's bytes across its slices, which may be cut anywhere.
class MessageReader {
 public:
  explicit MessageReader(const grpc::ByteBuffer& message) : size_(message.Length()) {
    message.Dump(&slices_).ok();  // An empty message has no slices.
  }
  size_t remaining() const { return size_; }
  bool ReadByte(uint8_t* byte) { return Read(reinterpret_cast<std::byte*>(byte), 1); }
  bool ReadVarint(uint64_t* value) {
    *value = 0;
    uint8_t byte = 0x80;
    for (int shift = 0; shift < 64 && (byte & 0x80) != 0; shift += 7) {
      if (!ReadByte(&byte)) {
        return false;
      }
      *value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    }
    return (byte & 0x80) == 0;
  }
  bool Read(std::byte* target, size_t size) {
    if (size > size_) {
      return false;
    }
    size_ -= size;
    while (size > 0) {
      const grpc::Slice& slice = slices_[index_];
      const size_t part = std::min(size, slice.size() - offset_);
      std::memcpy(target, slice.begin() + offset_, part);
      target += part;
      size -= part;
      offset_ += part;
      if (offset_ == slice.size()) {
        ++index_;
        offset_ = 0;
      }
    }
    return true;
  }

 private:
  std::vector<grpc::Slice> slices_;
  size_t size_;
  size_t index_ = 0;
  size_t offset_ = 0;
};

// Copies a chunk to the front of `target`; returns its size. Other parts, the header and the
// receipt, have size 0.
absl::StatusOr<size_t> TakeDownloadReply(grpc::ByteBuffer* message, std::span<std::byte> target) {
  MessageReader reader(*message);
  uint8_t tag = 0;
  uint64_t size = 0;
  if (reader.ReadByte(&tag) && tag != kChunkTag) {
    v1::DownloadReply other;
    if (!grpc::SerializationTraits<v1::DownloadReply>::Deserialize(message, &other).ok() ||
        other.has_chunk()) {
      return absl::InternalError("the server sent a download message that makes no sense");
    }
    return 0;
  }
  if (tag != kChunkTag || !reader.ReadVarint(&size) || size != reader.remaining()) {
    return absl::InternalError("the server sent a download chunk that makes no sense");
  }
  if (size > target.size()) {
    return absl::InternalError(absl::StrFormat(
        "the server sent a chunk of %d bytes where %d were left", size, target.size()));
  }
  reader.Read(target.data(), size);
  return size;
}

// From `*offset` on, which goes on as bytes arrive.
absl::Status DownloadOnce(Connection* connection, uint64_t id, std::span<std::byte> target,
                          size_t* offset, absl::Duration timeout, const Progress& progress) {
  BulkCall call(connection->bulk_transport(), kDownloadMethod, connection->token(), timeout);
  v1::DownloadRequest request;
  request.set_id(id);
  request.set_offset_bytes(*offset);
  if (call.Write(Encode(request)) && call.WritesDone()) {
    grpc::ByteBuffer message;
    while (call.Read(&message)) {
      ASSIGN_OR_RETURN(const size_t size, TakeDownloadReply(&message, target.subspan(*offset)));
      *offset += size;
      if (size > 0) {
        Tell(progress, *offset, target.size());
      }
    }
  }
  RETURN_IF_ERROR(StatusFrom(call.Finish(), absl::StrFormat("server %s", connection->address())));
  if (*offset != target.size()) {
    return absl::InternalError(absl::StrFormat("server %s sent %d bytes of tensor %d, which has %d",
                                               connection->address(), *offset, id, target.size()));
  }
  return absl::OkStatus();
}

absl::Duration Remaining(TimePoint deadline) {
  return absl::Seconds(std::max(0.0, SecondsBetween(Clock::Real()->Now(), deadline)));
}

}  // namespace

absl::StatusOr<uint64_t> Upload(Connection* connection, uint64_t id, const TensorSpec& spec,
                                std::span<const std::byte> bytes, const DeviceInfo& device,
                                const TransferOptions& options) {
  v1::UploadHeader header;
  header.mutable_shape()->Add(spec.shape.dims().begin(), spec.shape.dims().end());
  header.set_dtype(WireDType(spec.dtype));
  header.set_device(device.name);
  header.set_id(id);
  header.set_label(options.label);
  const TimePoint deadline =
      DeadlineAfter(TransferTimeout(*connection, bytes.size(), options.timeout));
  v1::TensorReply reply;
  absl::Status status;
  for (int attempt = 1; attempt <= kAttemptsMax; ++attempt) {
    status = UploadOnce(connection, header, bytes, Remaining(deadline), options.progress, &reply);
    // Without an id of our own a second upload would be a second tensor.
    if (status.code() != absl::StatusCode::kUnavailable || id == 0) {
      break;
    }
    connection->DropBulkTransport();
    RETURN_IF_ERROR(connection->Sync(Remaining(deadline)));  // Until the session is back.
  }
  RETURN_IF_ERROR(status);
  return reply.tensor().id();
}

absl::Status Download(Connection* connection, uint64_t id, std::span<std::byte> target,
                      const TransferOptions& options) {
  const TimePoint deadline =
      DeadlineAfter(TransferTimeout(*connection, target.size(), options.timeout));
  Tell(options.progress, 0, target.size());
  size_t offset = 0;
  absl::Status status;
  for (int attempt = 1; attempt <= kAttemptsMax; ++attempt) {
    const size_t offset_before = offset;
    status = DownloadOnce(connection, id, target, &offset, Remaining(deadline), options.progress);
    if (status.code() != absl::StatusCode::kUnavailable) {
      break;
    }
    if (offset > offset_before) {
      attempt = 0;
    }
    connection->DropBulkTransport();
    RETURN_IF_ERROR(connection->Sync(Remaining(deadline)));  // Until the session is back.
  }
  return status;
}

}  // namespace devserver::client
