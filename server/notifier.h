// Tells systemd how the daemon is (sd_notify). Outside systemd every call does nothing.
// Thread safety: main thread only.
#pragma once

#include <chrono>
#include <string>

namespace devserver {

class Notifier {
 public:
  Notifier();

  void Ready(const std::string& status);
  void Stopping(const std::string& status);
  // Feeds the watchdog; systemd restarts the daemon when this stays out for WatchdogSec.
  void Alive();
  // How often Alive must be called at least; zero if there is no watchdog.
  std::chrono::microseconds watchdog_period() const { return watchdog_period_; }

 private:
  // Constant after construction.
  std::chrono::microseconds watchdog_period_{0};
};

}  // namespace devserver
