#include "server/device/sim/gpu_models.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace devserver {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// One direction of a x16 slot: 8, 16 or 32 GT/s on 16 lanes, 128b/130b encoding (PCI Express Base
// Specification 3.0 to 5.0). Pinned copies reach about 0.8 of it.
constexpr double kPcie3x16 = 15.75e9;
constexpr double kPcie4x16 = 31.5e9;
constexpr double kPcie5x16 = 63.0e9;

// No datasheet gives latencies. 3.8 us is what NVIDIA measured per short kernel launched back to
// back on a V100 ("Getting Started with CUDA Graphs", NVIDIA technical blog, 2019), 10 us the order
// of magnitude of a small cudaMemcpy; both are assumed for every model.
constexpr double kLaunchSeconds = 3.8e-6;
constexpr double kCopySeconds = 10e-6;

// Memory sizes are what nvidia-smi shows as total: the datasheet's less what the firmware keeps.
constexpr GpuModel kModels[] = {
    {
        // "NVIDIA V100 Tensor Core GPU" datasheet, 2020: 900 GB/s, FP64 7.8, FP32 15.7, tensor 125
        // TFLOPS, PCIe 3.0, NVLink 300 GB/s both ways = 6 links of 25 GB/s, 300 W. Two links to
        // each of three peers in servers of four (Dell, "Deep Learning on V100", 2018,
        // measures 47.9 GB/s). bf16: the hardware has none.
        .name = "V100-SXM2-16GB",
        .product = "Tesla V100-SXM2-16GB",
        .memory_bytes = 16160 * kMiB,
        .memory_bytes_per_second = 900e9,
        .f32_flops = 15.7e12,
        .f64_flops = 7.8e12,
        .f16_flops = 125e12,
        .bf16_flops = 15.7e12,
        .pcie_bytes_per_second = kPcie3x16,
        .pcie_latency_seconds = kCopySeconds,
        .nvlink_bytes_per_second = 50e9,
        .nvlink_latency_seconds = kCopySeconds,
        .launch_seconds = kLaunchSeconds,
        .power_limit_watts = 300,
    },
    {
        // "NVIDIA A100 Tensor Core GPU" datasheet, 2021, SXM 80GB: 2,039 GB/s, FP64 9.7
        // (tensor 19.5), FP32 19.5, FP16 and BF16 tensor 312 TFLOPS, PCIe Gen4, NVLink 600 GB/s
        // both ways through NVSwitch, 400 W.
        .name = "A100-SXM4-80GB",
        .product = "NVIDIA A100-SXM4-80GB",
        .memory_bytes = 81920 * kMiB,
        .memory_bytes_per_second = 2039e9,
        .f32_flops = 19.5e12,
        .f64_flops = 9.7e12,
        .f16_flops = 312e12,
        .bf16_flops = 312e12,
        .pcie_bytes_per_second = kPcie4x16,
        .pcie_latency_seconds = kCopySeconds,
        .nvlink_bytes_per_second = 300e9,
        .nvlink_latency_seconds = kCopySeconds,
        .launch_seconds = kLaunchSeconds,
        .power_limit_watts = 400,
    },
    {
        // "NVIDIA H100 Tensor Core GPU" datasheet, 2023, SXM: 80 GB, 3.35 TB/s, FP64 34, FP32 67,
        // FP16 and BF16 tensor 989 TFLOPS dense (the sheet's 1,979 are with sparsity), PCIe Gen5,
        // NVLink 900 GB/s both ways, 700 W.
        .name = "H100-SXM5",
        .product = "NVIDIA H100 80GB HBM3",
        .memory_bytes = 81559 * kMiB,
        .memory_bytes_per_second = 3350e9,
        .f32_flops = 67e12,
        .f64_flops = 34e12,
        .f16_flops = 989e12,
        .bf16_flops = 989e12,
        .pcie_bytes_per_second = kPcie5x16,
        .pcie_latency_seconds = kCopySeconds,
        .nvlink_bytes_per_second = 450e9,
        .nvlink_latency_seconds = kCopySeconds,
        .launch_seconds = kLaunchSeconds,
        .power_limit_watts = 700,
    },
    {
        // "NVIDIA H200 Tensor Core GPU" datasheet, 2024, SXM: 141 GB, 4.8 TB/s, the H100's rates,
        // links and power.
        .name = "H200",
        .product = "NVIDIA H200",
        .memory_bytes = 143771 * kMiB,
        .memory_bytes_per_second = 4800e9,
        .f32_flops = 67e12,
        .f64_flops = 34e12,
        .f16_flops = 989e12,
        .bf16_flops = 989e12,
        .pcie_bytes_per_second = kPcie5x16,
        .pcie_latency_seconds = kCopySeconds,
        .nvlink_bytes_per_second = 450e9,
        .nvlink_latency_seconds = kCopySeconds,
        .launch_seconds = kLaunchSeconds,
        .power_limit_watts = 700,
    },
    {
        // "NVIDIA L4 Tensor Core GPU" datasheet, 2023: 24 GB, 300 GB/s, FP32 30.3, FP16 and BF16
        // tensor 121 TFLOPS dense (242 with sparsity), PCIe Gen4 x16, 72 W. FP64 is 1/64 of FP32
        // ("NVIDIA Ada GPU Architecture", 2022).
        .name = "L4",
        .product = "NVIDIA L4",
        .memory_bytes = 23034 * kMiB,
        .memory_bytes_per_second = 300e9,
        .f32_flops = 30.3e12,
        .f64_flops = 0.473e12,
        .f16_flops = 121e12,
        .bf16_flops = 121e12,
        .pcie_bytes_per_second = kPcie4x16,
        .pcie_latency_seconds = kCopySeconds,
        .launch_seconds = kLaunchSeconds,
        .power_limit_watts = 72,
    },
    {
        // "NVIDIA T4 Tensor Core GPU" datasheet, 2019: 16 GB, 320 GB/s, FP32 8.1, mixed FP16/FP32
        // 65 TFLOPS, PCIe Gen3 x16, 70 W. FP64 is 1/32 of FP32 ("NVIDIA Turing GPU Architecture",
        // 2018). bf16: the hardware has none.
        .name = "T4",
        .product = "Tesla T4",
        .memory_bytes = 15360 * kMiB,
        .memory_bytes_per_second = 320e9,
        .f32_flops = 8.1e12,
        .f64_flops = 0.253e12,
        .f16_flops = 65e12,
        .bf16_flops = 8.1e12,
        .pcie_bytes_per_second = kPcie3x16,
        .pcie_latency_seconds = kCopySeconds,
        .launch_seconds = kLaunchSeconds,
        .power_limit_watts = 70,
    },
};

}  // namespace

double GpuModel::FlopsFor(DType dtype) const {
  switch (dtype) {
    case DType::kF64:
      return f64_flops;
    case DType::kF16:
      return f16_flops;
    case DType::kBF16:
      return bf16_flops;
    default:
      return f32_flops;
  }
}

const GpuModel* FindGpuModel(std::string_view name) {
  if (name.empty()) {
    return nullptr;
  }
  for (const GpuModel& model : kModels) {
    if (absl::StartsWithIgnoreCase(absl::string_view(model.name.data(), model.name.size()),
                                   absl::string_view(name.data(), name.size()))) {
      return &model;
    }
  }
  return nullptr;
}

std::string GpuModelNames() {
  std::string names;
  for (const GpuModel& model : kModels) {
    names += names.empty() ? "" : ", ";
    names += model.name;
  }
  return names;
}

}  // namespace devserver
