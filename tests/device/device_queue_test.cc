#include "server/device/device_queue.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "server/device/cpu/cpu_device.h"

namespace devserver {
namespace {

std::unique_ptr<Device> MakeCpu(HostMemory* host) {
  CpuDevice::Options options;
  options.memory_limit_bytes = 1 << 20;
  options.threads = 1;
  return std::make_unique<CpuDevice>(options, host);
}

// Writes down when it was started and finished.
class RecordingTask final : public DeviceTask {
 public:
  struct Log {
    Mutex mu;
    std::vector<int> issued ABSL_GUARDED_BY(mu);
    std::vector<int> finished ABSL_GUARDED_BY(mu);
    std::thread::id thread ABSL_GUARDED_BY(mu);
  };
  RecordingTask(int number, bool wanted, Log* log) : number_(number), wanted_(wanted), log_(log) {}
  bool Issue(Device& /*device*/) override {
    MutexLock lock(&log_->mu);
    log_->issued.push_back(number_);
    log_->thread = std::this_thread::get_id();
    return wanted_;
  }
  void Finish(const absl::Status& synchronized) override {
    EXPECT_TRUE(synchronized.ok());
    MutexLock lock(&log_->mu);
    log_->finished.push_back(number_);
  }

 private:
  const int number_;
  const bool wanted_;
  Log* const log_;
};

TEST(DeviceQueue, RunsTasksInOrderOnItsOwnThread) {
  HostMemory host(1 << 20);
  RecordingTask::Log log;
  DeviceQueue queue(MakeCpu(&host));
  std::vector<int> expected;
  for (int i = 0; i < 1000; ++i) {
    queue.Push(std::make_shared<RecordingTask>(i, true, &log));
    expected.push_back(i);
  }
  queue.Drain();
  MutexLock lock(&log.mu);
  EXPECT_EQ(log.issued, expected);
  EXPECT_EQ(log.finished, expected);
  EXPECT_NE(log.thread, std::this_thread::get_id());
}

TEST(DeviceQueue, UnwantedResultsAreNotFinished) {
  HostMemory host(1 << 20);
  RecordingTask::Log log;
  DeviceQueue queue(MakeCpu(&host));
  for (int i = 0; i < 10; ++i) {
    queue.Push(std::make_shared<RecordingTask>(i, i % 2 == 0, &log));
  }
  queue.Drain();
  MutexLock lock(&log.mu);
  EXPECT_EQ(log.issued.size(), 10u);
  EXPECT_EQ(log.finished, (std::vector<int>{0, 2, 4, 6, 8}));
}

TEST(DeviceQueue, FinishesWhatIsQueuedBeforeItEnds) {
  HostMemory host(1 << 20);
  RecordingTask::Log log;
  {
    DeviceQueue queue(MakeCpu(&host));
    for (int i = 0; i < 1000; ++i) {
      queue.Push(std::make_shared<RecordingTask>(i, true, &log));
    }
  }
  MutexLock lock(&log.mu);
  EXPECT_EQ(log.finished.size(), 1000u);
}

TEST(DeviceQueue, TasksLetGoOfTheirMemoryAsTheyRun) {
  // Each task makes a buffer and frees the one before: two are alive at a time, whatever is queued.
  class ChainTask final : public DeviceTask {
   public:
    explicit ChainTask(DeviceBuffer* last) : last_(last) {}
    bool Issue(Device& device) override {
      auto buffer = device.Allocate(400'000);
      EXPECT_TRUE(buffer.ok()) << buffer.status();
      *last_ = *std::move(buffer);
      return false;
    }
    void Finish(const absl::Status& /*synchronized*/) override {}

   private:
    DeviceBuffer* const last_;
  };
  HostMemory host(4 << 20);
  DeviceQueue queue(MakeCpu(&host));  // Its limit of 1 MiB holds two.
  DeviceBuffer last;
  for (int i = 0; i < 1000; ++i) {
    queue.Push(std::make_shared<ChainTask>(&last));
  }
  queue.Drain();
  EXPECT_EQ(queue.device().memory().used_bytes, 400'000u);
}

TEST(DeviceQueue, ManyThreadsMayPush) {
  HostMemory host(1 << 20);
  RecordingTask::Log log;
  DeviceQueue queue(MakeCpu(&host));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        queue.Push(std::make_shared<RecordingTask>(i, true, &log));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  queue.Drain();
  MutexLock lock(&log.mu);
  EXPECT_EQ(log.finished.size(), 2000u);
}

}  // namespace
}  // namespace devserver
