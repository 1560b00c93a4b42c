#include "tests/bench/goal_table.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>

#include "absl/strings/str_format.h"

namespace devserver::bench {
namespace {

// Below it, the control pair did not get two CPUs, and nothing can be said of scaling.
constexpr double kTwoCpus = 1.8;

std::string FormatTime(double seconds) {
  if (seconds < 1e-3) {
    return absl::StrFormat("%.4g us", seconds * 1e6);
  }
  return seconds < 1 ? absl::StrFormat("%.4g ms", seconds * 1e3)
                     : absl::StrFormat("%.4g s", seconds);
}

std::string FormatFigure(const Comparison& comparison, double seconds) {
  const double rate = comparison.per_operation / seconds;
  switch (comparison.unit) {
    case Unit::kTime:
      return FormatTime(seconds);
    case Unit::kOperations:
      return absl::StrFormat("%.3g M/s", rate / 1e6);
    case Unit::kBytes:
      return absl::StrFormat("%.3g GB/s", rate / 1e9);
    case Unit::kFlops:
      return absl::StrFormat("%.3g GFLOP/s", rate / 1e9);
  }
  return "";
}

std::string FormatRatio(double ratio) {
  return ratio < 0.1 ? absl::StrFormat("%.2g", ratio) : absl::StrFormat("%.2f", ratio);
}

std::string FormatGoal(const Comparison& comparison) {
  std::string goal;
  if (comparison.ratio_goal > 0) {
    const char* const sign = comparison.compare == Compare::kTime ? "<=" : ">=";
    goal = absl::StrFormat("%s %.2f", sign, comparison.ratio_goal);
  }
  if (comparison.rate_goal > 0) {
    goal += absl::StrFormat("%s>= %.0f M/s", goal.empty() ? "" : ", ", comparison.rate_goal / 1e6);
  }
  return goal.empty() ? "-" : goal;
}

// By how much a goal is missed: the factor between figure and goal, above 1 when missed.
double MissFactor(const GoalRow& row) {
  const Comparison& comparison = row.comparison;
  double factor = 0;
  if (comparison.ratio_goal > 0) {
    factor = comparison.compare == Compare::kTime ? row.ratio / comparison.ratio_goal
                                                  : comparison.ratio_goal / row.ratio;
  }
  if (comparison.rate_goal > 0) {
    factor =
        std::max(factor, comparison.rate_goal * row.subject_seconds / comparison.per_operation);
  }
  return factor;
}

std::string FormatVerdict(const GoalRow& row) {
  const Comparison& comparison = row.comparison;
  std::string verdict;
  if (comparison.ratio_goal > 0 || comparison.rate_goal > 0) {
    const double factor = MissFactor(row);
    verdict = factor <= 1 ? "met" : absl::StrFormat("MISSED by %.1f %%", (factor - 1) * 100);
  }
  if (comparison.compare == Compare::kScaling) {
    if (row.control_cpus < kTwoCpus) {
      verdict = absl::StrFormat("not claimed: the control got %.2f CPUs", row.control_cpus);
    }
    verdict += absl::StrFormat("; control %.2f", row.control_scaling);
  }
  return verdict;
}

std::string MachineLine() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  std::string model = "unknown CPU";
  while (std::getline(file, line)) {
    if (line.starts_with("model name")) {
      model = line.substr(line.find(": ") + 2);
      break;
    }
  }
  utsname kernel = {};
  uname(&kernel);
  return absl::StrFormat("%s, %d CPUs, Linux %s", model, sysconf(_SC_NPROCESSORS_ONLN),
                         kernel.release);
}

}  // namespace

void PrintGoalTable(std::span<const GoalRow> rows) {
  if (rows.empty()) {
    return;
  }
  absl::PrintF("\nGoals. %s. Medians of interleaved rounds; [quartiles of their ratios].\n",
               MachineLine());
  absl::PrintF(
      "\"time\": subject / control; \"speed\": control / subject; \"scaling\": one after the other "
      "/ at once.\n"
      "by CPU: the same ratio of CPU times, which other processes disturb less.\n"
      "CPUs: CPU time of client and server together over wall time, subject | control | meanwhile "
      "taken by other processes.\n\n");
  absl::PrintF("%-34s %14s %14s  %-8s %6s %-14s %-10s %6s  %-18s %s\n", "name", "subject",
               "control", "", "ratio", "", "goal", "by CPU", "CPUs", "verdict");
  int goals = 0;
  int met = 0;
  for (const GoalRow& row : rows) {
    constexpr const char* kKinds[] = {"time", "speed", "scaling"};
    const std::string verdict = FormatVerdict(row);
    absl::PrintF(
        "%-34s %14s %14s  %-8s %6s %-14s %-10s %6s  %-18s %s\n", row.comparison.name,
        FormatFigure(row.comparison, row.subject_seconds),
        FormatFigure(row.comparison, row.control_seconds),
        kKinds[static_cast<int>(row.comparison.compare)], FormatRatio(row.ratio),
        absl::StrFormat("[%s-%s]", FormatRatio(row.ratio_low), FormatRatio(row.ratio_high)),
        FormatGoal(row.comparison), FormatRatio(row.cpu_ratio),
        absl::StrFormat("%.2f | %.2f | %.2f", row.subject_cpus, row.control_cpus, row.other_cpus),
        verdict);
    goals += verdict.starts_with("met") || verdict.starts_with("MISSED") ? 1 : 0;
    met += verdict.starts_with("met") ? 1 : 0;
  }
  absl::PrintF("\n%d of %d goals met.\n", met, goals);
}

}  // namespace devserver::bench
