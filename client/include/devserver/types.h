// What the server tells about itself: devices, sessions, tensors, prices. Plain values.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/tensor/dtype.h"
#include "server/tensor/shape.h"

namespace devserver::client {

// For parameters called `timeout`: take ClientOptions::timeout.
inline constexpr absl::Duration kDefaultTimeout = absl::Nanoseconds(-1);

// Told how far a transfer is, on the thread that asked for it: once with 0 at its start, then as
// bytes move, last with `done_bytes` = `total_bytes`.
using Progress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

enum class DeviceKind : uint8_t { kUnspecified = 0, kCpu = 1, kCuda = 2, kSimulated = 3 };

// "cpu", "cuda", "simulated".
const char* DeviceKindName(DeviceKind kind);

// As it was when the server was asked.
struct DeviceInfo {
  std::string name;  // "gpu:0"
  DeviceKind kind = DeviceKind::kUnspecified;
  std::string model;  // "Tesla V100-SXM2-16GB"
  std::string uuid;
  std::string pci_bus_id;
  bool healthy = true;
  uint64_t memory_limit_bytes = 0;
  uint64_t memory_used_bytes = 0;
  uint64_t memory_reserved_bytes = 0;  // held in the pool for reuse, on top of what is used
  uint64_t memory_peak_bytes = 0;
  uint64_t tensors = 0;
  uint64_t queued_commands = 0;
  double utilization = 0;                     // 0 to 1 over the last second or so
  double busy_seconds = 0;                    // spent computing since the server started
  double simulated_seconds = 0;               // a simulated device's own clock
  std::optional<double> temperature_celsius;  // these only where the device knows
  std::optional<double> power_watts;
  std::optional<double> power_limit_watts;
};

struct DeviceList {
  std::string server;
  std::vector<DeviceInfo> devices;
  std::string no_gpu_reason;  // why there is no real GPU, when there is none
};

struct SessionInfo {
  std::string name;
  std::string peer;
  double lease_seconds = 0;
  double lease_remaining_seconds = 0;
  double age_seconds = 0;
  uint64_t tensors = 0;
  std::map<std::string, uint64_t> bytes_by_device;
  uint64_t commands_done = 0;
  uint64_t commands_queued = 0;
  bool is_default = false;
  uint64_t bytes_copied = 0;  // between devices, so far
  double copy_seconds_measured = 0;
  double copy_seconds_simulated = 0;
};

enum class TensorState : uint8_t { kUnspecified = 0, kPending = 1, kReady = 2, kFailed = 3 };

// "pending", "ready", "failed".
const char* TensorStateName(TensorState state);

struct TensorInfo {
  uint64_t id = 0;  // 0: of another session, whose ids can't be used
  TensorSpec spec;
  std::string device;
  TensorState state = TensorState::kUnspecified;
  absl::Status error;  // the root cause, when failed
  std::string label;
  double age_seconds = 0;
  double idle_seconds = 0;  // since a command last used it
  std::string session;      // the owner's name
};

// The server's limits for this session.
struct ServerLimits {
  uint64_t message_bytes = 0;
  uint64_t inline_bytes =
      0;  // values that travel with a command; larger ones go by a stream of their own
  uint64_t chunk_bytes = 0;
  uint64_t session_bytes = 0;
  uint64_t session_tensors = 0;
  uint64_t commands_in_flight = 0;
  int dims = 0;
};

enum class Basis : uint8_t {
  kUnknown = 0,     // the value means nothing
  kConfigured = 1,  // from the deployment file or a data sheet
  kCalibrated = 2,  // from `samples` finished transfers
  kClock = 3,       // read off a clock
  kModel = 4,       // a simulated device's virtual time
};

// A time with what it rests on.
struct PricedSeconds {
  double value = 0;
  Basis basis = Basis::kUnknown;
  uint32_t samples = 0;

  bool known() const { return basis != Basis::kUnknown; }
  // "12.3 us (configured)", "unknown".
  std::string ToString() const;
};

struct Leg {
  std::string source;  // device names
  std::string target;
  std::string medium;  // "memory", "pcie", "nvlink"
  PricedSeconds estimated;
  PricedSeconds measured;
};

// What a copy was expected to cost and did cost. Times of different kinds are never mixed.
struct Receipt {
  uint64_t size_bytes = 0;
  std::vector<Leg> legs;    // the route, in order; empty when nothing moved
  PricedSeconds estimated;  // the quote; of simulated time where a simulated device takes part
  PricedSeconds measured;
  PricedSeconds simulated;
  double measured_over_estimated = 0;  // 0 when either is unknown or they are of different kinds

  // "24 B gpu:0 -> gpu:1 over nvlink: quoted 10.0 us (configured), measured 3.1 us, simulated 10.0
  // us".
  std::string ToString() const;
};

}  // namespace devserver::client
