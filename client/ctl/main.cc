// devserverctl: the terminal's way to a devserverd.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "absl/strings/str_format.h"
#include "client/ctl/program.h"
#include "client/ctl/text.h"

namespace devserver::ctl {
namespace {

constexpr char kAbout[] =
    "devserverctl talks to a devserverd: it lists devices, makes tensors on them, copies them,\n"
    "computes with them and moves files in and out.\n";

constexpr char kFooter[] = R"(
A first walk:
  devserverctl devices                          what there is
  devserverctl create 2,3 --ones                tensor 1 on cpu:0
  devserverctl create 3,2 --uniform -d gpu:1    tensor 2 on gpu:1
  devserverctl matmul 1 2                       refused: two devices; the error says the cure
  devserverctl copy 1 gpu:1                     tensor 3
  devserverctl matmul 3 2                       tensor 4
  devserverctl show 4                           its values
  devserverctl get 4 product.npy                as a NumPy file
  devserverctl smi                              who uses which memory
  devserverctl rm --all

Tensors belong to this host's default session: they stay between commands, grpcurl from here sees
the same ones, and the server forgets them after hours without a call.
devserverctl COMMAND --help explains a command. DEVSERVER_ADDRESS stands in for --server.
Exit status: 0 done, 1 the server refused, 2 wrong usage or a bad local file, 3 no server
answers.)";

void AddGlobalOptions(CLI::App& app, Program& program) {
  app.add_option("-s,--server", program.server, "Where the server is")
      ->envname("DEVSERVER_ADDRESS")
      ->capture_default_str()
      ->type_name("HOST:PORT|unix:PATH");
  app.add_flag("-j,--json", program.json, "Print one JSON document, as grpcurl would; errors too");
  app.add_option("-t,--timeout", program.timeout_seconds, "How long one call may take")
      ->capture_default_str()
      ->check(CLI::Range(0.001, 1e6))
      ->type_name("SECONDS");
  app.set_version_flag("-V,--version", std::string("devserverctl ") + DEVSERVER_VERSION);
  app.footer(kFooter);
}

int RefuseUsage(const Program& program, const std::string& message) {
  PrintError(program, Usage(absl::InvalidArgumentError(message)));
  return static_cast<int>(ExitCode::kUsage);
}

// The parts of the command line that CLI11 understood decide whose help to show.
int ReportParseError(const CLI::App& app, const Program& program, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) {
    return app.exit(error);  // --help and --version
  }
  const CLI::App* command = &app;
  for (const CLI::App* const given : app.get_subcommands()) {
    command = given;
  }
  const std::string name = command == &app ? "devserverctl" : "devserverctl " + command->get_name();
  return RefuseUsage(program, absl::StrFormat("%s (%s --help explains)", error.what(), name));
}

int Run(int argc, char** argv) {
  Program program;
  CLI::App app(kAbout, "devserverctl");
  app.fallthrough();  // The flags above also work after a command.
  AddGlobalOptions(app, program);
  AddDeviceCommands(app, program);
  AddSmiCommand(app, program);
  AddTensorCommands(app, program);
  AddCreateCommand(app, program);
  AddOpCommands(app, program);
  AddTransferCommands(app, program);
  AddBenchCommand(app, program);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return ReportParseError(app, program, error);
  }
  if (!program.run) {
    return RefuseUsage(program, "give a command (devserverctl --help lists them)");
  }
  absl::Status status = program.run();
  if (std::fflush(stdout) != 0 && status.ok()) {
    status = Usage(absl::UnavailableError("can't write to stdout"));
  }
  if (!status.ok()) {
    PrintError(program, status);
  }
  return static_cast<int>(ExitCodeOf(status));
}

}  // namespace
}  // namespace devserver::ctl

int main(int argc, char** argv) {
  // What third parties throw (out of memory, a wrong option table) ends here.
  try {
    return devserver::ctl::Run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "devserverctl: %s\n", error.what());
    return static_cast<int>(devserver::ctl::ExitCode::kUsage);
  }
}
