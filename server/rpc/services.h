// The gRPC services: decode, call the core, encode; nothing else. Callback API: no call blocks a
// thread of gRPC's. `slot` must outlive the services, the services the server.
#pragma once

#include <grpcpp/impl/codegen/service_type.h>

#include <memory>

#include "server/rpc/backend.h"
#include "server/rpc/stall_watch.h"

namespace devserver {

std::unique_ptr<grpc::Service> NewDeviceService(const BackendSlot* slot);
std::unique_ptr<grpc::Service> NewSessionService(const BackendSlot* slot);
std::unique_ptr<grpc::Service> NewTensorService(const BackendSlot* slot, StallWatch* stalls);
std::unique_ptr<grpc::Service> NewComputeService(const BackendSlot* slot);

}  // namespace devserver
