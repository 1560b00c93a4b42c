// From how long to wait to until when. Not installed.
#pragma once

#include <algorithm>
#include <chrono>

#include "absl/time/time.h"
#include "server/base/clock.h"

namespace devserver::client {

// Never so far away that a clock overflows: InfiniteDuration is a year.
inline TimePoint DeadlineAfter(absl::Duration timeout) {
  const absl::Duration bounded = std::clamp(timeout, absl::ZeroDuration(), absl::Hours(24 * 365));
  return Clock::Real()->Now() + absl::ToChronoNanoseconds(bounded);
}

}  // namespace devserver::client
