// smi: the table people know from nvidia-smi, with sessions in place of processes.
#include <unistd.h>

#include <array>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/ctl/program.h"
#include "client/ctl/server.h"
#include "client/ctl/text.h"
#include "server/base/status_macros.h"

namespace devserver::ctl {
namespace {

// nvidia-smi's own widths, between the bars.
constexpr std::array<size_t, 3> kCellWidths = {41, 24, 22};
constexpr size_t kInnerWidth = 41 + 24 + 22 + 2;

constexpr auto kRight = Table::Align::kRight;

std::string Rule(char fill) {
  return absl::StrFormat("+%s+%s+%s+\n", std::string(kCellWidths[0], fill),
                         std::string(kCellWidths[1], fill), std::string(kCellWidths[2], fill));
}

std::string HeaderRule(char fill) {
  std::string rule = Rule(fill);
  rule.front() = '|';
  rule[rule.size() - 2] = '|';
  return rule;
}

std::string WideRule(char end, char fill) {
  return absl::StrFormat("%c%s%c\n", end, std::string(kInnerWidth, fill), end);
}

std::string WideRow(std::string_view text) {
  return absl::StrFormat("| %s |\n", Padded(text, kInnerWidth - 2));
}

// `left` and `right` at the two ends of a cell.
std::string Ends(const std::string& left, const std::string& right, size_t width) {
  const size_t room = width - 2;
  const size_t right_width = WidthOf(right);
  if (right_width + 1 >= room) {
    return Padded(right, room, kRight);
  }
  return Padded(left, room - right_width - 1) + " " + right;
}

std::string Row(const std::array<std::string, 3>& left, const std::array<std::string, 3>& right) {
  std::string row = "|";
  for (size_t i = 0; i < kCellWidths.size(); ++i) {
    row += absl::StrFormat(" %s |", Ends(left[i], right[i], kCellWidths[i]));
  }
  return row + "\n";
}

// As nvidia-smi writes memory, but small amounts in their own unit: a test tensor should show.
std::string MemoryText(uint64_t bytes) {
  if (bytes < 10 * 1024) {
    return absl::StrFormat("%dB", bytes);
  }
  if (bytes < 10 * 1024 * 1024) {
    return absl::StrFormat("%dKiB", bytes / 1024);
  }
  return absl::StrFormat("%dMiB", bytes / (1024 * 1024));
}

std::string Optional(bool has, double value, std::string_view unit) {
  return has ? absl::StrFormat("%.0f%s", value, unit) : std::string("N/A");
}

std::string DeviceRows(const v1::Device& device) {
  const v1::Telemetry& telemetry = device.telemetry();
  const bool simulated = device.kind() == v1::Device::SIMULATED;
  const std::string kind = simulated                           ? "simulated"
                           : device.kind() == v1::Device::CUDA ? "cuda"
                                                               : "cpu";
  const std::string power = absl::StrFormat(
      "%s / %s", Optional(telemetry.has_power_watts(), telemetry.power_watts(), "W"),
      Optional(telemetry.has_power_limit_watts(), telemetry.power_limit_watts(), "W"));
  const std::string memory = absl::StrFormat("%s / %s", MemoryText(device.memory_used_bytes()),
                                             MemoryText(device.memory_limit_bytes()));
  const std::string clock = simulated ? SecondsText(device.simulated_seconds()) : "N/A";
  const std::string health = device.health() == v1::Device::LOST ? "LOST" : "OK";
  const std::string bus = device.pci_bus_id().empty() ? "N/A" : Printable(device.pci_bus_id());
  return Row({absl::StrFormat("%-6s %s", Printable(device.name()), Printable(device.model())), bus,
              std::to_string(device.tensors())},
             {kind, health, std::to_string(device.queued_commands())}) +
         Row({Optional(telemetry.has_temperature_celsius(), telemetry.temperature_celsius(), "C"),
              "", PercentText(telemetry.utilization())},
             {power, memory, clock});
}

std::string DeviceTable(const Program& program, const v1::ListDevicesReply& reply) {
  std::string table = WideRule('+', '-');
  table += WideRow(absl::StrFormat("DEVSERVER-SMI %s      Server: %s at %s", DEVSERVER_VERSION,
                                   Printable(reply.server()), program.server));
  table += HeaderRule('-');
  table += Row({"Device Name", "Bus-Id", "Tensors"}, {"Kind", "Health", "Queued"});
  table += Row({"Temp", "", "Util"}, {"Pwr:Usage/Cap", "Memory-Usage", "Simulated clock"});
  table += HeaderRule('=');
  for (const v1::Device& device : reply.devices()) {
    table += DeviceRows(device) + Rule('-');
  }
  if (!reply.no_gpu_reason().empty()) {
    // In lines of the table's width, broken at spaces.
    std::string line = "No real GPU:";
    std::string word;
    for (const char c : Printable(reply.no_gpu_reason()) + " ") {
      if (c != ' ') {
        word += c;
        continue;
      }
      if (WidthOf(line) + 1 + WidthOf(word) > kInnerWidth) {
        table += line + "\n";
        line = "  " + word;
      } else {
        line += " " + word;
      }
      word.clear();
    }
    table += line + "\n";
  }
  return table;
}

std::string SessionRow(std::string_view device, std::string_view name, std::string_view peer,
                       std::string_view lease, std::string_view memory) {
  return WideRow(absl::StrFormat(" %s %s %s %s %s", Padded(device, 8), Padded(name, 32),
                                 Padded(peer, 22), Padded(lease, 8, kRight),
                                 Padded(memory, 12, kRight)));
}

std::string SessionTable(const v1::ListSessionsReply& reply) {
  std::string table = WideRule('+', '-') + WideRow("Sessions:");
  table += SessionRow("Device", "Session name", "Peer", "Lease", "Memory");
  table += SessionRow("", "", "", "left", "usage");
  table += WideRule('|', '=');
  bool any = false;
  for (const v1::Session& session : reply.sessions()) {
    const std::string name =
        Printable(session.is_default() ? session.name() + " (default)" : session.name());
    const std::string lease = AgeText(session.lease_remaining_seconds());
    const std::map<std::string, uint64_t> devices(session.bytes_by_device().begin(),
                                                  session.bytes_by_device().end());
    bool holds = false;
    for (const auto& [device, bytes] : devices) {
      if (bytes > 0) {
        holds = true;
        table += SessionRow(Printable(device), name, Printable(session.peer()), lease,
                            MemoryText(bytes));
      }
    }
    if (!holds) {
      table += SessionRow("-", name, Printable(session.peer()), lease, "0B");
    }
    any = true;
  }
  if (!any) {
    table += WideRow(" No sessions");
  }
  return table + WideRule('+', '-');
}

std::string NowText() {
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
  localtime_r(&now, &local);
  char text[64];
  const size_t size = std::strftime(text, sizeof text, "%a %b %e %H:%M:%S %Y\n", &local);
  return {text, size};
}

absl::StatusOr<v1::ListSessionsReply> ListSessions(const Server& server) {
  return server.Call(server.sessions(), &v1::SessionService::Stub::ListSessions,
                     v1::ListSessionsRequest());
}

absl::Status ShowOnce(const Program& program, const Server& server,
                      const v1::ListDevicesReply& devices) {
  ASSIGN_OR_RETURN(const v1::ListSessionsReply sessions, ListSessions(server));
  if (program.json) {
    Json json = ToJson(devices);
    json["sessions"] = ToJson(sessions)["sessions"];
    PrintJson(json);
    return absl::OkStatus();
  }
  Print(NowText() + DeviceTable(program, devices) + "\n" + SessionTable(sessions));
  return absl::OkStatus();
}

// The server sends the list every `interval_seconds`; each makes a screen.
absl::Status Watch(const Program& program, const Server& server, double interval_seconds,
                   uint64_t count) {
  grpc::ClientContext context;
  v1::WatchDevicesRequest request;
  request.set_interval_seconds(interval_seconds);
  const auto stream = server.devices().WatchDevices(&context, request);
  v1::ListDevicesReply reply;
  for (uint64_t shown = 0; (count == 0 || shown < count) && stream->Read(&reply); ++shown) {
    if (isatty(STDOUT_FILENO) == 1) {
      Print("\033[H\033[2J");
    }
    RETURN_IF_ERROR(ShowOnce(program, server, reply));
    std::fflush(stdout);
  }
  context.TryCancel();
  const grpc::Status status = stream->Finish();
  if (status.ok() || status.error_code() == grpc::StatusCode::CANCELLED) {
    return absl::OkStatus();
  }
  return server.Refusal(status);
}

absl::Status Smi(const Program& program, double interval_seconds, uint64_t count) {
  if (interval_seconds > 0 && program.json) {
    return Usage(absl::InvalidArgumentError(
        "--json prints one document, --watch many screens: leave one of them out"));
  }
  ASSIGN_OR_RETURN(const Server server, Server::Connect(program));
  if (interval_seconds > 0) {
    return Watch(program, server, interval_seconds, count);
  }
  ASSIGN_OR_RETURN(const v1::ListDevicesReply devices,
                   server.Call(server.devices(), &v1::DeviceService::Stub::ListDevices,
                               v1::ListDevicesRequest()));
  return ShowOnce(program, server, devices);
}

}  // namespace

void AddSmiCommand(CLI::App& app, Program& program) {
  CLI::App* const smi =
      AddCommand(app, "smi", "Devices and sessions at a glance, as nvidia-smi shows a machine",
                 "  devserverctl smi\n"
                 "  devserverctl smi --watch 1     again every second, until Ctrl-C\n"
                 "  devserverctl smi --json\n"
                 "A simulated GPU computes on the CPU; its clock says how long the real one would "
                 "have taken.");
  auto interval = std::make_shared<double>(0);
  auto count = std::make_shared<uint64_t>(0);
  smi->add_option("-w,--watch", *interval, "Show it again and again")
      ->check(CLI::Range(0.05, 86400.0))
      ->type_name("SECONDS");
  smi->add_option("-n,--count", *count, "With --watch: end after so many")->type_name("N");
  smi->callback([&program, interval, count] {
    program.run = [&program, interval, count] { return Smi(program, *interval, *count); };
  });
}

}  // namespace devserver::ctl
