// The table that the benchmarks print last: each figure beside its control and its goal.
// Thread safety: plain values and pure functions, but for the output.
#pragma once

#include <span>

#include "tests/bench/bench_support.h"

namespace devserver::bench {

// What was measured of one comparison.
struct GoalRow {
  Comparison comparison;
  double subject_seconds = 0;  // medians
  double control_seconds = 0;
  double subject_cpus = 0;
  double control_cpus = 0;
  double ratio = 0;  // the median of the rounds' own ratios, and their quartiles
  double ratio_low = 0;
  double ratio_high = 0;
  double cpu_ratio = 0;  // of CPU times instead of wall times
  double control_scaling = 0;
  double other_cpus = 0;  // what other processes took meanwhile
};

// To standard output; nothing if there are no rows.
void PrintGoalTable(std::span<const GoalRow> rows);

}  // namespace devserver::bench
