#include "client/ctl/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/ctl/text.h"

namespace devserver::ctl {
namespace {

constexpr auto kDrawInterval = std::chrono::milliseconds(100);
constexpr size_t kDefaultWidth = 80;
constexpr size_t kBarWidthMax = 40;
constexpr size_t kBarWidthMin = 10;
constexpr size_t kLabelWidthMax = 28;

size_t TerminalWidth() {
  winsize size = {};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) {
    return kDefaultWidth;
  }
  return size.ws_col;
}

std::string ClockText(double seconds) {
  const auto whole = std::llround(std::min(seconds, 359999.0));
  return absl::StrFormat("%d:%02d", whole / 60, whole % 60);
}

}  // namespace

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)), start_(Clock::now()), on_terminal_(isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (drawn_) {
    std::fputc('\n', stderr);
  }
}

double ProgressBar::seconds() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

void ProgressBar::Show(uint64_t done_bytes, uint64_t total_bytes) {
  const Clock::time_point now = Clock::now();
  const bool at_end = done_bytes >= total_bytes;
  if (!on_terminal_ || (drawn_ && !at_end && now - last_drawn_ < kDrawInterval)) {
    return;
  }
  last_drawn_ = now;
  drawn_ = true;
  // The last column stays free: some terminals wrap when it is filled.
  const std::string line = Line(label_, done_bytes, total_bytes, seconds(), TerminalWidth() - 1);
  std::fprintf(stderr, "\r%s\033[K", line.c_str());
  std::fflush(stderr);
}

std::string ProgressBar::Line(const std::string& label, uint64_t done_bytes, uint64_t total_bytes,
                              double seconds, size_t width) {
  const double fraction = total_bytes == 0
                              ? 1.0
                              : static_cast<double>(std::min(done_bytes, total_bytes)) /
                                    static_cast<double>(total_bytes);
  const double rate = seconds > 0 ? static_cast<double>(done_bytes) / seconds : 0;
  std::string left = "--:-- left";
  if (fraction >= 1) {
    left = absl::StrFormat("in %s", ClockText(seconds));
  } else if (rate > 0) {
    left =
        absl::StrFormat("%s left", ClockText(static_cast<double>(total_bytes - done_bytes) / rate));
  }
  const std::string head =
      absl::StrFormat("%s %4s ", Padded(Printable(label), std::min(WidthOf(label), kLabelWidthMax)),
                      PercentText(fraction));
  const std::string tail = absl::StrFormat(" %s of %s  %s  %s", BytesText(done_bytes),
                                           BytesText(total_bytes), RateText(rate), left);
  const size_t used = WidthOf(head) + WidthOf(tail) + 2;
  std::string bar;
  if (used + kBarWidthMin <= width) {
    const size_t bar_width = std::min(width - used, kBarWidthMax);
    const auto full = static_cast<size_t>(fraction * static_cast<double>(bar_width));
    bar = absl::StrFormat("[%s%s]", std::string(full, '#'), std::string(bar_width - full, '-'));
  }
  const std::string line = head + bar + tail;
  return WidthOf(line) <= width ? line : Padded(line, width);
}

}  // namespace devserver::ctl
