#include "server/device/sim/fabric_links.h"

#include <algorithm>

namespace devserver {
namespace {

Link SimulatedLink(Medium medium, double latency_seconds, double bytes_per_second) {
  Link link;
  link.medium = medium;
  link.latency_seconds = latency_seconds;
  link.bytes_per_second = bytes_per_second;
  link.simulated = true;
  return link;
}

}  // namespace

void AddSimulatedLinks(std::span<const SimDevice* const> devices, Fabric& fabric) {
  for (const SimDevice* const device : devices) {
    const std::string& name = device->properties().name;
    const GpuModel& model = device->model();
    const Link pcie =
        SimulatedLink(Medium::kPcie, model.pcie_latency_seconds, model.pcie_bytes_per_second);
    fabric.AddLink("cpu:0", name, pcie);
    fabric.AddLink(name, "cpu:0", pcie);
    // A copy within the memory reads and writes every byte.
    fabric.AddLink(
        name, name,
        SimulatedLink(Medium::kMemory, model.launch_seconds, model.memory_bytes_per_second / 2));
    for (const SimDevice* const peer : devices) {
      if (peer != device && &peer->model() == &model && model.nvlink_bytes_per_second > 0) {
        fabric.AddLink(name, peer->properties().name,
                       SimulatedLink(Medium::kNvlink, model.nvlink_latency_seconds,
                                     model.nvlink_bytes_per_second));
      }
    }
  }
}

}  // namespace devserver
