// devices, sessions, ops, health, wait: what the server says about itself.
#include <memory>
#include <string>

#include "absl/strings/str_format.h"
#include "client/ctl/program.h"
#include "client/ctl/server.h"
#include "client/ctl/text.h"
#include "server/base/status_macros.h"

namespace devserver::ctl {
namespace {

std::string KindText(v1::Device::Kind kind) {
  switch (kind) {
    case v1::Device::CPU:
      return "cpu";
    case v1::Device::CUDA:
      return "cuda";
    case v1::Device::SIMULATED:
      return "simulated";
    default:
      return "unknown";
  }
}

absl::Status ListDevices(const Program& program) {
  ASSIGN_OR_RETURN(const Server server, Server::Connect(program));
  ASSIGN_OR_RETURN(const v1::ListDevicesReply reply,
                   server.Call(server.devices(), &v1::DeviceService::Stub::ListDevices,
                               v1::ListDevicesRequest()));
  if (program.json) {
    PrintJson(reply);
    return absl::OkStatus();
  }
  using enum Table::Align;
  Table table({{"DEVICE"},
               {"KIND"},
               {"MODEL"},
               {"USED", kRight},
               {"LIMIT", kRight},
               {"UTIL", kRight},
               {"TENSORS", kRight},
               {"QUEUED", kRight},
               {"HEALTH"}});
  for (const v1::Device& device : reply.devices()) {
    table.AddRow({device.name(), KindText(device.kind()), device.model(),
                  BytesText(device.memory_used_bytes()), BytesText(device.memory_limit_bytes()),
                  PercentText(device.telemetry().utilization()), std::to_string(device.tensors()),
                  std::to_string(device.queued_commands()),
                  device.health() == v1::Device::LOST ? "LOST" : "ok"});
  }
  Print(table.ToString());
  if (!reply.no_gpu_reason().empty()) {
    Print(absl::StrFormat("No real GPU: %s\n", Printable(reply.no_gpu_reason())));
  }
  return absl::OkStatus();
}

absl::Status ShowDevice(const Program& program, const std::string& name) {
  ASSIGN_OR_RETURN(const Server server, Server::Connect(program));
  v1::GetDeviceRequest request;
  request.set_name(name);
  ASSIGN_OR_RETURN(const v1::Device device,
                   server.Call(server.devices(), &v1::DeviceService::Stub::GetDevice, request));
  if (program.json) {
    PrintJson(device);
    return absl::OkStatus();
  }
  const v1::Telemetry& telemetry = device.telemetry();
  const auto known = [](bool has, double value, std::string_view unit) {
    return has ? absl::StrFormat("%.0f %s", value, unit) : std::string("unknown");
  };
  Print(absl::StrFormat(
      "%s  %s, %s\n"
      "  uuid        %s\n"
      "  pci bus id  %s\n"
      "  memory      %s used of %s, %s more held for reuse, peak %s\n"
      "  load        %s over the last second, %s busy so far, %d queued commands, %d tensors\n"
      "  telemetry   temperature %s, power %s of %s\n",
      Printable(device.name()), Printable(device.model()), KindText(device.kind()),
      device.uuid().empty() ? "none" : Printable(device.uuid()),
      device.pci_bus_id().empty() ? "none" : Printable(device.pci_bus_id()),
      BytesText(device.memory_used_bytes()), BytesText(device.memory_limit_bytes()),
      BytesText(device.memory_reserved_bytes()), BytesText(device.memory_peak_bytes()),
      PercentText(telemetry.utilization()), SecondsText(telemetry.busy_seconds()),
      device.queued_commands(), device.tensors(),
      known(telemetry.has_temperature_celsius(), telemetry.temperature_celsius(), "C"),
      known(telemetry.has_power_watts(), telemetry.power_watts(), "W"),
      known(telemetry.has_power_limit_watts(), telemetry.power_limit_watts(), "W")));
  if (device.kind() == v1::Device::SIMULATED) {
    Print(absl::StrFormat("  simulated   its own clock is at %s\n",
                          SecondsText(device.simulated_seconds())));
  }
  return absl::OkStatus();
}

std::string BytesByDevice(const v1::Session& session) {
  const std::map<std::string, uint64_t> sorted(session.bytes_by_device().begin(),
                                               session.bytes_by_device().end());
  std::string text;
  for (const auto& [device, bytes] : sorted) {
    if (bytes > 0) {
      absl::StrAppendFormat(&text, "%s%s %s", text.empty() ? "" : ", ", device, BytesText(bytes));
    }
  }
  return text.empty() ? "-" : text;
}

absl::Status ListSessions(const Program& program) {
  ASSIGN_OR_RETURN(const Server server, Server::Connect(program));
  ASSIGN_OR_RETURN(const v1::ListSessionsReply reply,
                   server.Call(server.sessions(), &v1::SessionService::Stub::ListSessions,
                               v1::ListSessionsRequest()));
  if (program.json) {
    PrintJson(reply);
    return absl::OkStatus();
  }
  using enum Table::Align;
  Table table({{"SESSION"},
               {"PEER"},
               {"AGE", kRight},
               {"LEASE LEFT", kRight},
               {"TENSORS", kRight},
               {"DONE", kRight},
               {"QUEUED", kRight},
               {"COPIED", kRight},
               {"MEMORY"}});
  for (const v1::Session& session : reply.sessions()) {
    table.AddRow({session.is_default() ? session.name() + " (default)" : session.name(),
                  session.peer(), AgeText(session.age_seconds()),
                  AgeText(session.lease_remaining_seconds()), std::to_string(session.tensors()),
                  std::to_string(session.commands_done()),
                  std::to_string(session.commands_queued()), BytesText(session.bytes_copied()),
                  BytesByDevice(session)});
  }
  Print(table.ToString());
  return absl::OkStatus();
}

std::string DTypesText(const v1::DTypes& dtypes) {
  std::string text;
  for (const int dtype : dtypes.dtypes()) {
    text += (text.empty() ? "" : " ") + DTypeText(static_cast<v1::DType>(dtype));
  }
  return text;
}

std::string InputsText(const v1::OpDescription& op) {
  return op.inputs_min() == op.inputs_max()
             ? std::to_string(op.inputs_min())
             : absl::StrFormat("%d-%d", op.inputs_min(), op.inputs_max());
}

void PrintOpTable(const v1::ListOpsReply& reply) {
  Table table({{"OP"}, {"INPUTS"}, {"DTYPES"}, {"ATTRIBUTES"}});
  for (const v1::OpDescription& op : reply.ops()) {
    std::string dtypes;
    for (const auto& [device, set] : op.dtypes_by_device()) {
      // Most devices agree; `ops NAME` shows each.
      const std::string text = DTypesText(set);
      dtypes = text.size() > dtypes.size() ? text : dtypes;
    }
    table.AddRow({op.name(), InputsText(op), dtypes, op.attributes()});
  }
  Print(table.ToString());
}

void PrintOp(const v1::OpDescription& op) {
  Print(absl::StrFormat("%s  %s inputs\n  result      %s\n  attributes  %s\n  error       %s\n",
                        Printable(op.name()), InputsText(op), Printable(op.result()),
                        op.attributes().empty() ? "none" : Printable(op.attributes()),
                        Printable(op.error_bound())));
  const std::map<std::string, v1::DTypes> sorted(op.dtypes_by_device().begin(),
                                                 op.dtypes_by_device().end());
  for (const auto& [device, dtypes] : sorted) {
    Print(absl::StrFormat("  on %-8s %s\n", Printable(device), DTypesText(dtypes)));
  }
}

absl::Status ListOps(const Program& program, const std::string& name, const std::string& device) {
  ASSIGN_OR_RETURN(const Server server, Server::Connect(program));
  v1::ListOpsRequest request;
  request.set_device(device);
  ASSIGN_OR_RETURN(const v1::ListOpsReply reply,
                   server.Call(server.devices(), &v1::DeviceService::Stub::ListOps, request));
  if (name.empty()) {
    program.json ? PrintJson(reply) : PrintOpTable(reply);
    return absl::OkStatus();
  }
  for (const v1::OpDescription& op : reply.ops()) {
    if (op.name() == name) {
      program.json ? PrintJson(op) : PrintOp(op);
      return absl::OkStatus();
    }
  }
  return absl::NotFoundError(absl::StrFormat(
      "server %s has no op \"%s\"; devserverctl ops lists them", program.server, name));
}

absl::Status CheckHealth(const Program& program, const std::string& service) {
  ASSIGN_OR_RETURN(const Server server, Server::Connect(program));
  ASSIGN_OR_RETURN(const bool serving, server.IsServing(service));
  if (!serving) {
    return absl::UnavailableError(
        absl::StrFormat("server %s is up but not serving: starting or stopping", program.server));
  }
  program.json ? PrintJson(Json{{"status", "SERVING"}}) : Print("SERVING\n");
  return absl::OkStatus();
}

absl::Status Wait(const Program& program, double seconds) {
  RETURN_IF_ERROR(Server::WaitUntilServing(program, absl::Seconds(seconds)));
  program.json ? PrintJson(Json{{"status", "SERVING"}}) : Print("SERVING\n");
  return absl::OkStatus();
}

void AddOpsCommand(CLI::App& app, Program& program) {
  CLI::App* const ops = AddCommand(app, "ops", "List the ops, or explain one",
                                   "  devserverctl ops                 all, with their dtypes\n"
                                   "  devserverctl ops softmax         result, attributes, error\n"
                                   "  devserverctl ops --device gpu:0  those that gpu:0 has");
  auto op = std::make_shared<std::string>();
  auto device = std::make_shared<std::string>();
  ops->add_option("OP", *op, "Only this one, in detail");
  ops->add_option("-d,--device", *device, "Only what this device has")->type_name("NAME");
  ops->callback([&program, op, device] {
    program.run = [&program, op, device] { return ListOps(program, *op, *device); };
  });
}

}  // namespace

void AddDeviceCommands(CLI::App& app, Program& program) {
  CLI::App* const devices =
      AddCommand(app, "devices", "List the devices, or show one",
                 "  devserverctl devices\n"
                 "  devserverctl devices gpu:0         one, with all that is known of it\n"
                 "  devserverctl devices --json");
  auto name = std::make_shared<std::string>();
  devices->add_option("NAME", *name, "Only this one, in detail: gpu:0, cpu, cuda:1");
  devices->callback([&program, name] {
    program.run = [&program, name] {
      return name->empty() ? ListDevices(program) : ShowDevice(program, *name);
    };
  });

  CLI::App* const sessions =
      AddCommand(app, "sessions", "List who is there, and what each holds",
                 "  devserverctl sessions\n"
                 "  devserverctl ps --all              their tensors one by one");
  sessions->callback([&program] { program.run = [&program] { return ListSessions(program); }; });

  AddOpsCommand(app, program);

  CLI::App* const health =
      AddCommand(app, "health", "Ask whether the server serves (exit 0), or is starting (exit 1)",
                 "  devserverctl health && echo up");
  auto service = std::make_shared<std::string>();
  health->add_option("--service", *service, "One service instead of the whole server")
      ->type_name("NAME");
  health->callback([&program, service] {
    program.run = [&program, service] { return CheckHealth(program, *service); };
  });

  CLI::App* const wait = AddCommand(app, "wait", "Return as soon as the server serves",
                                    "  devserverd & devserverctl wait --for 30 && ./train");
  auto seconds = std::make_shared<double>(60);
  wait->add_option("--for", *seconds, "Give up after so long (exit 3)")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber)
      ->type_name("SECONDS");
  wait->callback([&program, seconds] {
    program.run = [&program, seconds] { return Wait(program, *seconds); };
  });
}

}  // namespace devserver::ctl
