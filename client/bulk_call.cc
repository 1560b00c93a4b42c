#include "client/bulk_call.h"

#include <utility>

namespace devserver::client {

BulkCall::BulkCall(std::shared_ptr<const Transport> transport, const std::string& method,
                   const std::string& token, absl::Duration timeout)
    : transport_(std::move(transport)) {
  PrepareCall(&context_, token, timeout);
  grpc::GenericStub stub(transport_->channel);
  stream_ = stub.PrepareCall(&context_, method, &queue_);
  stream_->StartCall(this);
  Wait();  // If it could not start, the first Write or Read says so.
}

BulkCall::~BulkCall() {
  if (!finished_) {
    context_.TryCancel();
    Finish();
  }
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
  }
}

// One operation is under way at a time. The call has a deadline, so this ends.
bool BulkCall::Wait() {
  void* tag = nullptr;
  bool ok = false;
  return queue_.Next(&tag, &ok) && ok;
}

bool BulkCall::Write(const grpc::ByteBuffer& message) {
  stream_->Write(message, this);
  return Wait();
}

bool BulkCall::WritesDone() {
  stream_->WritesDone(this);
  return Wait();
}

bool BulkCall::Read(grpc::ByteBuffer* message) {
  stream_->Read(message, this);
  return Wait();
}

grpc::Status BulkCall::Finish() {
  grpc::Status status;
  stream_->Finish(&status, this);
  Wait();
  finished_ = true;
  return status;
}

}  // namespace devserver::client
