// Sessions on cpu:0 and gpu:0 with 256 KiB each, for fuzz targets that run what they decode. Made
// once per process. Thread safety: none; libFuzzer calls its target on one thread.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/device/discover.h"
#include "server/rpc/commands.h"
#include "server/rpc/wire.h"
#include "server/session/session_table.h"
#include "tests/fuzz/require.h"

namespace devserver {

// A status that travels: valid UTF-8, short enough for a trailer (8 KiB hold it twice, once in
// base64), and not our bug.
inline void RequireSendable(const absl::Status& status) {
  if (status.ok()) {
    return;
  }
  Require(status.code() != absl::StatusCode::kInternal);
  Require(status.code() != absl::StatusCode::kUnknown);
  Require(!status.message().empty());
  const grpc::Status sent = ToGrpc(status);
  Require(sent.error_details().size() + sent.error_message().size() < 6 * 1024);
  v1::StatusWithDetails details;
  v1::OpError error;
  Require(details.ParseFromString(sent.error_details()));
  Require(details.details_size() == 1 && details.details(0).UnpackTo(&error));
  Require(error.message() == sent.error_message());
}

class SmallServer {
 public:
  static SmallServer& Get() {
    static SmallServer* const server = new SmallServer;
    return *server;
  }

  SessionRef Open() {
    absl::StatusOr<SessionRef> session = table_->Open("fuzz", "127.0.0.1", 0);
    Require(session.ok());
    return *std::move(session);
  }
  void Close(const SessionRef& session) {
    table_->Close(session);
    Drain();
  }
  // Waits until nothing is queued.
  void Drain() {
    uint64_t queued = 0;
    do {
      queued = 0;
      for (size_t i = 0; i < devices_->size(); ++i) {
        devices_->queue(i).Drain();
      }
      for (size_t i = 0; i < devices_->size(); ++i) {
        queued += devices_->queue(i).queued();
      }
    } while (queued > 0);
  }
  void RequireBaseline() const {
    for (size_t i = 0; i < devices_->size(); ++i) {
      const DeviceMemory memory = devices_->queue(i).device().memory();
      Require(memory.used_bytes == 0);
      Require(memory.peak_bytes <= kMemoryBytes);
    }
  }
  const DeviceSet& devices() const { return *devices_; }
  const Limits& limits() const { return limits_; }

 private:
  static constexpr uint64_t kMemoryBytes = 256 << 10;

  SmallServer() {
    DeviceConfig config;
    config.cpu_threads = 1;
    config.cpu_memory_limit_bytes = kMemoryBytes;
    config.sim_count = 1;
    config.sim_memory_limit_bytes = kMemoryBytes;
    absl::StatusOr<std::vector<std::unique_ptr<Device>>> opened =
        OpenDevices(config, &host_memory_);
    Require(opened.ok());
    Fabric fabric = BuildFabric(*opened);
    devices_ = std::make_unique<DeviceSet>(*std::move(opened), std::move(fabric), "a fuzz target");
    limits_.session_tensors = 100;
    limits_.inline_bytes = 64 << 10;
    table_ = std::make_unique<SessionTable>(Surroundings{devices_.get(), &limits_, Clock::Real()});
  }

  HostMemory host_memory_{uint64_t{64} << 20};
  Limits limits_;
  std::unique_ptr<DeviceSet> devices_;
  std::unique_ptr<SessionTable> table_;
};

}  // namespace devserver
