#include "server/session/device_set.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "server/base/error_details.h"
#include "server/base/status_macros.h"
#include "server/device/device_name.h"

namespace devserver {

DeviceSet::DeviceSet(std::vector<std::unique_ptr<Device>> devices, Fabric fabric,
                     std::string no_gpu_reason)
    : fabric_(std::move(fabric)), no_gpu_reason_(std::move(no_gpu_reason)) {
  for (std::unique_ptr<Device>& device : devices) {
    queues_.push_back(std::make_unique<DeviceQueue>(std::move(device)));
  }
}

DeviceSet::~DeviceSet() {
  // A task of one queue may hold the last reference to a tensor of another device, and may queue
  // work there when it finishes: all queues are empty before the first device goes.
  const auto busy = [](const std::unique_ptr<DeviceQueue>& queue) { return queue->queued() > 0; };
  while (std::ranges::any_of(queues_, busy)) {
    for (const std::unique_ptr<DeviceQueue>& queue : queues_) {
      queue->Drain();
    }
  }
}

std::string DeviceSet::Names() const {
  std::string names;
  for (const std::unique_ptr<DeviceQueue>& queue : queues_) {
    names += (names.empty() ? "" : ", ") + queue->name();
  }
  return names;
}

double DeviceSet::HostLinkSeconds(size_t device_index, uint64_t size_bytes) const {
  const Quote quote = fabric_.QuoteCopy("cpu:0", queues_[device_index]->name(), size_bytes);
  return quote.simulated ? quote.estimated.seconds : 0;
}

absl::StatusOr<size_t> DeviceSet::Find(std::string_view name) const {
  for (size_t i = 0; i < queues_.size(); ++i) {  // The usual case: the exact name.
    if (queues_[i]->name() == name) {
      return i;
    }
  }
  ASSIGN_OR_RETURN(const std::string canonical, CanonicalDeviceName(name));
  for (size_t i = 0; i < queues_.size(); ++i) {
    if (queues_[i]->name() == canonical) {
      return i;
    }
  }
  return MakeError(absl::StatusCode::kNotFound, ErrorReason::kNoSuchDevice,
                   absl::StrFormat("no device '%s' here; there are: %s", canonical, Names()));
}

}  // namespace devserver
