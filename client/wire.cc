#include "client/wire.h"

#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "server/base/error_details.h"
#include "server/base/status_macros.h"

namespace devserver::client {
namespace {

// grpc's and absl's codes are the same numbers; one that is neither comes out as UNKNOWN.
absl::StatusCode CodeFrom(int code) {
  if (code <= 0 || code > static_cast<int>(absl::StatusCode::kUnauthenticated)) {
    return absl::StatusCode::kUnknown;
  }
  return static_cast<absl::StatusCode>(code);
}

// Strings in ErrorDetails hold no NUL.
std::string UpToNul(const std::string& text) { return text.substr(0, text.find('\0')); }

ErrorDetails DetailsFrom(const v1::OpError& error) {
  ErrorDetails details;
  details.reason = static_cast<ErrorReason>(error.reason());
  details.origin_tensor = error.origin_tensor();
  details.command_number = error.command_number();
  details.device = UpToNul(error.device());
  details.asked = error.amount().asked();
  details.used = error.amount().used();
  details.limit = error.amount().limit();
  details.cure_source = error.cure().source();
  details.cure_device = UpToNul(error.cure().device());
  details.cure_bytes = error.cure_quote().size_bytes();
  if (error.cure_quote().estimated().basis() != v1::Seconds::UNKNOWN) {
    details.cure_seconds = error.cure_quote().estimated().value();
  }
  return details;
}

PricedSeconds SecondsFrom(const v1::Seconds& seconds) {
  PricedSeconds priced;
  priced.value = seconds.value();
  priced.samples = seconds.samples();
  if (seconds.basis() >= 0 && seconds.basis() <= static_cast<int>(Basis::kModel)) {
    priced.basis = static_cast<Basis>(seconds.basis());
  }
  return priced;
}

std::string MediumName(v1::Leg::Medium medium) {
  switch (medium) {
    case v1::Leg::MEMORY:
      return "memory";
    case v1::Leg::PCIE:
      return "pcie";
    case v1::Leg::NVLINK:
      return "nvlink";
    case v1::Leg::SHARED_MEMORY:
      return "shared memory";
    case v1::Leg::UNIX_SOCKET:
      return "unix socket";
    case v1::Leg::TCP:
      return "tcp";
    case v1::Leg::RDMA:
      return "rdma";
    default:
      return "unknown";
  }
}

}  // namespace

absl::Status StatusFrom(const v1::OpError& error) {
  return WithDetails(absl::Status(CodeFrom(error.code()), error.message()), DetailsFrom(error));
}

absl::Status StatusFrom(const grpc::Status& status, const std::string& context) {
  if (status.ok()) {
    return absl::OkStatus();
  }
  const absl::StatusCode code = CodeFrom(status.error_code());
  v1::StatusWithDetails with_details;
  if (!status.error_details().empty() && with_details.ParseFromString(status.error_details())) {
    for (const google::protobuf::Any& any : with_details.details()) {
      v1::OpError error;
      if (any.UnpackTo(&error)) {
        return WithDetails(absl::Status(code, status.error_message()), DetailsFrom(error));
      }
    }
  }
  return absl::Status(code, absl::StrFormat("%s: %s", context, status.error_message()));
}

DeviceInfo DeviceInfoFrom(const v1::Device& device) {
  DeviceInfo info;
  info.name = device.name();
  if (v1::Device::Kind_IsValid(device.kind())) {
    info.kind = static_cast<DeviceKind>(device.kind());
  }
  info.model = device.model();
  info.uuid = device.uuid();
  info.pci_bus_id = device.pci_bus_id();
  info.healthy = device.health() != v1::Device::LOST;
  info.memory_limit_bytes = device.memory_limit_bytes();
  info.memory_used_bytes = device.memory_used_bytes();
  info.memory_reserved_bytes = device.memory_reserved_bytes();
  info.memory_peak_bytes = device.memory_peak_bytes();
  info.tensors = device.tensors();
  info.queued_commands = device.queued_commands();
  info.simulated_seconds = device.simulated_seconds();
  const v1::Telemetry& telemetry = device.telemetry();
  info.utilization = telemetry.utilization();
  info.busy_seconds = telemetry.busy_seconds();
  if (telemetry.has_temperature_celsius()) {
    info.temperature_celsius = telemetry.temperature_celsius();
  }
  if (telemetry.has_power_watts()) {
    info.power_watts = telemetry.power_watts();
  }
  if (telemetry.has_power_limit_watts()) {
    info.power_limit_watts = telemetry.power_limit_watts();
  }
  return info;
}

DeviceList DeviceListFrom(const v1::ListDevicesReply& reply) {
  DeviceList list;
  list.server = reply.server();
  list.no_gpu_reason = reply.no_gpu_reason();
  for (const v1::Device& device : reply.devices()) {
    list.devices.push_back(DeviceInfoFrom(device));
  }
  return list;
}

SessionInfo SessionInfoFrom(const v1::Session& session) {
  SessionInfo info;
  info.name = session.name();
  info.peer = session.peer();
  info.lease_seconds = session.lease_seconds();
  info.lease_remaining_seconds = session.lease_remaining_seconds();
  info.age_seconds = session.age_seconds();
  info.tensors = session.tensors();
  info.bytes_by_device.insert(session.bytes_by_device().begin(), session.bytes_by_device().end());
  info.commands_done = session.commands_done();
  info.commands_queued = session.commands_queued();
  info.is_default = session.is_default();
  info.bytes_copied = session.bytes_copied();
  info.copy_seconds_measured = session.copy_seconds_measured();
  info.copy_seconds_simulated = session.copy_seconds_simulated();
  return info;
}

Receipt ReceiptFrom(const v1::Receipt& receipt) {
  Receipt result;
  result.size_bytes = receipt.size_bytes();
  for (const v1::Leg& leg : receipt.legs()) {
    result.legs.push_back({leg.source(), leg.target(), MediumName(leg.medium()),
                           SecondsFrom(leg.estimated()), SecondsFrom(leg.measured())});
  }
  result.estimated = SecondsFrom(receipt.estimated());
  result.measured = SecondsFrom(receipt.measured());
  result.simulated = SecondsFrom(receipt.simulated());
  result.measured_over_estimated = receipt.measured_over_estimated();
  return result;
}

ServerLimits LimitsFrom(const v1::Limits& limits) {
  ServerLimits result;
  result.message_bytes = limits.message_bytes();
  result.inline_bytes = limits.inline_bytes();
  result.chunk_bytes = limits.chunk_bytes();
  result.session_bytes = limits.session_bytes();
  result.session_tensors = limits.session_tensors();
  result.commands_in_flight = limits.commands_in_flight();
  result.dims = static_cast<int>(limits.dims());
  return result;
}

absl::StatusOr<TensorSpec> SpecFrom(const v1::Tensor& tensor) {
  TensorSpec spec;
  if (!v1::DType_IsValid(tensor.dtype()) || tensor.dtype() == v1::DTYPE_UNSPECIFIED) {
    return absl::InternalError(
        absl::StrFormat("the server sent tensor %d with an unknown dtype (%d)", tensor.id(),
                        static_cast<int>(tensor.dtype())));
  }
  spec.dtype = static_cast<DType>(tensor.dtype());
  ASSIGN_OR_RETURN(spec.shape,
                   Shape::Create(std::span<const int64_t>(
                       tensor.shape().data(), static_cast<size_t>(tensor.shape_size()))));
  return spec;
}

absl::StatusOr<TensorInfo> TensorInfoFrom(const v1::Tensor& tensor) {
  TensorInfo info;
  info.id = tensor.id();
  ASSIGN_OR_RETURN(info.spec, SpecFrom(tensor));
  info.device = tensor.device();
  info.label = tensor.label();
  switch (tensor.state()) {
    case v1::Tensor::READY:
      info.state = TensorState::kReady;
      break;
    case v1::Tensor::FAILED:
      info.state = TensorState::kFailed;
      info.error = StatusFrom(tensor.error());
      break;
    default:
      info.state = TensorState::kPending;
  }
  return info;
}

v1::DType WireDType(DType dtype) { return static_cast<v1::DType>(dtype); }

void EncodeSource(OpCode source, const OpAttributes& attributes, v1::Create* create) {
  for (const int64_t size : attributes.shape) {
    create->add_shape(size);
  }
  create->set_dtype(WireDType(attributes.dtype));
  // On the wire a step or stddev of 0, or low = high = 0, means the default: here it is meant, and
  // makes a constant.
  switch (source) {
    case OpCode::kArange:
      if (attributes.step == 0) {
        create->set_fill(attributes.start);
        break;
      }
      create->mutable_arange()->set_start(attributes.start);
      create->mutable_arange()->set_step(attributes.step);
      break;
    case OpCode::kEye:
      create->set_eye(true);
      break;
    case OpCode::kUniform:
      if (attributes.low == attributes.high) {
        create->set_fill(attributes.low);
        break;
      }
      create->mutable_uniform()->set_seed(attributes.seed);
      create->mutable_uniform()->set_low(attributes.low);
      create->mutable_uniform()->set_high(attributes.high);
      break;
    case OpCode::kNormal:
      if (attributes.stddev == 0) {
        create->set_fill(attributes.mean);
        break;
      }
      create->mutable_normal()->set_seed(attributes.seed);
      create->mutable_normal()->set_mean(attributes.mean);
      create->mutable_normal()->set_stddev(attributes.stddev);
      break;
    default:
      create->set_fill(attributes.value);
  }
}

void EncodeAttributes(const OpAttributes& attributes, v1::Op* op) {
  static const auto* const defaults = new OpAttributes;
  if (attributes == *defaults) {
    return;
  }
  v1::Attributes* wire = op->mutable_attributes();
  wire->set_transpose_a(attributes.transpose_a);
  wire->set_transpose_b(attributes.transpose_b);
  wire->set_keep_dims(attributes.keep_dims);
  wire->set_activation(static_cast<v1::Activation>(attributes.activation));
  wire->set_dtype(WireDType(attributes.dtype));
  wire->mutable_axes()->Add(attributes.axes.begin(), attributes.axes.end());
  wire->mutable_shape()->Add(attributes.shape.begin(), attributes.shape.end());
  wire->mutable_starts()->Add(attributes.starts.begin(), attributes.starts.end());
  wire->mutable_stops()->Add(attributes.stops.begin(), attributes.stops.end());
}

}  // namespace devserver::client
