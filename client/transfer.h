// Bulk bytes: TensorService.Upload and Download as raw buffers, from and into the caller's memory.
// Not installed.
//
// One copy at most: an upload's chunks are sent from the caller's memory, which is not used any
// more when the call returns, whatever happened; a download's are copied once, from gRPC's buffers
// to their place. Thread safety: any thread. Both wait; progress is told on the calling thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/connection.h"
#include "devserver/tensor.h"

namespace devserver::client {

// Makes tensor `id` (0: the server picks) of `spec` on `device`; its id. After a broken connection
// it starts over, twice.
absl::StatusOr<uint64_t> Upload(Connection* connection, uint64_t id, const TensorSpec& spec,
                                std::span<const std::byte> bytes, const DeviceInfo& device,
                                const TransferOptions& options);

// The packed elements of a finished tensor, which has target.size() bytes. After a broken
// connection it goes on where it was, as long as bytes come.
absl::Status Download(Connection* connection, uint64_t id, std::span<std::byte> target,
                      const TransferOptions& options);

}  // namespace devserver::client
