// bench: what this server does per second, from here. Measured and simulated figures are never
// mixed: a simulated GPU's results take this machine's time, its model says what the real one would
// take.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/ctl/program.h"
#include "client/ctl/server.h"
#include "client/ctl/text.h"
#include "devserver/ops.h"
#include "server/base/status_macros.h"

namespace devserver::ctl {
namespace {

using client::Client;
using client::Device;
using client::Tensor;

constexpr int kRounds = 5;  // The median of so few is steady enough for a look.
constexpr int kUnaryCalls = 300;
constexpr int kPipelinedOps = 2000;  // Enough that the one wait at the end doesn't show.
constexpr int64_t kSmallOpSize = 16;
constexpr uint64_t kBytesPerMib = 1024 * 1024;

struct BenchArgs {
  std::string device;
  int64_t size = 1024;
  uint64_t mib = 64;
};

// One line of the report.
struct Figure {
  std::string what;
  double measured_seconds = 0;
  double simulated_seconds = 0;  // 0: no simulated clock moved
  double amount = 0;             // bytes, operations or floating-point operations in that time
  enum class Unit { kSeconds, kBytes, kOps, kFlops } unit = Unit::kSeconds;
};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

std::string AmountText(const Figure& figure, double seconds) {
  if (seconds <= 0) {
    return "";
  }
  const double rate = figure.amount / seconds;
  switch (figure.unit) {
    case Figure::Unit::kBytes:
      return RateText(rate);
    case Figure::Unit::kOps:
      return absl::StrFormat("%.0f /s", rate);
    case Figure::Unit::kFlops:
      return absl::StrFormat("%.1f GFLOP/s", rate / 1e9);
    case Figure::Unit::kSeconds:
      break;
  }
  return "";
}

absl::StatusOr<double> SimulatedClock(const Client& client, const Device& device) {
  ASSIGN_OR_RETURN(const client::DeviceList list, client.devices());
  for (const client::DeviceInfo& info : list.devices) {
    if (info.name == device.name()) {
      return info.simulated_seconds;
    }
  }
  return absl::NotFoundError(absl::StrFormat("%s is gone", device.name()));
}

// Runs `work` once to warm up and kRounds times for the median. The simulated clock's share of a
// round goes with it.
absl::StatusOr<Figure> MeasureRounds(const Client& client, const Device& device, std::string what,
                                     const std::function<absl::Status()>& work) {
  RETURN_IF_ERROR(work());
  ASSIGN_OR_RETURN(const double clock_before, SimulatedClock(client, device));
  std::vector<double> seconds;
  for (int i = 0; i < kRounds; ++i) {
    const double start = Now();
    RETURN_IF_ERROR(work());
    seconds.push_back(Now() - start);
  }
  ASSIGN_OR_RETURN(const double clock_after, SimulatedClock(client, device));
  Figure figure;
  figure.what = std::move(what);
  figure.measured_seconds = Median(seconds);
  figure.simulated_seconds = (clock_after - clock_before) / kRounds;
  return figure;
}

absl::StatusOr<std::vector<Figure>> BenchTransfers(const Client& client, const Device& device,
                                                   uint64_t mib) {
  std::vector<std::byte> bytes(mib * kBytesPerMib, std::byte{1});
  const TensorSpec spec = {DType::kU8, Shape::Of({static_cast<int64_t>(bytes.size())})};
  Tensor tensor;
  ASSIGN_OR_RETURN(Figure up,
                   MeasureRounds(client, device, absl::StrFormat("upload %d MiB", mib), [&] {
                     tensor = client::upload(spec, bytes, device);
                     return tensor.sync();
                   }));
  ASSIGN_OR_RETURN(Figure down,
                   MeasureRounds(client, device, absl::StrFormat("download %d MiB", mib),
                                 [&] { return tensor.fetch_into(bytes); }));
  for (Figure* const figure : {&up, &down}) {
    figure->amount = static_cast<double>(bytes.size());
    figure->unit = Figure::Unit::kBytes;
  }
  return std::vector<Figure>{up, down};
}

absl::StatusOr<std::vector<Figure>> BenchOps(const Client& client, const Device& device,
                                             int64_t size) {
  const Tensor small = client::ones({kSmallOpSize}, device);
  ASSIGN_OR_RETURN(Figure pipelined, MeasureRounds(client, device,
                                                   absl::StrFormat("%d pipelined adds of %d f32",
                                                                   kPipelinedOps, kSmallOpSize),
                                                   [&] {
                                                     Tensor sum = small;
                                                     for (int i = 0; i < kPipelinedOps; ++i) {
                                                       sum = client::add(sum, small);
                                                     }
                                                     return sum.sync();
                                                   }));
  pipelined.amount = kPipelinedOps;
  pipelined.unit = Figure::Unit::kOps;
  ASSIGN_OR_RETURN(const Figure round_trip, MeasureRounds(client, device, "one add, fetched", [&] {
                     return (small + small).fetch<float>().status();
                   }));
  const Tensor a = client::uniform({size, size}, device, {.seed = 1});
  const Tensor b = client::uniform({size, size}, device, {.seed = 2});
  ASSIGN_OR_RETURN(
      Figure matmul,
      MeasureRounds(client, device, absl::StrFormat("matmul f32 %dx%dx%d", size, size, size),
                    [&] { return client::matmul(a, b).sync(); }));
  const auto n = static_cast<double>(size);
  matmul.amount = 2 * n * n * n;
  matmul.unit = Figure::Unit::kFlops;
  return std::vector<Figure>{pipelined, round_trip, matmul};
}

absl::StatusOr<Figure> BenchUnary(const Server& server) {
  v1::GetDeviceRequest request;
  request.set_name("cpu:0");
  std::vector<double> seconds;
  for (int i = 0; i < kUnaryCalls; ++i) {
    const double start = Now();
    RETURN_IF_ERROR(
        server.Call(server.devices(), &v1::DeviceService::Stub::GetDevice, request).status());
    seconds.push_back(Now() - start);
  }
  Figure figure;
  figure.what = "unary call (GetDevice)";
  figure.measured_seconds = Median(seconds);
  return figure;
}

Json FigureJson(const Figure& figure) {
  Json json = {{"what", figure.what}, {"measuredSeconds", figure.measured_seconds}};
  const auto add = [&](const std::string& kind, double seconds) {
    if (seconds <= 0 || figure.unit == Figure::Unit::kSeconds) {
      return;
    }
    const std::string unit = figure.unit == Figure::Unit::kBytes ? "BytesPerSecond"
                             : figure.unit == Figure::Unit::kOps ? "OpsPerSecond"
                                                                 : "FlopsPerSecond";
    json[kind + unit] = figure.amount / seconds;
  };
  add("measured", figure.measured_seconds);
  if (figure.simulated_seconds > 0) {
    json["simulatedSeconds"] = figure.simulated_seconds;
    add("simulated", figure.simulated_seconds);
  }
  return json;
}

void PrintFigures(const std::string& where, const std::vector<Figure>& figures) {
  using enum Table::Align;
  Table table(
      {{where}, {"MEASURED", kRight}, {"RATE", kRight}, {"SIMULATED", kRight}, {"RATE", kRight}});
  for (const Figure& figure : figures) {
    const double simulated = figure.simulated_seconds;
    table.AddRow({figure.what, SecondsText(figure.measured_seconds),
                  AmountText(figure, figure.measured_seconds),
                  simulated > 0 ? SecondsText(simulated) : "-", AmountText(figure, simulated)});
  }
  Print(table.ToString() + "\n");
}

absl::StatusOr<std::vector<Device>> ChooseDevices(const Client& client, const std::string& name) {
  if (!name.empty()) {
    ASSIGN_OR_RETURN(Device device, client.device(name));
    return std::vector<Device>{std::move(device)};
  }
  std::vector<Device> devices = {client.cpu()};
  for (int i = 0; i < client.num_gpus(); ++i) {
    ASSIGN_OR_RETURN(Device gpu, client.gpu(i));
    devices.push_back(std::move(gpu));
  }
  return devices;
}

absl::Status Bench(const Program& program, const BenchArgs& args) {
  ASSIGN_OR_RETURN(const Server server, Server::Connect(program));
  ASSIGN_OR_RETURN(const Client client, ConnectClient(program, /*default_session=*/false));
  ASSIGN_OR_RETURN(const std::vector<Device> devices, ChooseDevices(client, args.device));
  ASSIGN_OR_RETURN(const Figure unary, BenchUnary(server));
  Json json = {
      {"server", program.server}, {"unary", FigureJson(unary)}, {"devices", Json::array()}};
  if (!program.json) {
    PrintFigures("server " + program.server, {unary});
  }
  for (const Device& device : devices) {
    ASSIGN_OR_RETURN(std::vector<Figure> figures, BenchTransfers(client, device, args.mib));
    ASSIGN_OR_RETURN(const std::vector<Figure> ops, BenchOps(client, device, args.size));
    figures.insert(figures.end(), ops.begin(), ops.end());
    if (!program.json) {
      PrintFigures(device.name() + "  " + device.info().model, figures);
      continue;
    }
    Json of_device = {{"device", device.name()},
                      {"model", device.info().model},
                      {"kind", client::DeviceKindName(device.info().kind)},
                      {"figures", Json::array()}};
    for (const Figure& figure : figures) {
      of_device["figures"].push_back(FigureJson(figure));
    }
    json["devices"].push_back(std::move(of_device));
  }
  if (program.json) {
    PrintJson(json);
  } else {
    Print(absl::StrFormat(
        "MEASURED: medians of %d from this terminal, over the wire. SIMULATED: what the modelled "
        "GPU's own\nclock says, without the wire.\n",
        kRounds));
  }
  return absl::OkStatus();
}

}  // namespace

void AddBenchCommand(CLI::App& app, Program& program) {
  CLI::App* const bench =
      AddCommand(app, "bench", "Measure transfers, small ops and matmul on each device",
                 "  devserverctl bench\n"
                 "  devserverctl bench --device gpu:0 --size 2048\n"
                 "It runs in a session of its own and leaves nothing behind.");
  auto args = std::make_shared<BenchArgs>();
  bench->add_option("-d,--device", args->device, "Only this one")->type_name("NAME");
  bench->add_option("--size", args->size, "Rows and columns of the matmul")
      ->capture_default_str()
      ->check(CLI::Range(1, 32768))
      ->type_name("N");
  bench->add_option("--mib", args->mib, "MiB to move")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536))
      ->type_name("N");
  bench->callback(
      [&program, args] { program.run = [&program, args] { return Bench(program, *args); }; });
}

}  // namespace devserver::ctl
