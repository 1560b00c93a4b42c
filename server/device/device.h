// The backend contract: what a new kind of device must supply. tests/conformance/ is its meaning,
// run against every backend.
//
// Threads: Run and Synchronize are called only by the thread of the device's queue
// (device_queue.h). Everything else may be called by any thread. A Device outlives its buffers.
// Errors: ResourceExhausted = out of memory (asked, used and limit are in the details),
// Unimplemented = this device can't, Unavailable = the device is lost. Arguments were checked
// before: a backend asserts, it does not validate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/tensor/dtype.h"
#include "server/tensor/op_table.h"
#include "server/tensor/shape.h"

namespace devserver {

class Device;

// Owns one allocation on a device; gives it back when destroyed, from any thread. Move only.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(Device* device, std::byte* data, size_t size_bytes)
      : device_(device), data_(data), size_bytes_(size_bytes) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : device_(std::exchange(other.device_, nullptr)),
        data_(std::exchange(other.data_, nullptr)),
        size_bytes_(std::exchange(other.size_bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    return *this;
  }
  ~DeviceBuffer();

  // A device address: not for the host to read unless Device::host_readable(). 64-byte aligned;
  // null when empty.
  std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }

 private:
  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
};

// The numbers travel (Device.Kind in device.proto).
enum class DeviceKind : uint8_t { kCpu = 1, kCuda = 2, kSimulated = 3 };

// Constant while the device is open.
struct DeviceProperties {
  std::string name;  // "cpu:0", "gpu:1"
  DeviceKind kind = DeviceKind::kCpu;
  std::string model;  // "Tesla V100-SXM2-16GB"
  std::string uuid;
  std::string pci_bus_id;  // empty where there is none
  uint64_t memory_limit_bytes = 0;
};

struct DeviceMemory {
  uint64_t used_bytes = 0;      // by tensors, their exact sizes
  uint64_t reserved_bytes = 0;  // kept for reuse, on top of what is used
  uint64_t peak_bytes = 0;      // the most that was ever used
};

struct Telemetry {
  std::optional<double> temperature_celsius;
  std::optional<double> power_watts;
  std::optional<double> power_limit_watts;
};

struct OpInput {
  const TensorSpec* spec;
  const std::byte* data;  // device address
};

// One op, ready to run. All pointers are valid during Device::Run.
struct OpCall {
  OpCode code;
  std::span<const OpInput> inputs;
  const TensorSpec* output_spec;  // what InferSpec gave
  std::byte* output;              // device address, output_spec->size_bytes() long, uninitialised
  const OpAttributes* attributes;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual const DeviceProperties& properties() const = 0;
  virtual DeviceMemory memory() const = 0;
  virtual Telemetry telemetry() const = 0;
  // Whether this device can run `code` on inputs of `dtype`. The op table's dtypes are the upper
  // bound.
  virtual bool Supports(OpCode code, DType dtype) const = 0;
  // Whether the host may read and write buffers through data(). True for CPUs and simulated
  // devices.
  virtual bool host_readable() const = 0;
  // A simulated device's own clock; 0 for real ones.
  virtual double simulated_seconds() const { return 0; }

  // `size_bytes` 0 gives an empty buffer. ResourceExhausted when it would exceed the device's
  // memory limit.
  virtual absl::StatusOr<DeviceBuffer> Allocate(size_t size_bytes) = 0;
  // Both block until the bytes are there.
  virtual absl::Status CopyFromHost(std::span<const std::byte> source, std::byte* target) = 0;
  virtual absl::Status CopyToHost(const std::byte* source, std::span<std::byte> target) = 0;
  // Copies from a buffer of `peer` (which may be this device) to `target` on this device. Queue
  // thread only.
  virtual absl::Status CopyFromPeer(Device& peer, const std::byte* source, std::byte* target,
                                    size_t size_bytes) = 0;
  // Starts one op. The result may be read by later ops and copies of this device at once, by the
  // host after Synchronize.
  // Arithmetic may take subnormal numbers for zero (CPUs set FTZ and DAZ, without which a chain of
  // decaying values is 14 times slower); ops that only move elements keep every bit.
  virtual absl::Status Run(const OpCall& call) = 0;
  // Waits for everything that Run started.
  virtual absl::Status Synchronize() = 0;
  // Charges a modelled copy over a link to a simulated device's clock; nothing on real ones.
  virtual void AdvanceClock(double simulated_seconds) { (void)simulated_seconds; }

 private:
  friend class DeviceBuffer;
  // Gives back what Allocate took. Any thread; in stream order where the device has streams.
  virtual void Free(std::byte* data, size_t size_bytes) = 0;
};

inline DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) {
    device_->Free(data_, size_bytes_);
  }
}

}  // namespace devserver
