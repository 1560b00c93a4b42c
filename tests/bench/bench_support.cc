#include "tests/bench/bench_support.h"

#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "server/base/status_macros.h"
#include "tests/bench/bare_server.h"
#include "tests/bench/goal_table.h"
#include "tests/bench/servers.h"

namespace devserver::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr int kRounds = 9;
constexpr int kRoundsSlow = 5;
// One timed run lasts at least this long: long against a scheduler's time slice.
constexpr double kRunSeconds = 0.04;
constexpr int64_t kCountMax = int64_t{1} << 22;
// --benchmark_min_time below this asks for a moment of each: one round of the smallest run.
constexpr double kMomentSeconds = 0.01;

struct Registered {
  Comparison comparison;
  MakeSides make;
};

struct Settings {
  bool moment = false;
  int rounds = 0;  // 0: the default
};

// One timed run, by operation.
struct Sample {
  double seconds = 0;
  double cpu_seconds = 0;  // of all our processes
};

std::vector<Registered>& Registry() {
  static std::vector<Registered> registry;
  return registry;
}

struct Report {
  std::vector<GoalRow> rows;
  std::vector<std::string> errors;
};

double Quantile(std::vector<double> values, double fraction) {
  std::ranges::sort(values);
  const double position = fraction * static_cast<double>(values.size() - 1);
  const size_t below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (position - static_cast<double>(below));
}

// Busy seconds of all CPUs, of everybody.
double MachineCpuSeconds() {
  std::ifstream file("/proc/stat");
  std::string word;
  double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0;
  file >> word >> user >> nice >> system >> idle >> iowait >> irq >> softirq;
  return (user + nice + system + irq + softirq) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

double SecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

absl::StatusOr<Sample> RunOnce(const Side& side, int64_t count) {
  if (side.prepare != nullptr) {
    side.prepare(count);
  }
  const double cpu_before = OurCpuSeconds();
  const SteadyClock::time_point start = SteadyClock::now();
  RETURN_IF_ERROR(side.run(count));
  Sample sample;
  sample.seconds = SecondsSince(start) / static_cast<double>(count);
  sample.cpu_seconds = (OurCpuSeconds() - cpu_before) / static_cast<double>(count);
  return sample;
}

// A side's runs of all rounds.
struct Series {
  const Side* side = nullptr;
  int64_t count = 1;
  std::vector<Sample> samples;

  // Warms up too: runs until one lasts long enough.
  absl::Status Calibrate(const Comparison& comparison, bool moment) {
    count = comparison.count_step;
    while (!moment) {
      ASSIGN_OR_RETURN(const Sample sample, RunOnce(*side, count));
      const double run_seconds = sample.seconds * static_cast<double>(count);
      if (run_seconds >= kRunSeconds || count >= kCountMax) {
        break;
      }
      const double factor = std::clamp(1.2 * kRunSeconds / run_seconds, 2.0, 50.0);
      count = static_cast<int64_t>(static_cast<double>(count) * factor) / comparison.count_step *
              comparison.count_step;
    }
    return absl::OkStatus();
  }
  absl::Status Run() {
    ASSIGN_OR_RETURN(const Sample sample, RunOnce(*side, count));
    samples.push_back(sample);
    return absl::OkStatus();
  }
  double seconds() const {
    std::vector<double> all;
    for (const Sample& sample : samples) {
      all.push_back(sample.seconds);
    }
    return Quantile(all, 0.5);
  }
  double cpu_seconds() const {
    std::vector<double> all;
    for (const Sample& sample : samples) {
      all.push_back(sample.cpu_seconds);
    }
    return Quantile(all, 0.5);
  }
  double cpus() const { return cpu_seconds() / seconds(); }
};

double Ratio(Compare compare, double subject, double control, double subject_alone) {
  switch (compare) {
    case Compare::kTime:
      return subject / control;
    case Compare::kSpeed:
      return control / subject;
    case Compare::kScaling:
      return subject_alone / subject;
  }
  return 0;
}

class Measurement {
 public:
  Measurement(const Comparison& comparison, const Sides& sides) : comparison_(comparison) {
    subject_.side = &sides.subject;
    control_.side = &sides.control;
    subject_alone_.side = &sides.subject_alone;
    control_alone_.side = &sides.control_alone;
    all_ = {&control_, &subject_};
    if (comparison.compare == Compare::kScaling) {
      all_ = {&control_, &subject_, &control_alone_, &subject_alone_};
    }
  }

  absl::Status Calibrate(bool moment) {
    for (Series* const series : all_) {
      RETURN_IF_ERROR(series->Calibrate(comparison_, moment));
    }
    machine_before_ = MachineCpuSeconds();
    ours_before_ = OurCpuSeconds();
    start_ = SteadyClock::now();
    return absl::OkStatus();
  }

  // One round, every other one in the opposite order. Returns the subject's seconds per operation.
  absl::StatusOr<double> Round() {
    for (Series* const series : all_) {
      RETURN_IF_ERROR(series->Run());
    }
    std::ranges::reverse(all_);
    return subject_.samples.back().seconds;
  }

  GoalRow Finish() const {
    GoalRow row;
    row.comparison = comparison_;
    row.subject_seconds = subject_.seconds();
    row.control_seconds = control_.seconds();
    row.subject_cpus = subject_.cpus();
    row.control_cpus = control_.cpus();
    const bool scaling = comparison_.compare == Compare::kScaling;
    row.cpu_ratio = Ratio(comparison_.compare, subject_.cpu_seconds(), control_.cpu_seconds(),
                          scaling ? subject_alone_.cpu_seconds() : 0);
    if (scaling) {
      row.control_scaling = control_alone_.seconds() / row.control_seconds;
    }
    std::vector<double> ratios;
    for (size_t i = 0; i < subject_.samples.size(); ++i) {
      ratios.push_back(Ratio(comparison_.compare, subject_.samples[i].seconds,
                             control_.samples[i].seconds,
                             scaling ? subject_alone_.samples[i].seconds : 0));
    }
    row.ratio = Quantile(ratios, 0.5);
    row.ratio_low = Quantile(ratios, 0.25);
    row.ratio_high = Quantile(ratios, 0.75);
    const double ours = OurCpuSeconds() - ours_before_;
    row.other_cpus =
        std::max(0.0, MachineCpuSeconds() - machine_before_ - ours) / SecondsSince(start_);
    return row;
  }

 private:
  const Comparison comparison_;
  Series subject_;
  Series control_;
  Series subject_alone_;
  Series control_alone_;
  std::vector<Series*> all_;
  double machine_before_ = 0;
  double ours_before_ = 0;
  SteadyClock::time_point start_;
};

absl::Status RunComparison(const Registered& registered, bool moment, benchmark::State& state,
                           Report* report) {
  ASSIGN_OR_RETURN(const Sides sides, registered.make());
  Measurement measurement(registered.comparison, sides);
  RETURN_IF_ERROR(measurement.Calibrate(moment));
  for (auto _ : state) {
    ASSIGN_OR_RETURN(const double seconds, measurement.Round());
    state.SetIterationTime(seconds);
  }
  if (sides.check != nullptr) {
    RETURN_IF_ERROR(sides.check());
  }
  const GoalRow row = measurement.Finish();
  state.counters["control_s"] = row.control_seconds;
  state.counters["ratio"] = row.ratio;
  state.counters["goal"] = registered.comparison.ratio_goal;
  state.counters["cpus"] = row.subject_cpus;
  report->rows.push_back(row);
  return absl::OkStatus();
}

// Takes our own flags out of the arguments.
std::optional<Settings> TakeSettings(int* argc, char** argv) {
  Settings settings;
  int kept = 1;
  for (int i = 1; i < *argc; ++i) {
    const std::string_view argument = argv[i];
    constexpr std::string_view kRoundsFlag = "--rounds=";
    constexpr std::string_view kMinTimeFlag = "--benchmark_min_time=";
    if (argument.starts_with(kRoundsFlag)) {
      settings.rounds = std::atoi(argv[i] + kRoundsFlag.size());
      if (settings.rounds < 1) {
        std::fprintf(stderr, "%s: a number of rounds from 1 up\n", argv[i]);
        return std::nullopt;
      }
      continue;
    }
    if (argument.starts_with(kMinTimeFlag)) {
      settings.moment = std::atof(argv[i] + kMinTimeFlag.size()) < kMomentSeconds;
    }
    argv[kept++] = argv[i];
  }
  *argc = kept;
  argv[kept] = nullptr;
  return settings;
}

int RoundsOf(const Comparison& comparison, const Settings& settings) {
  if (settings.moment) {
    return 1;
  }
  return settings.rounds > 0 ? settings.rounds : comparison.slow ? kRoundsSlow : kRounds;
}

// The controls compute in this process: with the OpenMP setting of devserverd, which libgomp reads
// before main.
void RestartWithPassiveWaits(char** argv) {
  if (getenv("OMP_WAIT_POLICY") == nullptr && setenv("OMP_WAIT_POLICY", "passive", 1) == 0) {
    execv("/proc/self/exe", argv);  // Comes back only if it fails.
  }
}

int Main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == kBareServerFlag) {
    return RunBareServer(argv[2]);
  }
  RestartWithPassiveWaits(argv);
  const std::optional<Settings> settings = TakeSettings(&argc, argv);
  if (!settings.has_value()) {
    return 2;
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 2;
  }
  Report report;
  for (const Registered& registered : Registry()) {
    const std::string& name = registered.comparison.name;
    benchmark::RegisterBenchmark(name.c_str(),
                                 [&](benchmark::State& state) {
                                   const absl::Status status =
                                       RunComparison(registered, settings->moment, state, &report);
                                   if (!status.ok()) {
                                     report.errors.push_back(name + ": " + status.ToString());
                                     state.SkipWithError(status.ToString().c_str());
                                   }
                                 })
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond)
        ->Iterations(RoundsOf(registered.comparison, *settings));
  }
  const size_t run = benchmark::RunSpecifiedBenchmarks();
  if (settings->moment) {
    absl::PrintF("A moment of each: results were checked, figures mean nothing.\n");
  } else {
    PrintGoalTable(report.rows);
  }
  StopServers();
  for (const std::string& error : report.errors) {
    std::fprintf(stderr, "FAILED %s\n", error.c_str());
  }
  return run > 0 && report.errors.empty() ? 0 : 1;
}

}  // namespace

bool Register(const Comparison& comparison, MakeSides make) {
  Registry().push_back({comparison, std::move(make)});
  return true;
}

}  // namespace devserver::bench

int main(int argc, char** argv) { return devserver::bench::Main(argc, argv); }
