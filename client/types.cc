#include "devserver/types.h"

#include "absl/strings/str_format.h"

namespace devserver::client {
namespace {

std::string FormatSeconds(double seconds) {
  if (seconds < 1e-3) {
    return absl::StrFormat("%.3g us", seconds * 1e6);
  }
  return seconds < 1 ? absl::StrFormat("%.3g ms", seconds * 1e3)
                     : absl::StrFormat("%.3g s", seconds);
}

const char* BasisName(Basis basis) {
  switch (basis) {
    case Basis::kConfigured:
      return "configured";
    case Basis::kCalibrated:
      return "calibrated";
    case Basis::kClock:
      return "clock";
    case Basis::kModel:
      return "model";
    default:
      return "unknown";
  }
}

}  // namespace

const char* DeviceKindName(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kCpu:
      return "cpu";
    case DeviceKind::kCuda:
      return "cuda";
    case DeviceKind::kSimulated:
      return "simulated";
    default:
      return "unknown";
  }
}

const char* TensorStateName(TensorState state) {
  switch (state) {
    case TensorState::kPending:
      return "pending";
    case TensorState::kReady:
      return "ready";
    case TensorState::kFailed:
      return "failed";
    default:
      return "unknown";
  }
}

std::string PricedSeconds::ToString() const {
  if (!known()) {
    return "unknown";
  }
  return basis == Basis::kCalibrated
             ? absl::StrFormat("%s (calibrated from %d)", FormatSeconds(value), samples)
             : absl::StrFormat("%s (%s)", FormatSeconds(value), BasisName(basis));
}

std::string Receipt::ToString() const {
  std::string text = absl::StrFormat("%d B", size_bytes);
  for (const Leg& leg : legs) {
    text += absl::StrFormat(" %s -> %s over %s", leg.source, leg.target, leg.medium);
  }
  text += absl::StrFormat(": quoted %s", estimated.ToString());
  if (measured.known()) {
    text += absl::StrFormat(", measured %s", FormatSeconds(measured.value));
  }
  if (simulated.known()) {
    text += absl::StrFormat(", simulated %s", FormatSeconds(simulated.value));
  }
  if (measured_over_estimated > 0) {
    text += absl::StrFormat(", %.2f times the quote", measured_over_estimated);
  }
  return text;
}

}  // namespace devserver::client
