#include "tests/bench/servers.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "server/base/status_macros.h"
#include "tests/bench/bare_server.h"

namespace devserver::bench {
namespace {

constexpr int kStartMilliseconds = 30'000;
constexpr int kPollMilliseconds = 2;
constexpr int kCallDeadlineSeconds = 120;

// A server in a process of its own.
class ServerProcess {
 public:
  // `arguments` are given the path of a file to write the port to as their last one.
  static absl::StatusOr<std::unique_ptr<ServerProcess>> Start(std::vector<std::string> arguments);
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  const std::string& address() const { return address_; }
  double cpu_seconds() const;

 private:
  ServerProcess(pid_t pid, std::string folder) : pid_(pid), folder_(std::move(folder)) {}
  absl::Status AwaitPort(const std::string& port_file, const std::string& program);

  const pid_t pid_;
  const std::string folder_;
  std::string address_;
};

absl::StatusOr<std::unique_ptr<ServerProcess>> ServerProcess::Start(
    std::vector<std::string> arguments) {
  std::string folder = std::filesystem::temp_directory_path() / "devserver_bench_XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    return absl::ErrnoToStatus(errno, "can't make a temporary folder");
  }
  const std::string port_file = folder + "/port";
  arguments.push_back(port_file);
  std::vector<char*> argv;
  for (std::string& argument : arguments) {
    argv.push_back(argument.data());
  }
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid < 0) {
    return absl::ErrnoToStatus(errno, absl::StrFormat("can't start %s", arguments[0]));
  }
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // However this program ends.
    execv(argv[0], argv.data());
    _exit(127);
  }
  std::unique_ptr<ServerProcess> process(new ServerProcess(pid, std::move(folder)));
  RETURN_IF_ERROR(process->AwaitPort(port_file, arguments[0]));
  return process;
}

absl::Status ServerProcess::AwaitPort(const std::string& port_file, const std::string& program) {
  int port = 0;
  for (int waited = 0; waited < kStartMilliseconds; waited += kPollMilliseconds) {
    if (std::ifstream(port_file) >> port) {
      address_ = absl::StrFormat("127.0.0.1:%d", port);
      return absl::OkStatus();
    }
    siginfo_t ended = {};
    waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT);
    if (ended.si_pid != 0) {
      return absl::UnavailableError(
          absl::StrFormat("%s ended with status %d", program, ended.si_status));
    }
    poll(nullptr, 0, kPollMilliseconds);
  }
  return absl::DeadlineExceededError(
      absl::StrFormat("%s was not ready within %d ms", program, kStartMilliseconds));
}

ServerProcess::~ServerProcess() {
  kill(pid_, SIGTERM);
  int status = 0;
  waitpid(pid_, &status, 0);
  std::error_code error;  // A folder that stays in /tmp is no reason to fail.
  std::filesystem::remove_all(folder_, error);
}

double ServerProcess::cpu_seconds() const {
  clockid_t clock = 0;
  timespec time = {};
  if (clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &time) != 0) {
    return 0;
  }
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct Servers {
  std::unique_ptr<ServerProcess> subject;
  std::unique_ptr<ServerProcess> control;
};

Servers& TheServers() {
  static Servers servers;
  return servers;
}

std::string OwnProgram() { return std::filesystem::read_symlink("/proc/self/exe"); }

}  // namespace

absl::StatusOr<std::string> SubjectAddress() {
  std::unique_ptr<ServerProcess>& subject = TheServers().subject;
  if (subject == nullptr) {
    const std::string daemon = std::filesystem::path(OwnProgram()).replace_filename("devserverd");
    ASSIGN_OR_RETURN(
        subject, ServerProcess::Start({daemon, "--listen", "127.0.0.1:0", "--simulate",
                                       "V100-SXM2-16GB:2", "--log-level", "warn", "--port-file"}));
  }
  return subject->address();
}

absl::StatusOr<std::string> ControlAddress() {
  std::unique_ptr<ServerProcess>& control = TheServers().control;
  if (control == nullptr) {
    ASSIGN_OR_RETURN(control, ServerProcess::Start({OwnProgram(), kBareServerFlag}));
  }
  return control->address();
}

double OurCpuSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  double seconds = static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  for (const ServerProcess* process : {TheServers().subject.get(), TheServers().control.get()}) {
    seconds += process == nullptr ? 0 : process->cpu_seconds();
  }
  return seconds;
}

void StopServers() {
  TheServers().subject.reset();
  TheServers().control.reset();
}

absl::StatusOr<std::unique_ptr<Caller>> Caller::OpenSubject() {
  ASSIGN_OR_RETURN(const std::string address, SubjectAddress());
  auto transport = client::OpenTransport(address, client::Traffic::kCommands);
  grpc::ClientContext context;
  client::PrepareCall(&context, "", absl::Seconds(kCallDeadlineSeconds));
  v1::OpenSessionRequest request;
  request.set_name("bench");
  request.set_lease_seconds(600);
  v1::OpenSessionReply reply;
  RETURN_IF_ERROR(FromGrpc(transport->sessions->OpenSession(&context, request, &reply)));
  return std::unique_ptr<Caller>(new Caller(std::move(transport), reply.token()));
}

absl::StatusOr<std::unique_ptr<Caller>> Caller::OpenControl() {
  ASSIGN_OR_RETURN(const std::string address, ControlAddress());
  return std::unique_ptr<Caller>(
      new Caller(client::OpenTransport(address, client::Traffic::kCommands), ""));
}

Caller::~Caller() {
  if (!token_.empty()) {
    grpc::ClientContext context;
    Prepare(&context);
    v1::CloseSessionReply reply;
    transport_->sessions->CloseSession(&context, {}, &reply);
  }
}

void Caller::Prepare(grpc::ClientContext* context) const {
  client::PrepareCall(context, token_, absl::Seconds(kCallDeadlineSeconds));
}

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace devserver::bench
