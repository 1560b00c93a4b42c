// What the copies of one Tensor share. Not installed.
//
// Thread safety: as marked; `lock of the stream` is CommandStream's.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "devserver/types.h"
#include "server/tensor/shape.h"

namespace devserver::client {

class Connection;

struct TensorHandle {
  TensorHandle() = default;
  TensorHandle(const TensorHandle&) = delete;
  TensorHandle& operator=(const TensorHandle&) = delete;
  // Deletes the tensor on the server, if it is this client's to delete.
  ~TensorHandle();

  // Constant once the tensor's command is submitted.
  std::shared_ptr<Connection> connection;  // null: it failed before it had a device
  const DeviceInfo* device = nullptr;      // owned by the connection
  TensorSpec spec;
  uint64_t id = 0;  // 0: nothing was sent
  uint64_t command_number =
      0;  // of the command that makes it; 0: finished when the handle was made
  bool is_copy = false;
  bool delete_at_end = false;

  // Under the lock of the stream.
  absl::Status failure;
  std::optional<Receipt> receipt;
};

// The failure of command `name` whose input had failed: quotes the root cause.
absl::Status PassOn(std::string_view name, const TensorHandle& input);

// A fetch on its way. Written under the lock of the stream until `done`, which publishes the rest.
struct FetchTicket {
  std::atomic<bool> done = false;
  absl::Status status;
  std::string packed;
  uint64_t command_number = 0;
};

}  // namespace devserver::client
