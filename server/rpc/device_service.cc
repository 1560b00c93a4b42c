#include <grpcpp/alarm.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"
#include "devserver/v1/device.grpc.pb.h"
#include "server/base/status_macros.h"
#include "server/rpc/services.h"
#include "server/rpc/unary.h"
#include "server/rpc/wire.h"

namespace devserver {
namespace {

constexpr double kWatchSecondsMin = 0.05;  // A client that asks for more is only a load.
constexpr double kWatchSecondsMax = 3600;

void DeviceToWire(const Backend& backend, size_t index, v1::Device* wire) {
  const DeviceQueue& queue = backend.devices->queue(index);
  const DeviceProperties& properties = queue.device().properties();
  wire->set_name(properties.name);
  wire->set_kind(static_cast<v1::Device::Kind>(properties.kind));
  wire->set_model(properties.model);
  wire->set_uuid(properties.uuid);
  wire->set_pci_bus_id(properties.pci_bus_id);
  wire->set_health(v1::Device::HEALTHY);
  const DeviceMemory memory = queue.device().memory();
  wire->set_memory_limit_bytes(properties.memory_limit_bytes);
  wire->set_memory_used_bytes(memory.used_bytes);
  wire->set_memory_reserved_bytes(memory.reserved_bytes);
  wire->set_memory_peak_bytes(memory.peak_bytes);
  const Telemetry telemetry = queue.device().telemetry();
  v1::Telemetry* const readings = wire->mutable_telemetry();
  readings->set_utilization(backend.utilization.Utilization(index));
  readings->set_busy_seconds(queue.busy_seconds());
  if (telemetry.temperature_celsius.has_value()) {
    readings->set_temperature_celsius(*telemetry.temperature_celsius);
  }
  if (telemetry.power_watts.has_value()) {
    readings->set_power_watts(*telemetry.power_watts);
  }
  if (telemetry.power_limit_watts.has_value()) {
    readings->set_power_limit_watts(*telemetry.power_limit_watts);
  }
  uint64_t tensors = 0;
  for (const SessionRef& session : backend.sessions.List()) {
    tensors += session->account().tensors_on(index);
  }
  wire->set_tensors(tensors);
  wire->set_queued_commands(queue.queued());
  wire->set_simulated_seconds(queue.device().simulated_seconds());
}

void DevicesToWire(const Backend& backend, v1::ListDevicesReply* reply) {
  reply->set_server(backend.server_name);
  for (size_t i = 0; i < backend.devices->size(); ++i) {
    DeviceToWire(backend, i, reply->add_devices());
  }
  reply->set_no_gpu_reason(backend.devices->no_gpu_reason());
}

// Sends the list every interval until the caller ends the call. Alarms and writes take turns: there
// is never more than one of both under way.
class Watch final : public grpc::ServerWriteReactor<v1::ListDevicesReply> {
 public:
  Watch(const BackendSlot* slot, double interval_seconds)
      : slot_(*slot), interval_(static_cast<int64_t>(interval_seconds * 1e6)) {
    Send();
  }

  void OnWriteDone(bool ok) override {
    {
      const MutexLock lock(&mu_);
      if (ok && !cancelled_) {
        alarm_.Set(std::chrono::system_clock::now() + interval_,
                   [this](bool /*in_time*/) { Send(); });
        alarm_is_set_ = true;
        return;
      }
    }
    Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the caller ended the watch"));
  }

  void OnCancel() override {
    const MutexLock lock(&mu_);
    cancelled_ = true;
    if (alarm_is_set_) {
      alarm_.Cancel();  // It fires at once: a cancelled call does not wait for its interval.
    }
  }

  void OnDone() override { delete this; }

 private:
  void Send() {
    const absl::StatusOr<Backend*> backend = slot_.Get();
    bool cancelled = false;
    {
      const MutexLock lock(&mu_);
      alarm_is_set_ = false;
      cancelled = cancelled_;
    }
    if (cancelled || !backend.ok()) {
      Finish(backend.ok() ? grpc::Status(grpc::StatusCode::CANCELLED, "the caller ended the watch")
                          : ToGrpc(backend.status()));
      return;
    }
    reply_.Clear();
    DevicesToWire(**backend, &reply_);
    StartWrite(&reply_);
  }

  const BackendSlot& slot_;
  const std::chrono::microseconds interval_;
  v1::ListDevicesReply reply_;
  // Guarded by mu_.
  Mutex mu_;
  grpc::Alarm alarm_ ABSL_GUARDED_BY(mu_);
  bool alarm_is_set_ ABSL_GUARDED_BY(mu_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
};

// A watch that is refused at once.
class RefusedWatch final : public grpc::ServerWriteReactor<v1::ListDevicesReply> {
 public:
  explicit RefusedWatch(const absl::Status& status) { Finish(ToGrpc(status)); }
  void OnDone() override { delete this; }
};

class DeviceService final : public v1::DeviceService::CallbackService {
 public:
  explicit DeviceService(const BackendSlot* slot) : slot_(*slot) {}

  grpc::ServerUnaryReactor* ListDevices(grpc::CallbackServerContext* context,
                                        const v1::ListDevicesRequest* /*request*/,
                                        v1::ListDevicesReply* reply) override {
    const absl::StatusOr<Backend*> backend = slot_.Get();
    if (backend.ok()) {
      DevicesToWire(**backend, reply);
    }
    return FinishWith(context, backend.status());
  }

  grpc::ServerUnaryReactor* GetDevice(grpc::CallbackServerContext* context,
                                      const v1::GetDeviceRequest* request,
                                      v1::Device* reply) override {
    return FinishWith(context, Get(*request, reply));
  }

  grpc::ServerWriteReactor<v1::ListDevicesReply>* WatchDevices(
      grpc::CallbackServerContext* /*context*/, const v1::WatchDevicesRequest* request) override {
    const double interval = request->interval_seconds() == 0 ? 1 : request->interval_seconds();
    if (!(interval >= kWatchSecondsMin && interval <= kWatchSecondsMax)) {
      return new RefusedWatch(absl::InvalidArgumentError(
          absl::StrFormat("interval_seconds is %g; give %g to %g, or 0 for 1", interval,
                          kWatchSecondsMin, kWatchSecondsMax)));
    }
    return new Watch(&slot_, interval);
  }

  grpc::ServerUnaryReactor* ListOps(grpc::CallbackServerContext* context,
                                    const v1::ListOpsRequest* request,
                                    v1::ListOpsReply* reply) override {
    return FinishWith(context, Ops(*request, reply));
  }

 private:
  absl::Status Get(const v1::GetDeviceRequest& request, v1::Device* reply) {
    ASSIGN_OR_RETURN(Backend* const backend, slot_.Get());
    ASSIGN_OR_RETURN(const size_t index, backend->devices->Find(request.name()));
    DeviceToWire(*backend, index, reply);
    return absl::OkStatus();
  }

  absl::Status Ops(const v1::ListOpsRequest& request, v1::ListOpsReply* reply) {
    ASSIGN_OR_RETURN(Backend* const backend, slot_.Get());
    size_t first = 0;
    size_t last = backend->devices->size();
    if (!request.device().empty()) {
      ASSIGN_OR_RETURN(first, backend->devices->Find(request.device()));
      last = first + 1;
    }
    for (const OpDef& op : AllOps()) {
      v1::OpDescription* const wire = reply->add_ops();
      wire->set_name(std::string(op.name));
      wire->set_inputs_min(static_cast<uint32_t>(op.inputs_min));
      wire->set_inputs_max(static_cast<uint32_t>(op.inputs_max));
      wire->set_attributes(std::string(op.attributes));
      wire->set_result(std::string(op.result));
      wire->set_error_bound(std::string(op.error_bound));
      for (size_t i = first; i < last; ++i) {
        const Device& device = backend->devices->queue(i).device();
        v1::DTypes& dtypes = (*wire->mutable_dtypes_by_device())[device.properties().name];
        for (const DType dtype : kAllDTypes) {
          if (op.dtypes.Contains(dtype) && device.Supports(op.code, dtype)) {
            dtypes.add_dtypes(static_cast<v1::DType>(dtype));
          }
        }
      }
    }
    return absl::OkStatus();
  }

  const BackendSlot& slot_;
};

}  // namespace

std::unique_ptr<grpc::Service> NewDeviceService(const BackendSlot* slot) {
  return std::make_unique<DeviceService>(slot);
}

}  // namespace devserver
