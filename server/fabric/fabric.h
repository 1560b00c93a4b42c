// Links between devices, and what a copy over them is expected to cost. Pure arithmetic, no I/O.
//
// A link has a latency and a bandwidth: moving n bytes over it takes latency + n / bandwidth (the
// alpha-beta model). A route is a list of links; a quote has one leg per link and their sum.
// "Unknown" is a value, never zero. Thread safety: a Fabric is constant once it is built.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace devserver {

// The numbers travel (Leg.Medium and Seconds.Basis in types.proto).
enum class Medium : uint8_t {
  kUnspecified = 0,
  kMemory = 1,
  kPcie = 2,
  kNvlink = 3,
  kSharedMemory = 4,
  kUnixSocket = 5,
  kTcp = 6,
  kRdma = 7
};
enum class Basis : uint8_t {
  kUnknown = 0,
  kConfigured = 1,
  kCalibrated = 2,
  kClock = 3,
  kModel = 4
};

// A time with what it rests on.
struct Duration {
  double seconds = 0;
  Basis basis = Basis::kUnknown;  // kUnknown: `seconds` means nothing
  uint32_t samples = 0;
};

struct Link {
  Medium medium = Medium::kMemory;
  double latency_seconds = 0;
  double bytes_per_second = 0;  // 0: unknown
  bool simulated = false;       // its estimates are of a simulated device's time, not of the host's
};

struct QuoteLeg {
  std::string source;  // device names
  std::string target;
  Medium medium = Medium::kMemory;
  Duration estimated;
};

struct Quote {
  uint64_t size_bytes = 0;
  std::vector<QuoteLeg> legs;
  Duration estimated;      // the sum; unknown if any leg is
  bool simulated = false;  // the estimate is of simulated time
};

class Fabric {
 public:
  // A directed link; the reverse is a second one. `source` = `target` is a copy within a device.
  void AddLink(const std::string& source, const std::string& target, const Link& link);

  // The direct link where there is one, else the two over "cpu:0" (staged through host memory),
  // else one unknown leg.
  Quote QuoteCopy(const std::string& source, const std::string& target, uint64_t size_bytes) const;

 private:
  const Link* Find(const std::string& source, const std::string& target) const;

  std::map<std::pair<std::string, std::string>, Link> links_;
};

}  // namespace devserver
