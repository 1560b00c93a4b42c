// What all commands of devserverctl share: the flags before any command, how a command ends, and
// where they register.
//
// Each command describes itself to CLI11 (options and a help text with examples) and stores its
// work in Program::run, which main() calls once the whole command line has been understood. Thread
// safety: one thread.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace devserver::ctl {

inline constexpr char kDefaultServer[] = "127.0.0.1:50151";

// devserverctl's exit codes.
enum class ExitCode : int {
  kOk = 0,
  kRefused = 1,      // the server said no
  kUsage = 2,        // the command line or a file of the caller's is wrong
  kUnreachable = 3,  // no server answers
};

struct Program {
  std::string server = kDefaultServer;  // "HOST:PORT" or "unix:PATH"
  bool json = false;
  double timeout_seconds = 60;
  std::function<absl::Status()> run;  // of the command that was given

  absl::Duration timeout() const { return absl::Seconds(timeout_seconds); }
};

// `status` marked as the caller's own mistake (exit code 2) or as a server that doesn't answer (3).
// An error without a mark is the server's refusal (1).
absl::Status Usage(absl::Status status);
absl::Status Unreachable(absl::Status status);
ExitCode ExitCodeOf(const absl::Status& status);

// Writes the error to stderr: its code, its message and, where the server knows one, the command
// that mends it. With --json also as the one document on stdout.
void PrintError(const Program& program, const absl::Status& status);

// A subcommand whose help ends in `examples`, lines such as "  devserverctl rm 3".
CLI::App* AddCommand(CLI::App& app, const std::string& name, const std::string& about,
                     const std::string& examples);

void AddDeviceCommands(CLI::App& app, Program& program);    // devices, sessions, ops, health, wait
void AddSmiCommand(CLI::App& app, Program& program);        // smi
void AddTensorCommands(CLI::App& app, Program& program);    // ps, show, copy, rm
void AddCreateCommand(CLI::App& app, Program& program);     // create
void AddOpCommands(CLI::App& app, Program& program);        // matmul, dense, apply
void AddTransferCommands(CLI::App& app, Program& program);  // put, get
void AddBenchCommand(CLI::App& app, Program& program);      // bench

}  // namespace devserver::ctl
