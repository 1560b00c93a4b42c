// One Execute call of a CommandStream: from Attach until the connection breaks. Not installed.
//
// gRPC calls the On.. functions on its threads, OnDone last. A hold keeps OnDone away while a
// thread of the program may still start a write.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/client_callback.h>

#include <memory>

#include "client/command_stream.h"
#include "client/transport.h"
#include "devserver/v1/compute.pb.h"

namespace devserver::client {

class CommandStream::Call final
    : public grpc::ClientBidiReactor<grpc::ByteBuffer, v1::ExecuteReply> {
 public:
  Call(CommandStream* stream, std::shared_ptr<const Transport> transport);

  void Start();
  // What Write will send. By the thread that claimed the write.
  void SetMessage(const grpc::Slice& commands, uint64_t received_through, bool more_follows);
  void Write();
  // To cancel without holding a lock; outlives the call.
  const std::shared_ptr<grpc::ClientContext>& context() const { return context_; }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  // Constant after construction.
  CommandStream* const stream_;
  const std::shared_ptr<const Transport> transport_;
  const std::shared_ptr<grpc::ClientContext> context_;
  // Touched only by the thread that claimed the write.
  grpc::ByteBuffer message_;
  grpc::WriteOptions write_options_;
  // Touched only by reads.
  v1::ExecuteReply reply_;
};

}  // namespace devserver::client
