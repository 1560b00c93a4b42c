// Comparisons: devserverd (the subject) against a bare control, in one run.
//
// The machine's speed changes by a factor of two or three from minute to minute, so no figure
// stands alone: subject and control run alternately, and the median of the rounds' ratios counts.
// Each comparison is one Google Benchmark (its time is the subject's) and one row of the table that
// the program prints at its end, with the goal beside the figure and the CPUs that each side kept
// busy. devserverd and the controls' bare gRPC server are processes of their own (servers.h), so
// that no client shares its threads with its server.
//
// A wrong result fails the program. A missed goal does not: machines are noisy.
//
// Thread safety: all on the main thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace devserver::bench {

// What is timed. `run(count)` does so many operations, from the first byte to the last result.
// `prepare(count)` comes before it and is not timed; it may be left out.
struct Side {
  std::function<void(int64_t count)> prepare;
  std::function<absl::Status(int64_t count)> run;
};

struct Sides {
  Side subject;
  Side control;
  // Only where the comparison is of scaling: the same work, one after the other.
  Side subject_alone;
  Side control_alone;
  // Runs after the last round; an error if the results were wrong.
  std::function<absl::Status()> check;
};

// How times are shown: as they are, or as what one operation does, per second.
enum class Unit { kTime, kOperations, kBytes, kFlops };

enum class Compare {
  kTime,     // the subject's time over the control's: below 1 is better
  kSpeed,    // the control's time over the subject's: above 1 is better
  kScaling,  // how much faster than one after the other: for subject and control each
};

struct Comparison {
  std::string name;  // "matmul/2048/gpu:0"
  Unit unit = Unit::kTime;
  double per_operation = 1;  // operations, bytes or flops that one operation counts for
  Compare compare = Compare::kTime;
  // The goal: at most (kTime) or at least (kSpeed, kScaling) this ratio. 0: none, only reported.
  double ratio_goal = 0;
  // And at least so many of `unit` per second. 0: none.
  double rate_goal = 0;
  // Operations of one timed run are a multiple of this.
  int64_t count_step = 1;
  // Where one run takes long anyway: fewer rounds.
  bool slow = false;
};

// Makes what a comparison works on; called only if it is asked for, and destroyed after it.
using MakeSides = std::function<absl::StatusOr<Sides>()>;

// Before main: `static const bool registered = Register(...)`. Returns true.
bool Register(const Comparison& comparison, MakeSides make);

}  // namespace devserver::bench
