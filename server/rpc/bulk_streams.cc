#include "server/rpc/bulk_streams.h"

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "devserver/v1/tensor.pb.h"
#include "server/base/error_details.h"
#include "server/base/status_macros.h"
#include "server/rpc/raw_message.h"
#include "server/rpc/unary.h"
#include "server/rpc/wire.h"
#include "server/tensor/numbers.h"

namespace devserver {
namespace {

class Upload final : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  Upload(const BackendSlot& slot, StallWatch* stalls, grpc::CallbackServerContext* context,
         grpc::ByteBuffer* reply)
      : slot_(slot),
        context_(context),
        reply_(reply),
        watched_(stalls, context),
        session_(slot.FindSession(*context)) {
    if (!session_.ok()) {
      Finish(ToGrpc(session_.status()));
      return;
    }
    StartRead(&message_);
  }

  void OnReadDone(bool ok) override {
    if (finished_) {
      return;
    }
    watched_.Moved();
    (*session_)->Renew();
    const absl::Status status = ok ? TakeMessage() : Complete();
    if (!status.ok() || !ok) {
      tensor_.reset();  // The memory goes back before the caller hears of it.
      finished_ = true;
      Finish(ToGrpc(status));
      return;
    }
    StartRead(&message_);
  }

  void OnDone() override { delete this; }

 private:
  absl::Status TakeMessage() {
    const Limits& limits = slot_.limits();
    RETURN_IF_ERROR(CheckMessageBytes(
        message_, limits, "Upload",
        absl::StrFormat("send chunks of at most %d (limits.chunk_bytes); nothing was kept",
                        limits.chunk_bytes)));
    grpc::ProtoBufferReader reader(&message_);
    v1::UploadHeader header;
    bool has_header = false;
    RETURN_IF_ERROR(
        ParseUploadMessage(&reader, &header, &has_header, [&](std::span<const std::byte> piece) {
          if (has_header && tensor_ == nullptr) {
            RETURN_IF_ERROR(Begin(header));
            has_header = false;
          }
          return TakePiece(piece);
        }));
    message_.Clear();
    return has_header ? Begin(header) : absl::OkStatus();
  }

  absl::Status Begin(const v1::UploadHeader& header) {
    if (tensor_ != nullptr) {
      return absl::InvalidArgumentError("Upload: a second header; one call uploads one tensor");
    }
    RETURN_IF_ERROR(CheckLabel(header.label(), slot_.limits()));
    ASSIGN_OR_RETURN(const TensorSpec spec,
                     SpecFromWire({header.shape().data(), static_cast<size_t>(header.shape_size())},
                                  header.dtype()));
    ASSIGN_OR_RETURN(tensor_,
                     (*session_)->BeginUpload(spec, header.device(), header.id(), header.label()));
    is_replay_ = tensor_->done();
    return absl::OkStatus();
  }

  absl::Status TakePiece(std::span<const std::byte> piece) {
    if (tensor_ == nullptr) {
      return absl::InvalidArgumentError("Upload: a chunk before the header; send the header first");
    }
    if (piece.size() > tensor_->size_bytes() - received_bytes_) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "Upload: more bytes than %s takes: it is %d bytes, %d came; nothing was kept",
          tensor_->spec().ToString(), tensor_->size_bytes(), received_bytes_ + piece.size()));
    }
    if (tensor_->spec().dtype == DType::kBool) {
      RETURN_IF_ERROR(CheckBools(piece, received_bytes_));
    }
    Device& device = tensor_->queue()->device();
    if (is_replay_) {
      RETURN_IF_ERROR(Compare(device, piece));
    } else {
      // The tensor is not in the table yet: nobody else looks at its memory.
      RETURN_IF_ERROR(device.CopyFromHost(piece, tensor_->upload_data() + received_bytes_));
    }
    received_bytes_ += piece.size();
    return absl::OkStatus();
  }

  // The same id with the same bytes is a replay, with other bytes another command.
  absl::Status Compare(Device& device, std::span<const std::byte> piece) {
    bool same = false;
    if (device.host_readable()) {
      same = std::memcmp(piece.data(), tensor_->data() + received_bytes_, piece.size()) == 0;
    } else {
      std::vector<std::byte> recorded(piece.size());
      RETURN_IF_ERROR(device.CopyToHost(tensor_->data() + received_bytes_, recorded));
      same = std::ranges::equal(piece, recorded);
    }
    if (!same) {
      return MakeError(
          absl::StatusCode::kAlreadyExists, ErrorReason::kDuplicateId,
          absl::StrFormat("tensor %d exists with other bytes; choose another id, or 0 to let the "
                          "server pick",
                          tensor_->id()));
    }
    return absl::OkStatus();
  }

  absl::Status Complete() {
    if (context_->IsCancelled()) {
      return absl::CancelledError("Upload: the client is gone; nothing was kept");
    }
    if (tensor_ == nullptr) {
      return absl::InvalidArgumentError("Upload: no header; send the header, then the bytes");
    }
    if (received_bytes_ != tensor_->size_bytes()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "Upload: the bytes ended early: %s is %d bytes, %d came; nothing was kept",
          tensor_->spec().ToString(), tensor_->size_bytes(), received_bytes_));
    }
    if (!is_replay_) {
      RETURN_IF_ERROR((*session_)->CommitUpload(tensor_));
    }
    v1::TensorReply reply;
    TensorToWire(*tensor_, reply.mutable_tensor());
    const Quote quote = (*session_)->surroundings().devices->fabric().QuoteCopy(
        "cpu:0", tensor_->device_name(), tensor_->size_bytes());
    reply.set_measured_seconds(SecondsBetween(start_, Clock::Real()->Now()));
    reply.set_simulated_seconds(quote.simulated ? quote.estimated.seconds : 0);
    ReceiptToWire(quote, reply.measured_seconds(), reply.simulated_seconds(),
                  reply.mutable_receipt());
    *reply_ = Serialize(reply);
    return absl::OkStatus();
  }

  const BackendSlot& slot_;
  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const reply_;
  StallWatch::Entry watched_;
  const absl::StatusOr<SessionRef> session_;
  const TimePoint start_ = Clock::Real()->Now();

  // Touched only by reactions, which come one at a time.
  grpc::ByteBuffer message_;
  TensorRef tensor_;
  bool is_replay_ = false;
  bool finished_ = false;
  uint64_t received_bytes_ = 0;
};

class Download final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  Download(const BackendSlot& slot, StallWatch* stalls, grpc::CallbackServerContext* context,
           const grpc::ByteBuffer& request)
      : slot_(slot), watched_(stalls, context) {
    const absl::Status status = Begin(*context, request);
    if (!status.ok()) {
      Finish(ToGrpc(status));
    }
  }

  void OnWriteDone(bool ok) override {
    watched_.Moved();
    if (!ok) {
      Finish(ToGrpc(absl::CancelledError("Download: the client is gone")));
      return;
    }
    session_->Renew();
    WriteNext();
  }

  void OnDone() override { delete this; }

 private:
  absl::Status Begin(const grpc::CallbackServerContext& context, const grpc::ByteBuffer& request) {
    ASSIGN_OR_RETURN(session_, slot_.FindSession(context));
    grpc::ByteBuffer buffer(request);
    v1::DownloadRequest parsed;
    RETURN_IF_ERROR(ParseMessage(&buffer, "Download", &parsed));
    ASSIGN_OR_RETURN(tensor_, session_->Find(parsed.id()));
    const uint64_t whole = tensor_->size_bytes();
    if (parsed.offset_bytes() > whole || parsed.size_bytes() > whole - parsed.offset_bytes()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "Download: bytes %d to %d of tensor %d were asked for, which is %d bytes",
          parsed.offset_bytes(), parsed.offset_bytes() + parsed.size_bytes(), parsed.id(), whole));
    }
    position_ = parsed.offset_bytes();
    end_ = parsed.size_bytes() == 0 ? whole : position_ + parsed.size_bytes();
    size_bytes_ = end_ - position_;
    tensor_->WhenDone([this](Tensor& tensor) {
      if (!tensor.status().ok()) {
        Finish(ToGrpc(tensor.InputFailed("Download")));
        return;
      }
      start_ = Clock::Real()->Now();
      v1::DownloadReply header;
      TensorToWire(tensor, header.mutable_header());
      message_ = Serialize(header);
      StartWrite(&message_);
    });
    return absl::OkStatus();
  }

  void WriteNext() {
    if (position_ < end_) {
      const absl::Status status = MakeChunk(std::min(end_ - position_, slot_.limits().chunk_bytes));
      if (!status.ok()) {
        Finish(ToGrpc(status));
        return;
      }
      StartWrite(&message_);
    } else if (!receipt_sent_) {
      receipt_sent_ = true;
      message_ = Serialize(MakeReceipt());
      StartWrite(&message_);
    } else {
      Finish(grpc::Status::OK);
    }
  }

  // A DownloadReply with a chunk: its tag and length, then the tensor's own memory.
  absl::Status MakeChunk(uint64_t size_bytes) {
    uint8_t prefix[1 + 10];
    prefix[0] = v1::DownloadReply::kChunkFieldNumber << 3 | 2;  // 2: length-delimited
    const uint8_t* const prefix_end =
        google::protobuf::io::CodedOutputStream::WriteVarint64ToArray(size_bytes, prefix + 1);
    grpc::Slice slices[2] = {grpc::Slice(prefix, static_cast<size_t>(prefix_end - prefix)),
                             grpc::Slice()};
    Device& device = tensor_->queue()->device();
    if (device.host_readable()) {
      slices[1] = grpc::Slice(
          const_cast<std::byte*>(tensor_->data() + position_), size_bytes,
          [](void* owner) { delete static_cast<TensorRef*>(owner); }, new TensorRef(tensor_));
    } else {
      std::vector<std::byte> staging(size_bytes);
      RETURN_IF_ERROR(device.CopyToHost(tensor_->data() + position_, staging));
      slices[1] = grpc::Slice(staging.data(), staging.size());
    }
    message_ = grpc::ByteBuffer(slices, 2);
    position_ += size_bytes;
    return absl::OkStatus();
  }

  v1::DownloadReply MakeReceipt() {
    v1::DownloadReply reply;
    const Quote quote = session_->surroundings().devices->fabric().QuoteCopy(tensor_->device_name(),
                                                                             "cpu:0", size_bytes_);
    if (quote.simulated) {
      tensor_->queue()->device().AdvanceClock(quote.estimated.seconds);
    }
    ReceiptToWire(quote, SecondsBetween(start_, Clock::Real()->Now()),
                  quote.simulated ? quote.estimated.seconds : 0, reply.mutable_receipt());
    return reply;
  }

  const BackendSlot& slot_;
  StallWatch::Entry watched_;
  SessionRef session_;
  TensorRef tensor_;
  uint64_t end_ = 0;
  uint64_t size_bytes_ = 0;

  // Touched only by reactions, which come one at a time, and before the first by the tensor's
  // callback.
  TimePoint start_;
  grpc::ByteBuffer message_;
  uint64_t position_ = 0;
  bool receipt_sent_ = false;
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* NewUploadStream(const BackendSlot& slot,
                                                           StallWatch* stalls,
                                                           grpc::CallbackServerContext* context,
                                                           grpc::ByteBuffer* reply) {
  return new Upload(slot, stalls, context, reply);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* NewDownloadStream(const BackendSlot& slot,
                                                              StallWatch* stalls,
                                                              grpc::CallbackServerContext* context,
                                                              const grpc::ByteBuffer& request) {
  return new Download(slot, stalls, context, request);
}

}  // namespace devserver
