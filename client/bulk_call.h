// One streaming call of raw messages, driven by the calling thread: no thread hops between chunks.
// Not installed.
//
// Thread safety: for one thread.
#pragma once

#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "client/transport.h"

namespace devserver::client {

class BulkCall {
 public:
  // Starts `method` ("/devserver.v1.TensorService/Upload").
  BulkCall(std::shared_ptr<const Transport> transport, const std::string& method,
           const std::string& token, absl::Duration timeout);
  // Cancels what has not finished.
  ~BulkCall();
  BulkCall(const BulkCall&) = delete;
  BulkCall& operator=(const BulkCall&) = delete;

  // Each waits until it is done. False: the call has ended, Finish() says how.
  bool Write(const grpc::ByteBuffer& message);
  bool WritesDone();
  bool Read(grpc::ByteBuffer* message);
  // The same in two halves, so that writes end when the server has answered before it has had
  // everything.
  void StartRead(grpc::ByteBuffer* message);
  bool FinishRead();
  // Once, last.
  grpc::Status Finish();

 private:
  // One kind of operation on the queue; at most one of each is under way.
  struct Operation {
    bool pending = false;
    bool ok = false;
  };
  // Waits for the end of `operation`.
  bool Wait(Operation* operation);
  void StartFinish();

  const std::shared_ptr<const Transport> transport_;
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  Operation write_;  // also start and half-close
  Operation read_;
  Operation finish_;
  bool finish_started_ = false;
  grpc::Status status_;
};

}  // namespace devserver::client
