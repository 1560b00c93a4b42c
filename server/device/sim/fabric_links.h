// The links of simulated GPUs, as configured by their models.
#pragma once

#include <span>

#include "server/device/sim/sim_device.h"
#include "server/fabric/fabric.h"

namespace devserver {

// Adds what `devices` have: PCIe between each and "cpu:0" both ways, NVLink between any two of one
// model that has it, and each one's own memory for copies within it. All are marked simulated. GPUs
// without NVLink meet over "cpu:0", which is how Fabric quotes devices without a direct link.
void AddSimulatedLinks(std::span<const SimDevice* const> devices, Fabric& fabric);

}  // namespace devserver
