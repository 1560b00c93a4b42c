#include "client/ctl/program.h"

#include <cstdio>
#include <optional>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_format.h"
#include "client/ctl/text.h"
#include "server/base/error_details.h"

namespace devserver::ctl {
namespace {

// The payload that carries a mark; its bytes are the exit code as text.
constexpr char kMark[] = "devserverctl/exit-code";

absl::Status Marked(absl::Status status, const char* code) {
  status.SetPayload(kMark, absl::Cord(code));
  return status;
}

std::string ReasonName(const ErrorDetails& details) {
  return v1::OpError::Reason_Name(static_cast<v1::OpError::Reason>(details.reason));
}

// The command that would mend `details`; empty if none is known.
std::string CureCommand(const Program& program, const std::optional<ErrorDetails>& details) {
  if (!details.has_value() || details->cure_source == 0 || details->cure_device.empty()) {
    return "";
  }
  const std::string server =
      program.server == kDefaultServer ? "" : absl::StrFormat("--server %s ", program.server);
  return absl::StrFormat("devserverctl %scopy %d %s", server, details->cure_source,
                         Printable(details->cure_device));
}

void PrintErrorJson(const std::string& code, const std::string& message,
                    const std::optional<ErrorDetails>& details, const std::string& cure) {
  Json error = {{"code", code}, {"message", message}};
  if (details.has_value()) {
    error["reason"] = ReasonName(*details);
    if (details->origin_tensor != 0) {
      error["originTensor"] = std::to_string(details->origin_tensor);
    }
    if (!details->device.empty()) {
      error["device"] = details->device;
    }
    if (details->limit != 0) {
      error["amount"] = {{"asked", std::to_string(details->asked)},
                         {"used", std::to_string(details->used)},
                         {"limit", std::to_string(details->limit)}};
    }
  }
  if (!cure.empty()) {
    error["cure"] = cure;
  }
  PrintJson(Json{{"error", error}});
}

}  // namespace

absl::Status Usage(absl::Status status) {
  return status.ok() ? status : Marked(std::move(status), "2");
}

absl::Status Unreachable(absl::Status status) { return Marked(std::move(status), "3"); }

ExitCode ExitCodeOf(const absl::Status& status) {
  if (status.ok()) {
    return ExitCode::kOk;
  }
  const absl::optional<absl::Cord> mark = status.GetPayload(kMark);
  if (!mark.has_value()) {
    return ExitCode::kRefused;
  }
  return *mark == "2" ? ExitCode::kUsage : ExitCode::kUnreachable;
}

void PrintError(const Program& program, const absl::Status& status) {
  const std::string code = absl::StatusCodeToString(status.code());
  const std::string message(status.message());
  const std::optional<ErrorDetails> details = DetailsOf(status);
  const std::string cure = CureCommand(program, details);
  std::string text = absl::StrFormat("devserverctl: %s: %s\n", code, Printable(message));
  if (!cure.empty()) {
    std::string price = BytesText(details->cure_bytes);
    price += details->cure_seconds < 0
                 ? ", how long is unknown"
                 : absl::StrFormat(", about %s", SecondsText(details->cure_seconds));
    absl::StrAppendFormat(&text, "  cure: %s    (%s)\n", cure, price);
  }
  std::fputs(text.c_str(), stderr);
  if (program.json) {
    PrintErrorJson(code, message, details, cure);
  }
}

CLI::App* AddCommand(CLI::App& app, const std::string& name, const std::string& about,
                     const std::string& examples) {
  CLI::App* const command = app.add_subcommand(name, about);
  command->footer("Examples:\n" + examples);
  return command;
}

}  // namespace devserver::ctl
