// A clock that stands still until a test moves it.
// Thread safety: any thread.
#pragma once

#include <atomic>

#include "server/base/clock.h"

namespace devserver {

class FakeClock final : public Clock {
 public:
  TimePoint Now() const override {
    return TimePoint(TimePoint::duration(ticks_.load(std::memory_order_relaxed)));
  }
  void Advance(Seconds time) {
    ticks_.fetch_add(std::chrono::duration_cast<TimePoint::duration>(time).count(),
                     std::memory_order_relaxed);
  }

 private:
  // Some day, so that a time of 0 is noticed. Orders nothing.
  std::atomic<TimePoint::rep> ticks_ = TimePoint::duration(std::chrono::hours(24)).count();
};

}  // namespace devserver
