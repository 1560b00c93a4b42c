#include "server/notifier.h"

#include <systemd/sd-daemon.h>

#include <cstdint>

namespace devserver {

Notifier::Notifier() {
  uint64_t microseconds = 0;
  if (sd_watchdog_enabled(0, &microseconds) > 0) {
    watchdog_period_ = std::chrono::microseconds(microseconds);
  }
}

void Notifier::Ready(const std::string& status) {
  sd_notify(0, ("READY=1\nSTATUS=" + status).c_str());
}

void Notifier::Stopping(const std::string& status) {
  sd_notify(0, ("STOPPING=1\nSTATUS=" + status).c_str());
}

void Notifier::Alive() { sd_notify(0, "WATCHDOG=1"); }

}  // namespace devserver
