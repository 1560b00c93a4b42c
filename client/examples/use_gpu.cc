// The frameworks' chapter on devices ("Use GPU"), step by step, on a devserverd: where tensors
// live, what moving them costs, and the chapter's four exercises with their timings. Needs a server
// with two GPUs, real or simulated.
//
//   use_gpu HOST:PORT
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "devserver/client.h"
#include "devserver/nn.h"
#include "server/base/status_macros.h"

namespace devserver::client {
namespace {

void Heading(const std::string& text) { std::printf("\n== %s\n", text.c_str()); }

void Say(const std::string& text) { std::printf("%s\n", text.c_str()); }

double SecondsOf(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string Milliseconds(double seconds) { return absl::StrFormat("%8.2f ms", seconds * 1e3); }

// nvidia-smi's table in short: who holds how much.
absl::Status PrintMemory(const Client& client) {
  ASSIGN_OR_RETURN(const DeviceList list, client.devices());
  Say("  device   model                        memory used / limit");
  for (const DeviceInfo& device : list.devices) {
    Say(absl::StrFormat("  %-8s %-28s %8d B / %d MiB", device.name, device.model,
                        device.memory_used_bytes, device.memory_limit_bytes >> 20));
  }
  return absl::OkStatus();
}

// The clock of a simulated device: what its work so far would have taken on the real model. 0 for a
// real one.
absl::StatusOr<double> SimulatedSeconds(const Client& client, const Device& device) {
  ASSIGN_OR_RETURN(const DeviceList list, client.devices());
  for (const DeviceInfo& info : list.devices) {
    if (info.name == device.name()) {
      return info.simulated_seconds;
    }
  }
  return absl::NotFoundError(device.name());
}

absl::Status ShowDevices(const Client& client) {
  Heading("1. Devices");
  ASSIGN_OR_RETURN(const DeviceList list, client.devices());
  Say(absl::StrFormat("Server \"%s\" at %s has %d devices, %d of them GPUs:", list.server,
                      client.address(), list.devices.size(), client.num_gpus()));
  for (const DeviceInfo& device : list.devices) {
    Say(absl::StrFormat("  %-8s %-10s %s", device.name, DeviceKindName(device.kind), device.model));
  }
  if (!list.no_gpu_reason.empty()) {
    Say(absl::StrFormat("No real GPU: %s", list.no_gpu_reason));
  }
  Say(absl::StrFormat("try_gpu()   -> %s", client.try_gpu().name()));
  const Device tenth = client.try_gpu(10);
  Say(absl::StrFormat("try_gpu(10) -> %s (%s)", tenth.name(),
                      tenth.note().empty() ? "it is there" : tenth.note()));
  std::string names;
  for (const Device& device : client.try_all_gpus()) {
    names += " " + device.name();
  }
  Say(absl::StrFormat("try_all_gpus() ->%s", names));
  return absl::OkStatus();
}

absl::Status ShowStorageAndCopies(const Client& client, const Device& gpu0, const Device& gpu1) {
  Heading("2. A tensor lives on one device");
  const Tensor x = ones({2, 3}, gpu0);
  Say(absl::StrFormat("X = ones(2, 3) on gpu:0:\n%s", x.to_string()));
  Say(absl::StrFormat("X.device() = %s. Its %d bytes are in the table:", x.device_name(),
                      x.size_bytes()));
  RETURN_IF_ERROR(PrintMemory(client));
  const Tensor y = uniform({2, 3}, gpu1, {.seed = 1});
  Say(absl::StrFormat("Y = uniform(2, 3) on gpu:1, seed 1:\n%s", y.to_string()));

  Heading("3. Nothing moves by itself");
  const absl::Status refused = (x + y).sync();
  Say(absl::StrFormat("X + Y is refused:\n  %s",
                      std::string(refused.message())));
  if (refused.ok()) {
    return absl::InternalError("X + Y on two devices should have been refused");
  }
  const Tensor z = x.copy_to(gpu1);
  ASSIGN_OR_RETURN(const Receipt receipt, z.receipt());
  Say(absl::StrFormat("The cure is a copy: Z = X.copy_to(gpu:1). Its receipt:\n  %s",
                      receipt.ToString()));
  Say(absl::StrFormat("Y + Z:\n%s", (y + z).to_string()));
  const Tensor same = z.to(gpu1);
  const Tensor copy = z.copy_to(gpu1);
  Say(
      absl::StrFormat("Z.to(gpu:1) is Z itself: handle %d, Z has %d. Z.copy_to(gpu:1) is a new "
                      "tensor: handle %d.",
                      same.id(), z.id(), copy.id()));
  RETURN_IF_ERROR(copy.sync());
  return same.same_as(z) && !copy.same_as(z) ? absl::OkStatus()
                                             : absl::InternalError("to() or copy_to() is wrong");
}

absl::Status ShowNetwork(const Device& gpu0, const std::string& directory) {
  Heading("4. A network on gpu:0");
  nn::Sequential net({nn::Dense(1)});
  net.initialize(gpu0, /*seed=*/1);
  const Tensor x = ones({2, 3}, gpu0);
  Say(absl::StrFormat("net = Sequential(Dense(1)); net(X), its input size inferred from X:\n%s",
                      net(x).to_string()));
  for (const nn::Parameter& parameter : net.parameters()) {
    Say(absl::StrFormat("  %-16s %s", parameter.name, parameter.value.to_string()));
  }
  const std::string path = directory + "/net.safetensors";
  RETURN_IF_ERROR(net.save_parameters(path));
  nn::Sequential again({nn::Dense(1)});
  RETURN_IF_ERROR(again.load_parameters(path, gpu0));
  ASSIGN_OR_RETURN(const std::vector<float> before, net(x).fetch<float>());
  ASSIGN_OR_RETURN(const std::vector<float> after, again(x).fetch<float>());
  Say(absl::StrFormat(
      "Saved as safetensors and read back into a second network: the same outputs? %s",
      before == after ? "yes" : "no"));
  return before == after ? absl::OkStatus() : absl::InternalError("parameters changed in the file");
}

// A product's time as the client sees it, and as a simulated device's clock has it (0 on a real
// device).
absl::Status TimeProduct(const Client& client, const Device& device, int64_t size, int times) {
  const Tensor a = uniform({size, size}, device, {.seed = 1});
  const Tensor b = uniform({size, size}, device, {.seed = 2});
  RETURN_IF_ERROR(matmul(a, b).sync());  // The first one finds its kernel.
  ASSIGN_OR_RETURN(const double clock_before, SimulatedSeconds(client, device));
  absl::Status status;
  const double seconds = SecondsOf([&] {
    Tensor c;
    for (int i = 0; i < times; ++i) {
      c = matmul(a, b);
    }
    status = c.sync();
  });
  RETURN_IF_ERROR(status);
  ASSIGN_OR_RETURN(const double clock_after, SimulatedSeconds(client, device));
  const double simulated = (clock_after - clock_before) / times;
  Say(absl::StrFormat(
      "  %-6s %5d x %-5d measured %s each%s", device.name(), size, size,
      Milliseconds(seconds / times),
      simulated > 0 ? absl::StrFormat("; its model would take %.4f ms", simulated * 1e3) : ""));
  return absl::OkStatus();
}

absl::Status Exercise1(const Client& client, const Device& gpu0) {
  Heading("Exercise 1. Large and small products on cpu:0 and gpu:0");
  for (const int64_t size : {64, 1024}) {
    RETURN_IF_ERROR(TimeProduct(client, client.cpu(), size, size < 100 ? 200 : 3));
    RETURN_IF_ERROR(TimeProduct(client, gpu0, size, size < 100 ? 200 : 3));
  }
  Say("A small product is all overhead, a large one all arithmetic: that is where a GPU pays. A\n"
      "simulated GPU computes on one CPU core and keeps its model's time on a clock of its own.");
  return absl::OkStatus();
}

absl::Status Exercise2(const Device& gpu0) {
  Heading("Exercise 2. Reading and writing parameters on the GPU");
  nn::Dense layer(2, {.in_units = 3});
  layer.initialize(gpu0, /*seed=*/7);
  ASSIGN_OR_RETURN(const Tensor weight, layer.weight());
  ASSIGN_OR_RETURN(std::vector<float> values, weight.fetch<float>());
  Say(absl::StrFormat("Read: %s", weight.to_string()));
  std::fill(values.begin(), values.end(), 0.5f);
  ASSIGN_OR_RETURN(const Tensor bias, layer.bias());
  RETURN_IF_ERROR(layer.set_parameters(from(values, {3, 2}, gpu0), bias));
  ASSIGN_OR_RETURN(const Tensor written, layer.weight());
  Say(absl::StrFormat("Written: %s", written.to_string()));
  Say(absl::StrFormat("layer(ones(1, 3)) = %s", layer(ones({1, 3}, gpu0)).to_string()));
  return absl::OkStatus();
}

absl::Status Exercise3(const Device& gpu0) {
  constexpr int kProducts = 1000;
  Heading("Exercise 3. 1000 products of 100 x 100 with the Frobenius norm of each in a log");
  const Tensor a = uniform({100, 100}, gpu0, {.seed = 1});
  const Tensor b = uniform({100, 100}, gpu0, {.seed = 2});
  RETURN_IF_ERROR(norm(matmul(a, b)).sync());
  std::vector<float> log;
  absl::Status status;
  const double each_time = SecondsOf([&] {
    for (int i = 0; i < kProducts && status.ok(); ++i) {
      const absl::StatusOr<float> value = norm(matmul(a, b)).item<float>();
      status = value.status();
      log.push_back(value.value_or(0));
    }
  });
  RETURN_IF_ERROR(status);
  absl::StatusOr<std::vector<float>> fetched;
  const double once = SecondsOf([&] {
    std::vector<Tensor> norms;
    norms.reserve(kProducts);
    for (int i = 0; i < kProducts; ++i) {
      norms.push_back(reshape(norm(matmul(a, b)), {1}));
    }
    fetched = concat(norms).fetch<float>();
  });
  RETURN_IF_ERROR(fetched.status());
  Say(absl::StrFormat("  every norm fetched as it comes:       %s", Milliseconds(each_time)));
  Say(absl::StrFormat("  log kept on gpu:0 and fetched once:   %s, %.1f times as fast",
                      Milliseconds(once), each_time / once));
  Say("Each fetch waits for a round trip; without them the commands stream behind one another.");
  return *fetched == log ? absl::OkStatus() : absl::InternalError("the two logs differ");
}

absl::Status Exercise4(const Client& client, const Device& gpu0, const Device& gpu1) {
  Heading("Exercise 4. Two products on two GPUs at once, and one after the other on one");
  constexpr int64_t kSize = 1024;
  constexpr int kRounds = 3;
  const Tensor a0 = uniform({kSize, kSize}, gpu0, {.seed = 1});
  const Tensor a1 = uniform({kSize, kSize}, gpu1, {.seed = 1});
  RETURN_IF_ERROR(matmul(a0, a0).sync());
  RETURN_IF_ERROR(matmul(a1, a1).sync());
  absl::Status status;
  const auto run = [&](const Tensor& first, const Tensor& second) {
    double best = 1e9;
    for (int round = 0; round < kRounds && status.ok(); ++round) {
      best = std::min(best, SecondsOf([&] {
                        const Tensor one = matmul(first, first);
                        const Tensor two = matmul(second, second);
                        status = client.sync();
                      }));
    }
    return best;
  };
  const double one_gpu = run(a0, a0);
  const double two_gpus = run(a0, a1);
  RETURN_IF_ERROR(status);
  Say(absl::StrFormat("  both on gpu:0, one after the other:   %s", Milliseconds(one_gpu)));
  Say(absl::StrFormat("  one on gpu:0, one on gpu:1, at once:  %s, %.2f times as fast",
                      Milliseconds(two_gpus), one_gpu / two_gpus));
  Say("Neither program said anything about threads: devices work by themselves until a value is\n"
      "asked for. (Simulated GPUs need a CPU core each to show it.)");
  return absl::OkStatus();
}

absl::Status Walk(const std::string& address, const std::string& directory) {
  ASSIGN_OR_RETURN(const Client client, Client::connect(address));
  RETURN_IF_ERROR(ShowDevices(client));
  const absl::StatusOr<Device> gpu0 = client.gpu(0);
  const absl::StatusOr<Device> gpu1 = client.gpu(1);
  if (!gpu0.ok() || !gpu1.ok()) {
    return absl::FailedPreconditionError(
        "the rest of the walk-through takes two GPUs; devserverd can simulate them");
  }
  RETURN_IF_ERROR(ShowStorageAndCopies(client, *gpu0, *gpu1));
  RETURN_IF_ERROR(ShowNetwork(*gpu0, directory));
  RETURN_IF_ERROR(Exercise1(client, *gpu0));
  RETURN_IF_ERROR(Exercise2(*gpu0));
  RETURN_IF_ERROR(Exercise3(*gpu0));
  RETURN_IF_ERROR(Exercise4(client, *gpu0, *gpu1));
  Heading("The end");
  Say("Every tensor of this walk has gone with its last use; the table again:");
  return PrintMemory(client);
}

}  // namespace
}  // namespace devserver::client

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s HOST:PORT   (of a devserverd with two GPUs)\n", argv[0]);
    return 2;
  }
  char directory[] = "/tmp/use_gpu.XXXXXX";
  if (mkdtemp(directory) == nullptr) {
    std::perror("mkdtemp /tmp/use_gpu.XXXXXX");
    return 1;
  }
  const absl::Status status = devserver::client::Walk(argv[1], directory);
  unlink((std::string(directory) + "/net.safetensors").c_str());
  rmdir(directory);
  if (!status.ok()) {
    std::fprintf(stderr, "use_gpu: %s\n",
                 status.ToString(absl::StatusToStringMode::kWithNoExtraData).c_str());
    return 1;
  }
  return 0;
}
