// A connection's channel and its stubs, and how calls are made on it. Not installed.
//
// Thread safety: any thread; a Transport is constant once it is opened.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "devserver/v1/compute.grpc.pb.h"
#include "devserver/v1/device.grpc.pb.h"
#include "devserver/v1/session.grpc.pb.h"
#include "devserver/v1/tensor.grpc.pb.h"

namespace devserver::client {

struct Transport {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::DeviceService::Stub> devices;
  std::unique_ptr<v1::SessionService::Stub> sessions;
  std::unique_ptr<v1::TensorService::Stub> tensors;
  std::unique_ptr<v1::ComputeService::Stub> compute;
};

// What a channel is for: bulk streams want large frames and windows, commands their bytes at once.
enum class Traffic { kCommands, kBulk };

// A channel with a TCP connection of its own, which is made when it is first used.
std::shared_ptr<const Transport> OpenTransport(const std::string& address, Traffic traffic);

// Sets what every call carries: when it must have ended, and whose session it runs in ("": the
// default one).
void PrepareCall(grpc::ClientContext* context, const std::string& token, absl::Duration timeout);

}  // namespace devserver::client
