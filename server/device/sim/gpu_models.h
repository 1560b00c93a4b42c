// The GPUs that a simulated device can stand for: what their makers' datasheets say.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "server/tensor/dtype.h"

namespace devserver {

struct GpuModel {
  std::string_view name;     // "V100-SXM2-16GB"
  std::string_view product;  // as nvidia-smi shows it: "Tesla V100-SXM2-16GB"
  uint64_t memory_bytes = 0;
  double memory_bytes_per_second = 0;
  // Floating-point operations per second, dense. f16 and bf16 are the tensor cores' with f32
  // accumulation; f32 is without TF32, which devserverd never uses.
  double f32_flops = 0;
  double f64_flops = 0;
  double f16_flops = 0;
  double bf16_flops = 0;
  double pcie_bytes_per_second = 0;  // one direction
  double pcie_latency_seconds = 0;
  double nvlink_bytes_per_second = 0;  // one direction, to one peer; 0: none
  double nvlink_latency_seconds = 0;
  double launch_seconds = 0;  // what each op costs beside its work
  double power_limit_watts = 0;

  // The rate for ops on `dtype`; integers run at the f32 rate.
  double FlopsFor(DType dtype) const;
};

// Case-insensitive; a prefix such as "V100" gives the model that it begins, "H100" and "h100-sxm5"
// the same one. nullptr if there is none.
const GpuModel* FindGpuModel(std::string_view name);

// "V100-SXM2-16GB, A100-SXM4-80GB, ..."
std::string GpuModelNames();

}  // namespace devserver
