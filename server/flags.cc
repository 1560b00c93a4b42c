#include "server/flags.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "server/base/status_macros.h"
#include "server/device/sim/gpu_models.h"

namespace devserver {
namespace {

constexpr char kAbout[] =
    "devserverd owns this machine's devices (the CPU, its GPUs, or simulated GPUs) and keeps "
    "tensors on\n"
    "them; clients create tensors, copy them, compute with them and fetch results over gRPC.\n";

constexpr char kExamples[] = R"(
Examples:
  devserverd                                        cpu:0 on 127.0.0.1:50151
  devserverd --simulate V100-SXM2-16GB:4            and four simulated GPUs, gpu:0 to gpu:3
  devserverd --listen 127.0.0.1:0 --port-file PORT  on any free port, which PORT then holds
  devserverd --config FILE --check-config           reads FILE, prints all values, runs nothing
Then:
  grpcurl -plaintext 127.0.0.1:50151 list           or: devserverctl --server 127.0.0.1:50151 smi

Exit status: 0 stopped as asked, 1 failed while running, 2 wrong flags or configuration.
SIGTERM and SIGINT let running calls finish for limits.grace_seconds; a second one ends at once.)";

// What the command line said, before it is applied: a flag wins over the file wherever it stands.
struct Given {
  std::string config_path;
  std::vector<std::string> listen;
  std::string unix_socket;
  std::string simulate;
  std::string log_level;
  bool insecure = false;
};

void AddOptions(CLI::App& app, Given& given, Flags& flags) {
  app.add_option("-c,--config", given.config_path,
                 "Configuration (deploy/devserverd.toml explains every key)")
      ->type_name("FILE");
  app.add_option("-l,--listen", given.listen,
                 "Address to serve on, in place of listen.addresses; may be repeated")
      ->type_name("HOST:PORT");
  app.add_option("--unix-socket", given.unix_socket, "Serve on this unix socket too")
      ->type_name("PATH");
  app.add_option("-s,--simulate", given.simulate, "Simulated GPUs of one model: " + GpuModelNames())
      ->type_name("MODEL:COUNT");
  app.add_flag("--insecure", given.insecure,
               "Allow addresses that other machines can reach: no encryption, no passwords");
  app.add_option("--log-level", given.log_level, "trace, debug, info, warn, error or off")
      ->type_name("LEVEL");
  app.add_flag("--check-config", flags.check_only,
               "Print the configuration that would be used, and end");
  app.add_option("--port-file", flags.port_file,
                 "Write the first TCP port to this file once the server serves")
      ->type_name("PATH");
  app.set_version_flag("--version", std::string("devserverd ") + DEVSERVER_VERSION);
  app.footer(kExamples);
}

absl::StatusOr<ServerConfig> Combine(const Given& given) {
  ServerConfig config;
  if (!given.config_path.empty()) {
    ASSIGN_OR_RETURN(config, ReadConfigFile(given.config_path));
  }
  if (!given.listen.empty()) {
    config.listen_addresses = given.listen;
  }
  if (!given.unix_socket.empty()) {
    config.unix_socket = given.unix_socket;
  }
  if (!given.simulate.empty()) {
    RETURN_IF_ERROR(ApplySimulate(given.simulate, config));
  }
  config.insecure = config.insecure || given.insecure;
  if (!given.log_level.empty()) {
    // Through the file's parser, so that both have one list of levels.
    const std::string text = absl::StrFormat("[log]\nlevel = '%s'\n", given.log_level);
    ASSIGN_OR_RETURN(const ServerConfig level, ParseConfig(text, "--log-level"));
    config.log_level = level.log_level;
  }
  RETURN_IF_ERROR(CheckConfig(config));
  return config;
}

}  // namespace

absl::Status ApplySimulate(const std::string& text, ServerConfig& config) {
  const size_t colon = text.rfind(':');
  const std::string model = text.substr(0, colon);
  int count = 1;
  if (colon != std::string::npos) {
    const char* const begin = text.data() + colon + 1;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(begin, end, count);
    if (begin == end || rest != end || error != std::errc() || count < 0 ||
        count > kSimulatedDevicesMax) {
      count = 0;
    }
  }
  if (model.empty() || count == 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--simulate \"%s\": write MODEL or MODEL:COUNT with COUNT from 1 to %d, "
                        "such as V100-SXM2-16GB:4",
                        text, kSimulatedDevicesMax));
  }
  config.devices.sim_model = model;
  config.devices.sim_count = count;
  return absl::OkStatus();
}

absl::StatusOr<Flags> ParseFlags(int argc, const char* const* argv) {
  Flags flags;
  Given given;
  // CLI11 reports by exceptions; none leaves this function.
  try {
    CLI::App app(kAbout, "devserverd");
    AddOptions(app, given, flags);
    try {
      app.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
      flags.answer = app.help();
      return flags;
    } catch (const CLI::CallForVersion&) {
      flags.answer = app.version() + "\n";
      return flags;
    }
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s (devserverd --help explains)", error.what()));
  }
  ASSIGN_OR_RETURN(flags.config, Combine(given));
  return flags;
}

}  // namespace devserver
