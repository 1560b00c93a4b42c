// Where leases and ages read the time, so that their tests take microseconds
// (tests/fakes/fake_clock.h).
#pragma once

#include <chrono>

namespace devserver {

using TimePoint = std::chrono::steady_clock::time_point;
using Seconds = std::chrono::duration<double>;

// Thread safety: any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic; starts anywhere.
  virtual TimePoint Now() const = 0;

  // The machine's steady clock. Never destroyed.
  static Clock* Real();
};

inline double SecondsBetween(TimePoint start, TimePoint end) {
  return Seconds(end - start).count();
}

}  // namespace devserver
