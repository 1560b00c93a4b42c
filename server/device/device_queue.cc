#include "server/device/device_queue.h"

#include <pthread.h>

#include <utility>

namespace devserver {
namespace {

// How many tasks an asynchronous device is given before it is synchronised: enough to hide the cost
// of a synchronisation (about 10 us), few enough that a reply does not wait for long.
constexpr size_t kIssuedMax = 64;

// Enough to make a wake-up (about 5 us) cheap for each command, few enough that a device does not
// idle for long.
constexpr int kPushesPerWake = 64;

thread_local DeviceQueue::WakeScope* current_scope = nullptr;

class DrainMarker final : public DeviceTask {
 public:
  bool Issue(Device& /*device*/) override { return true; }
  void Finish(const absl::Status& /*synchronized*/) override {
    const MutexLock lock(&mu_);
    reached_ = true;
    changed_.NotifyAll();
  }
  void Wait() {
    const MutexLock lock(&mu_);
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
    const MutexLock lock(&mu_);
    stopping_ = true;
  }
  wake_.NotifyOne();
  thread_.join();
}

void DeviceQueue::Push(std::shared_ptr<DeviceTask> task) {
  bool wake = false;
  {
    const MutexLock lock(&mu_);
    pushed_.store(pushed_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    tasks_.push_back(std::move(task));
    wake = std::exchange(sleeping_, false);
  }
  if (current_scope != nullptr) {
    current_scope->Pushed(wake ? this : nullptr);
  } else if (wake) {
    wake_.NotifyOne();
  }
}

DeviceQueue::WakeScope::WakeScope() : outer_(std::exchange(current_scope, this)) {}

DeviceQueue::WakeScope::~WakeScope() {
  Wake();
  current_scope = outer_;
}

void DeviceQueue::WakeScope::Pushed(DeviceQueue* asleep) {
  if (asleep != nullptr) {
    asleep_.push_back(asleep);
  }
  if (++pushes_ >= kPushesPerWake) {
    Wake();
  }
}

void DeviceQueue::WakeScope::Wake() {
  for (DeviceQueue* const queue : asleep_) {
    queue->wake_.NotifyOne();
  }
  asleep_.clear();
  pushes_ = 0;
}

double DeviceQueue::busy_seconds() const {
  const int64_t start = batch_start_.load(std::memory_order_relaxed);
  int64_t ticks = busy_ticks_.load(std::memory_order_relaxed);
  if (start != 0) {
    ticks += Clock::Real()->Now().time_since_epoch().count() - start;
  }
  return Seconds(TimePoint::duration(ticks)).count();
}

void DeviceQueue::Drain() {
  const auto marker = std::make_shared<DrainMarker>();
  Push(marker);
  if (current_scope != nullptr) {
    current_scope->Wake();
  }
  marker->Wait();
}

void DeviceQueue::Loop() {
  std::vector<std::shared_ptr<DeviceTask>> batch;
  while (true) {
    {
      const MutexLock lock(&mu_);
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
    const int64_t start = Clock::Real()->Now().time_since_epoch().count();
    batch_start_.store(start, std::memory_order_relaxed);
    RunBatch(batch);
    batch.clear();
    const int64_t end = Clock::Real()->Now().time_since_epoch().count();
    busy_ticks_.store(busy_ticks_.load(std::memory_order_relaxed) + end - start,
                      std::memory_order_relaxed);
    batch_start_.store(0, std::memory_order_relaxed);
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
  finished_.store(finished_.load(std::memory_order_relaxed) + std::exchange(taken_, 0),
                  std::memory_order_release);
}

}  // namespace devserver
