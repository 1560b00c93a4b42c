// devserverd: reads flags and configuration, runs a Server, and ends it when asked.
#include <pthread.h>
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "server/base/status_macros.h"
#include "server/config_keys.h"
#include "server/flags.h"
#include "server/listen_address.h"
#include "server/notifier.h"
#include "server/server.h"

namespace devserver {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
// Beyond the grace time, before a drain that doesn't end is cut off. Joining threads takes
// milliseconds.
constexpr std::chrono::seconds kDrainSlack{5};

// libgomp reads its environment when it is loaded, before main. Its spinning barriers cost 8 ms a
// call when another process holds a core, so waits must be passive; who set the variable otherwise
// is obeyed.
void RestartWithPassiveWaits(char** argv) {
  constexpr char kVariable[] = "OMP_WAIT_POLICY";
  if (getenv(kVariable) == nullptr && setenv(kVariable, "passive", 1) == 0) {
    execv("/proc/self/exe", argv);  // Comes back only if it fails: slower, but right.
  }
}

void StartLog(const std::string& level) {
  auto logger = spdlog::stderr_logger_mt("devserverd");
  // The journal has its own clock and name.
  logger->set_pattern(getenv("JOURNAL_STREAM") != nullptr ? "%l: %v"
                                                          : "%Y-%m-%d %H:%M:%S.%e %l: %v");
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
}

// The signals that main waits for, blocked in every thread that starts later.
class SignalWait {
 public:
  SignalWait() {
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&set_);
    for (const int number : {SIGTERM, SIGINT, SIGHUP, kWake}) {
      sigaddset(&set_, number);
    }
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }

  // The next signal, or 0 after `timeout`.
  int Next(std::chrono::microseconds timeout) {
    const timespec wait = {static_cast<time_t>(timeout.count() / 1'000'000),
                           static_cast<long>(timeout.count() % 1'000'000) * 1000};
    const int number = sigtimedwait(&set_, nullptr, &wait);
    return number < 0 ? 0 : number;
  }
  // Ends a Next on the main thread early.
  static void Wake() { kill(getpid(), kWake); }
  static bool IsStop(int number) { return number != 0 && number != kWake; }

 private:
  static constexpr int kWake = SIGUSR1;
  sigset_t set_;
};

absl::Status WritePortFile(const std::string& path, const std::vector<std::string>& addresses) {
  for (const std::string& text : addresses) {
    const absl::StatusOr<ListenAddress> address = ParseListenAddress(text);
    if (address.ok() && address->unix_path.empty()) {
      // Renamed into place, so that who waits for the file never reads half of it.
      const std::string draft = path + ".new";
      std::ofstream(draft) << address->port << '\n';
      if (rename(draft.c_str(), path.c_str()) != 0) {
        return absl::ErrnoToStatus(errno, absl::StrFormat("can't write the port file %s", path));
      }
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError("--port-file: there is no TCP address to write the port of");
}

std::string Joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : ", ") + word;
  }
  return text;
}

// Waits for a stop signal, feeding the watchdog while the server is healthy.
void ServeUntilStopped(Server& server, SignalWait& signals, Notifier& notifier) {
  const bool watched = notifier.watchdog_period().count() > 0;
  const std::chrono::microseconds period =
      watched ? notifier.watchdog_period() / 3 : std::chrono::microseconds(std::chrono::hours(1));
  bool was_healthy = true;
  int number = 0;
  while (!SignalWait::IsStop(number)) {
    const bool healthy = server.Healthy();
    if (healthy != was_healthy) {
      spdlog::log(healthy ? spdlog::level::info : spdlog::level::err, "the server is {}",
                  healthy ? "healthy again" : "not healthy: the timer that keeps leases is late");
      was_healthy = healthy;
    }
    if (watched && healthy) {
      notifier.Alive();
    }
    number = signals.Next(period);
  }
  spdlog::info("{}: stopping", strsignal(number));
}

// Lets running calls finish within the grace time. Ends the process if that fails or at a second
// signal.
void Drain(Server& server, SignalWait& signals, Notifier& notifier, double grace_seconds) {
  notifier.Stopping("finishing running calls");
  std::atomic<bool> done = false;  // Published before the wake-up signal.
  std::thread drain([&] {
    server.Drain(absl::Seconds(grace_seconds));
    done = true;
    SignalWait::Wake();
  });
  const auto deadline = std::chrono::steady_clock::now() + kDrainSlack +
                        std::chrono::duration_cast<std::chrono::microseconds>(
                            std::chrono::duration<double>(grace_seconds));
  while (!done) {
    notifier.Alive();
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(
        deadline - std::chrono::steady_clock::now());
    const auto wait = std::min(left, std::chrono::microseconds(std::chrono::seconds(1)));
    const bool stop_now = left.count() <= 0 || SignalWait::IsStop(signals.Next(wait));
    if (stop_now && !done) {
      spdlog::error(left.count() <= 0 ? "running calls did not end within the grace time"
                                      : "a second signal: ending at once");
      // The thread is stuck in the server; nothing can be destroyed under it.
      std::fflush(stderr);
      _exit(kExitFailed);
    }
  }
  drain.join();
}

absl::Status Run(const Flags& flags, SignalWait& signals) {
  Notifier notifier;
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(flags.config);
  RETURN_IF_ERROR(server.status());
  RETURN_IF_ERROR((*server)->OpenDevices());
  const std::vector<std::string> addresses = (*server)->addresses();
  if (!flags.port_file.empty()) {
    RETURN_IF_ERROR(WritePortFile(flags.port_file, addresses));
  }
  const std::string status = absl::StrFormat("serving on %s", Joined(addresses));
  const Limits& limits = flags.config.limits;
  spdlog::info(
      "devserverd {} {}; limits: {} sessions, each {} in {} tensors and {} commands in flight; "
      "messages {}; lease {}",
      DEVSERVER_VERSION, status, limits.sessions,
      FormatQuantity(static_cast<double>(limits.session_bytes), ConfigUnit::kBytes),
      limits.session_tensors, limits.commands_in_flight,
      FormatQuantity(static_cast<double>(limits.message_bytes), ConfigUnit::kBytes),
      FormatQuantity(limits.lease_seconds, ConfigUnit::kSeconds));
  notifier.Ready(status);
  ServeUntilStopped(**server, signals, notifier);
  Drain(**server, signals, notifier, flags.config.limits.grace_seconds);
  server->reset();
  spdlog::info("stopped");
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  const absl::StatusOr<Flags> flags = ParseFlags(argc, argv);
  if (!flags.ok()) {
    std::fprintf(stderr, "devserverd: %s\n", std::string(flags.status().message()).c_str());
    return kExitUsage;
  }
  if (flags->answer) {
    std::fputs(flags->answer->c_str(), stdout);
    return 0;
  }
  if (flags->check_only) {
    std::fputs(FormatConfig(flags->config).c_str(), stdout);
    return 0;
  }
  RestartWithPassiveWaits(argv);
  SignalWait signals;
  StartLog(flags->config.log_level);
  const absl::Status status = Run(*flags, signals);
  if (!status.ok()) {
    spdlog::error("{}", std::string(status.message()));
    return kExitFailed;
  }
  return 0;
}

}  // namespace
}  // namespace devserver

int main(int argc, char** argv) { return devserver::Main(argc, argv); }
