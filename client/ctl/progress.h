// A progress bar on a terminal: "w.npy  45% [#####-----] 115 MiB of 256 MiB  1.13 GB/s  0:12 left".
// Draws nothing where stderr is not a terminal. Thread safety: one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace devserver::ctl {

class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  // Ends the line it drew.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // At most ten drawings a second, and one at the end.
  void Show(uint64_t done_bytes, uint64_t total_bytes);
  double seconds() const;  // since it was made

  // The bar's line, `width` characters at most.
  static std::string Line(const std::string& label, uint64_t done_bytes, uint64_t total_bytes,
                          double seconds, size_t width);

 private:
  using Clock = std::chrono::steady_clock;

  // Constant after construction.
  const std::string label_;
  const Clock::time_point start_;
  const bool on_terminal_;

  Clock::time_point last_drawn_;
  bool drawn_ = false;
};

}  // namespace devserver::ctl
