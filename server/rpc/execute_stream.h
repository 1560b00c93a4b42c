// The pipelined road: batches of commands in, replies out, on one stream per session
// (session/execution.h keeps what outlives the stream).
//
// The stream reads a message, hands its commands to the session and reads on while the window
// lasts. Replies are gathered while a write is under way, so that a burst travels in few messages.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "server/rpc/backend.h"

namespace devserver {

// Deletes itself when the call is over.
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* NewExecuteStream(
    const BackendSlot& slot, grpc::CallbackServerContext* context);

}  // namespace devserver
