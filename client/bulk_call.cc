#include "client/bulk_call.h"

#include <utility>

namespace devserver::client {

BulkCall::BulkCall(std::shared_ptr<const Transport> transport, const std::string& method,
                   const std::string& token, absl::Duration timeout)
    : transport_(std::move(transport)) {
  PrepareCall(&context_, token, timeout);
  grpc::GenericStub stub(transport_->channel);
  stream_ = stub.PrepareCall(&context_, method, &queue_);
  write_.pending = true;
  stream_->StartCall(&write_);
  Wait(&write_);  // If it could not start, the first Write or Read says so.
}

BulkCall::~BulkCall() {
  if (!finish_started_) {
    context_.TryCancel();
    Finish();
  }
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
  }
}

// The call has a deadline, so this ends.
bool BulkCall::Wait(Operation* operation) {
  void* tag = nullptr;
  bool ok = false;
  while (operation->pending && queue_.Next(&tag, &ok)) {
    auto* const ended = static_cast<Operation*>(tag);
    ended->pending = false;
    ended->ok = ok;
    if (ended == &read_ && operation == &write_) {
      // The server has answered before it has had everything: it takes no more. How it ended comes
      // before the cancel, or that would be how.
      StartFinish();
      if (Wait(&finish_); write_.pending) {
        context_.TryCancel();
      }
    }
  }
  return operation->ok;
}

bool BulkCall::Write(const grpc::ByteBuffer& message) {
  if (finish_started_) {
    return false;
  }
  write_ = {.pending = true, .ok = false};
  stream_->Write(message, &write_);
  return Wait(&write_) && !finish_started_;
}

bool BulkCall::WritesDone() {
  if (finish_started_) {
    return false;
  }
  write_ = {.pending = true, .ok = false};
  stream_->WritesDone(&write_);
  return Wait(&write_);
}

void BulkCall::StartRead(grpc::ByteBuffer* message) {
  read_ = {.pending = true, .ok = false};
  stream_->Read(message, &read_);
}

bool BulkCall::FinishRead() { return Wait(&read_); }

bool BulkCall::Read(grpc::ByteBuffer* message) {
  StartRead(message);
  return FinishRead();
}

void BulkCall::StartFinish() {
  if (!finish_started_) {
    finish_started_ = true;
    finish_.pending = true;
    stream_->Finish(&status_, &finish_);
  }
}

grpc::Status BulkCall::Finish() {
  if (read_.pending) {
    context_.TryCancel();
    FinishRead();
  }
  StartFinish();
  Wait(&finish_);
  return status_;
}

}  // namespace devserver::client
