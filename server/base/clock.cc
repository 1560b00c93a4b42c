#include "server/base/clock.h"

namespace devserver {
namespace {

class SteadyClock final : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
};

}  // namespace

Clock* Clock::Real() {
  static SteadyClock* const clock = new SteadyClock;  // Never destroyed: threads may outlive main.
  return clock;
}

}  // namespace devserver
