// Upload and Download: bulk bytes as raw ByteBuffers, one copy from the message into the tensor's
// memory on the way in, none on the way out (slices over the tensor's memory, which they keep
// alive).
//
// A stream that moves nothing for limits.stall_seconds is ended. An upload that ends early, late or
// wrong leaves nothing.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "server/rpc/backend.h"
#include "server/rpc/stall_watch.h"

namespace devserver {

// Both delete themselves when the call is over.
grpc::ServerReadReactor<grpc::ByteBuffer>* NewUploadStream(const BackendSlot& slot,
                                                           StallWatch* stalls,
                                                           grpc::CallbackServerContext* context,
                                                           grpc::ByteBuffer* reply);
grpc::ServerWriteReactor<grpc::ByteBuffer>* NewDownloadStream(const BackendSlot& slot,
                                                              StallWatch* stalls,
                                                              grpc::CallbackServerContext* context,
                                                              const grpc::ByteBuffer& request);

}  // namespace devserver
