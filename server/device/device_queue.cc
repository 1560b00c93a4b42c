#include "server/device/device_queue.h"

#include <pthread.h>

#include <utility>

namespace devserver {
namespace {

// How many tasks an asynchronous device is given before it is synchronised: enough to hide the cost
// of a synchronisation (about 10 us), few enough that a reply does not wait for long.
constexpr size_t kIssuedMax = 64;

class DrainMarker final : public DeviceTask {
 public:
  bool Issue(Device& /*device*/) override { return true; }
  void Finish(const absl::Status& /*synchronized*/) override {
    MutexLock lock(&mu_);
    reached_ = true;
    changed_.NotifyAll();
  }
  void Wait() {
    MutexLock lock(&mu_);
    while (!reached_) {
      changed_.Wait(&mu_);
    }
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool reached_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

DeviceQueue::DeviceQueue(std::unique_ptr<Device> device)
    : device_(std::move(device)), thread_([this] { Loop(); }) {
  pthread_setname_np(thread_.native_handle(), device_->properties().name.substr(0, 15).c_str());
}

DeviceQueue::~DeviceQueue() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  wake_.NotifyOne();
  thread_.join();
}

void DeviceQueue::Push(std::shared_ptr<DeviceTask> task) {
  queued_.fetch_add(1, std::memory_order_relaxed);
  bool wake = false;
  {
    MutexLock lock(&mu_);
    tasks_.push_back(std::move(task));
    wake = std::exchange(sleeping_, false);
  }
  if (wake) {
    wake_.NotifyOne();
  }
}

void DeviceQueue::Drain() {
  const auto marker = std::make_shared<DrainMarker>();
  Push(marker);
  marker->Wait();
}

void DeviceQueue::Loop() {
  std::vector<std::shared_ptr<DeviceTask>> batch;
  while (true) {
    {
      MutexLock lock(&mu_);
      while (tasks_.empty() && !stopping_) {
        sleeping_ = true;
        wake_.Wait(&mu_);
      }
      sleeping_ = false;
      if (tasks_.empty()) {
        return;
      }
      std::swap(batch, tasks_);
    }
    RunBatch(batch);
    batch.clear();
  }
}

void DeviceQueue::RunBatch(std::vector<std::shared_ptr<DeviceTask>>& batch) {
  // Every reference is dropped as soon as it can be: a chain of a thousand temporaries then needs
  // two buffers.
  const bool computes_at_once = device_->host_readable();
  for (std::shared_ptr<DeviceTask>& task : batch) {
    if (task->Issue(*device_)) {
      issued_.push_back(std::move(task));
    }
    task.reset();
    ++taken_;
    if (computes_at_once || issued_.size() >= kIssuedMax) {
      FinishIssued();
    }
  }
  FinishIssued();
}

void DeviceQueue::FinishIssued() {
  if (!issued_.empty()) {
    const absl::Status synchronized = device_->Synchronize();
    for (const std::shared_ptr<DeviceTask>& task : issued_) {
      task->Finish(synchronized);
    }
    issued_.clear();
  }
  // After Finish, which may have queued work elsewhere: the sum over all queues is 0 only when
  // nothing is left anywhere.
  queued_.fetch_sub(std::exchange(taken_, 0), std::memory_order_release);
}

}  // namespace devserver
