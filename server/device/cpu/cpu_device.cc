#include "server/device/cpu/cpu_device.h"

#include <sched.h>

#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_format.h"

namespace devserver {
namespace {

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string ReadModel() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "CPU";
}

// FNV-1a; the machine's id itself must not be shown (man 5 machine-id).
uint64_t HashText(const std::string& text, uint64_t hash) {
  for (const char c : text) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  }
  return hash;
}

std::string MakeUuid(const std::string& name) {
  const std::string text = FirstLine("/etc/machine-id") + "/" + name;
  const uint64_t high = HashText(text, 0xcbf29ce484222325);
  const uint64_t low = HashText(text, high);
  return absl::StrFormat("CPU-%08x-%04x-%04x-%04x-%012x", high >> 32, (high >> 16) & 0xffff,
                         high & 0xffff, low >> 48, low & 0xffffffffffff);
}

// The first file that holds a processor's temperature in thousandths of a degree.
std::string FindTemperature() {
  std::error_code error;  // Where /sys is not to be read, the temperature is unknown.
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/hwmon", error)) {
    const std::string chip = FirstLine(entry.path() / "name");
    const std::string input = entry.path() / "temp1_input";
    if ((chip == "coretemp" || chip == "k10temp" || chip == "zenpower" || chip == "cpu_thermal") &&
        !FirstLine(input).empty()) {
      return input;
    }
  }
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/thermal", error)) {
    const std::string zone = FirstLine(entry.path() / "type");
    const std::string input = entry.path() / "temp";
    if ((zone == "x86_pkg_temp" || zone == "cpu-thermal") && !FirstLine(input).empty()) {
      return input;
    }
  }
  return "";
}

DeviceProperties MakeProperties(const CpuDevice::Options& options) {
  DeviceProperties properties;
  properties.name = options.name;
  properties.kind = DeviceKind::kCpu;
  properties.model = options.model.empty() ? ReadModel() : options.model;
  properties.uuid = options.uuid.empty() ? MakeUuid(options.name) : options.uuid;
  properties.memory_limit_bytes = options.memory_limit_bytes;
  return properties;
}

}  // namespace

CpuDevice::CpuDevice(const Options& options, HostMemory* host)
    : HostDevice(MakeProperties(options), options.cache_limit_bytes,
                 options.threads > 0 ? options.threads : AvailableThreads(), host),
      temperature_path_(FindTemperature()) {}

int CpuDevice::AvailableThreads() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
    return 1;  // More processors than a cpu_set_t holds.
  }
  return CPU_COUNT(&allowed);
}

Telemetry CpuDevice::telemetry() const {
  Telemetry telemetry;
  if (!temperature_path_.empty()) {
    std::ifstream file(temperature_path_);
    double thousandths = 0;
    if (file >> thousandths) {
      telemetry.temperature_celsius = thousandths / 1000;
    }
  }
  return telemetry;
}

}  // namespace devserver
