#include "client/stream_call.h"

#include <google/protobuf/io/coded_stream.h>

#include <array>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/wire.h"

namespace devserver::client {
namespace {

constexpr char kExecuteMethod[] = "/devserver.v1.ComputeService/Execute";
// ExecuteRequest.received_through = 2, a varint.
constexpr uint8_t kReceivedThroughTag = 2 << 3;

}  // namespace

CommandStream::Call::Call(CommandStream* stream, std::shared_ptr<const Transport> transport)
    : stream_(stream),
      transport_(std::move(transport)),
      context_(std::make_shared<grpc::ClientContext>()) {
  PrepareCall(context_.get(), stream_->options_.token, absl::InfiniteDuration());
  grpc::TemplatedGenericStub<grpc::ByteBuffer, v1::ExecuteReply> stub(transport_->channel);
  stub.PrepareBidiStreamingCall(context_.get(), kExecuteMethod, grpc::StubOptions(), this);
  AddHold();
}

void CommandStream::Call::Start() {
  StartRead(&reply_);
  StartCall();
}

void CommandStream::Call::SetMessage(const grpc::Slice& commands, uint64_t received_through,
                                     bool more_follows) {
  using google::protobuf::io::CodedOutputStream;
  std::array<uint8_t, 11> tail;
  tail[0] = kReceivedThroughTag;
  const uint8_t* const end = CodedOutputStream::WriteVarint64ToArray(received_through, &tail[1]);
  const grpc::Slice slices[] = {commands,
                                grpc::Slice(tail.data(), static_cast<size_t>(end - tail.data()))};
  message_ = grpc::ByteBuffer(slices, 2);
  write_options_ = grpc::WriteOptions();
  if (more_follows) {
    write_options_.set_buffer_hint();
  }
}

void CommandStream::Call::Write() { StartWrite(&message_, write_options_); }

void CommandStream::Call::OnReadDone(bool ok) {
  if (!ok) {
    bool release = false;
    {
      MutexLock lock(&stream_->mu_);
      stream_->call_reads_ended_ = true;
      release = !stream_->call_writing_;
    }
    if (release) {
      RemoveHold();
    }
    return;
  }
  absl::Status status;
  bool notify = false;
  Call* write = nullptr;
  {
    MutexLock lock(&stream_->mu_);
    stream_->breaks_without_reply_ = 0;
    status = stream_->TakeReply(&reply_);
    if (!status.ok()) {
      stream_->LoseLocked(status);
    }
    notify = stream_->waiting_ > 0;
    write = stream_->ClaimWrite();  // Deletes that have to be given again.
  }
  if (notify) {
    stream_->changed_.NotifyAll();
  }
  if (write != nullptr) {
    write->Write();
  }
  if (!status.ok()) {
    context_->TryCancel();
  }
  StartRead(&reply_);
}

void CommandStream::Call::OnWriteDone(bool ok) {
  bool release = false;
  Call* next_write = nullptr;
  {
    MutexLock lock(&stream_->mu_);
    stream_->call_writing_ = false;
    stream_->call_write_failed_ |= !ok;
    release = stream_->call_reads_ended_;
    if (!release) {
      next_write = stream_->ClaimWrite();
    }
  }
  if (release) {
    RemoveHold();
  } else if (next_write != nullptr) {
    next_write->Write();
  }
}

void CommandStream::Call::OnDone(const grpc::Status& status) {
  const absl::Status reason =
      status.ok() ? absl::UnavailableError(absl::StrFormat("server %s ended the command stream",
                                                           stream_->options_.address))
                  : StatusFrom(status, absl::StrFormat("server %s", stream_->options_.address));
  MutexLock lock(&stream_->mu_);
  stream_->break_pending_ = true;
  stream_->break_reason_ = reason;
  if (stream_->breaks_without_reply_ == 0) {
    stream_->broken_since_ = Clock::Real()->Now();
  }
  ++stream_->breaks_without_reply_;
  stream_->ended_call_ = std::move(stream_->call_);
  // Under the lock: behind it the stream, and this call with it, may be gone.
  stream_->broken_.NotifyAll();
}

}  // namespace devserver::client
