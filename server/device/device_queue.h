// A device and the one thread that runs its work, first in, first out.
//
// The thread takes everything queued at once and runs it task by task; it sleeps when there is
// nothing. A task is started (Issue) and later finished (Finish), when its result may be read by
// the host. On a device that computes at once (cpu, sim) a task is finished right after it was
// issued; a device with asynchronous streams is synchronised once for a batch. Threads: Push from
// any thread. Tasks run on the queue's thread, and must not block on other tasks of any queue.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/base/clock.h"
#include "server/base/mutex.h"
#include "server/device/device.h"

namespace devserver {

class DeviceTask {
 public:
  virtual ~DeviceTask() = default;
  // Starts the work on `device` and lets go of what only the work needed (its inputs). Returns
  // false if nobody will ever look at the result, so that Finish need not be called.
  virtual bool Issue(Device& device) = 0;
  // The result is there (`synchronized` OK) or the device failed.
  virtual void Finish(const absl::Status& synchronized) = 0;
};

class DeviceQueue {
 public:
  // While one lives, queues that this thread pushes to are woken once in a few dozen tasks and at
  // its end, not at every push: a burst of small commands would else spend most of its time on
  // wake-ups. For the handling of one message.
  class WakeScope {
   public:
    WakeScope();
    ~WakeScope();
    WakeScope(const WakeScope&) = delete;
    WakeScope& operator=(const WakeScope&) = delete;

   private:
    friend class DeviceQueue;
    void Pushed(DeviceQueue* asleep);  // null: the queue was awake
    void Wake();

    WakeScope* const outer_;
    std::vector<DeviceQueue*> asleep_;
    int pushes_ = 0;  // since the last wake-up
  };

  // Starts the thread. `device` is owned.
  explicit DeviceQueue(std::unique_ptr<Device> device);
  // Finishes what is queued, then joins the thread.
  ~DeviceQueue();
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  Device& device() const { return *device_; }
  const std::string& name() const { return device_->properties().name; }

  // Not bounded here: sessions bound their commands in flight (session/limits.h), and there is a
  // bound on sessions.
  void Push(std::shared_ptr<DeviceTask> task);
  // Waits until everything pushed before has finished. Never on the queue's own thread.
  void Drain();

  // Time spent on tasks since the queue was made.
  double busy_seconds() const;
  // Tasks that were pushed and have not finished.
  uint64_t queued() const {
    // In this order: the push of whatever is counted as finished is seen.
    const uint64_t finished = finished_.load(std::memory_order_acquire);
    return pushed_.load(std::memory_order_relaxed) - finished;
  }

 private:
  void Loop();
  void RunBatch(std::vector<std::shared_ptr<DeviceTask>>& batch);
  void FinishIssued();

  static constexpr size_t kCacheLine = 64;  // What two threads write is kept apart.

  // Constant after construction.
  const std::unique_ptr<Device> device_;
  // Guarded by mu_.
  alignas(kCacheLine) Mutex mu_;
  CondVar wake_;
  std::vector<std::shared_ptr<DeviceTask>> tasks_ ABSL_GUARDED_BY(mu_);
  bool sleeping_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::atomic<uint64_t> pushed_ = 0;  // Tasks. Written under mu_.
  // Written by the queue thread.
  alignas(kCacheLine) std::atomic<uint64_t> finished_ = 0;  // Tasks. After their Finish.
  // For people to read; order nothing. Ticks of TimePoint.
  std::atomic<int64_t> busy_ticks_ = 0;   // of the batches that are done
  std::atomic<int64_t> batch_start_ = 0;  // of the batch that runs; 0: none
  // Touched only by the queue thread.
  std::vector<std::shared_ptr<DeviceTask>> issued_;
  uint64_t taken_ = 0;  // tasks issued since finished_ was raised

  std::thread thread_;
};

}  // namespace devserver
