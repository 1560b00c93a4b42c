#include "devserver/client.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "client/connection.h"
#include "client/deadline.h"
#include "client/wire.h"
#include "server/base/error_details.h"
#include "server/base/status_macros.h"

namespace devserver::client {
namespace {

constexpr uint32_t kPageSize = 1000;

std::string NamesOf(const std::vector<DeviceInfo>& devices) {
  std::string names;
  for (const DeviceInfo& device : devices) {
    names += (names.empty() ? "" : ", ") + device.name;
  }
  return names;
}

// "GPU:1", "cuda:1" -> "gpu:1"; "cpu" -> "cpu:0".
std::string CanonicalName(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return absl::ascii_tolower(static_cast<unsigned char>(c)); });
  if (name.rfind("cuda", 0) == 0) {
    name.replace(0, 4, "gpu");
  }
  return name.find(':') == std::string::npos ? name + ":0" : name;
}

}  // namespace

absl::StatusOr<Client> Client::connect(const std::string& address, ClientOptions options) {
  ASSIGN_OR_RETURN(std::shared_ptr<Connection> connection,
                   Connection::Open(address, std::move(options)));
  return Client(std::move(connection));
}

const std::string& Client::address() const { return connection_->address(); }
const std::string& Client::server_id() const { return connection_->server_id(); }
const ServerLimits& Client::limits() const { return connection_->limits(); }
const ClientOptions& Client::options() const { return connection_->options(); }

absl::StatusOr<Device> Client::device(const std::string& name) const {
  const DeviceInfo* info = connection_->FindDevice(CanonicalName(name));
  if (info == nullptr) {
    const DeviceList& list = connection_->devices();
    const std::string reason =
        num_gpus() == 0 && !list.no_gpu_reason.empty() ? "; no GPU: " + list.no_gpu_reason : "";
    return MakeError(absl::StatusCode::kNotFound, ErrorReason::kNoSuchDevice,
                     absl::StrFormat("no device \"%s\" on server %s; there are %s%s", name,
                                     address(), NamesOf(list.devices), reason));
  }
  return Device(connection_, info);
}

Device Client::cpu() const { return Device(connection_, connection_->FindDevice("cpu:0")); }

absl::StatusOr<Device> Client::gpu(int index) const {
  return device(absl::StrFormat("gpu:%d", index));
}

int Client::num_gpus() const {
  const std::vector<DeviceInfo>& devices = connection_->devices().devices;
  return static_cast<int>(std::count_if(devices.begin(), devices.end(), [](const DeviceInfo& info) {
    return info.name.rfind("gpu:", 0) == 0;
  }));
}

Device Client::try_gpu(int index) const {
  const absl::StatusOr<Device> found = gpu(index);
  if (found.ok()) {
    return *found;
  }
  return Device(
      connection_, connection_->FindDevice("cpu:0"),
      absl::StrFormat("%s; this is cpu:0 instead", std::string(found.status().message())));
}

std::vector<Device> Client::try_all_gpus() const {
  std::vector<Device> found;
  for (const DeviceInfo& info : connection_->devices().devices) {
    if (info.name.rfind("gpu:", 0) == 0) {
      found.push_back(Device(connection_, &info));
    }
  }
  if (found.empty()) {
    found.push_back(try_gpu());
  }
  return found;
}

absl::Status Client::sync(absl::Duration timeout) const { return connection_->Sync(timeout); }

absl::StatusOr<Tensor> Client::get(uint64_t id) const {
  RETURN_IF_ERROR(connection_->Settle());
  v1::GetTensorRequest request;
  request.set_id(id);
  v1::Tensor reply;
  RETURN_IF_ERROR(
      connection_->Call(kDefaultTimeout, [&](const Transport& transport, auto* context) {
        return transport.tensors->GetTensor(context, request, &reply);
      }));
  ASSIGN_OR_RETURN(const TensorInfo info, TensorInfoFrom(reply));
  const auto handle = std::make_shared<TensorHandle>();
  handle->connection = connection_;
  handle->device = connection_->FindDevice(info.device);
  if (handle->device == nullptr) {
    return absl::InternalError(absl::StrFormat(
        "server %s puts tensor %d on %s, which it never listed", address(), id, info.device));
  }
  handle->spec = info.spec;
  handle->id = info.id;
  handle->failure = info.error;
  return Connection::TensorOf(handle);
}

absl::StatusOr<uint64_t> Client::remove(std::span<const uint64_t> ids) const {
  RETURN_IF_ERROR(connection_->Settle());
  v1::Delete request;
  request.mutable_ids()->Add(ids.begin(), ids.end());
  v1::DeleteReply reply;
  RETURN_IF_ERROR(
      connection_->Call(kDefaultTimeout, [&](const Transport& transport, auto* context) {
        return transport.tensors->DeleteTensors(context, request, &reply);
      }));
  return reply.freed_bytes();
}

absl::StatusOr<std::vector<TensorInfo>> Client::list_tensors(bool all_sessions,
                                                             const std::string& device) const {
  RETURN_IF_ERROR(connection_->Settle());
  std::vector<TensorInfo> tensors;
  v1::ListTensorsRequest request;
  request.set_device(device);
  request.set_all_sessions(all_sessions);
  request.set_page_size(kPageSize);
  const TimePoint deadline = DeadlineAfter(connection_->Timeout(kDefaultTimeout));
  do {
    v1::ListTensorsReply reply;
    RETURN_IF_ERROR(
        connection_->Call(kDefaultTimeout, [&](const Transport& transport, auto* context) {
          return transport.tensors->ListTensors(context, request, &reply);
        }));
    for (const v1::TensorListing& listing : reply.tensors()) {
      ASSIGN_OR_RETURN(TensorInfo info, TensorInfoFrom(listing.tensor()));
      info.age_seconds = listing.age_seconds();
      info.idle_seconds = listing.idle_seconds();
      info.session = listing.session();
      tensors.push_back(std::move(info));
    }
    request.set_page_token(reply.next_page_token());
  } while (!request.page_token().empty() && Clock::Real()->Now() < deadline);
  if (!request.page_token().empty()) {
    return absl::DeadlineExceededError(absl::StrFormat(
        "server %s has listed %d tensors and has not come to an end", address(), tensors.size()));
  }
  return tensors;
}

absl::StatusOr<DeviceList> Client::devices() const {
  RETURN_IF_ERROR(connection_->Settle());
  v1::ListDevicesReply reply;
  RETURN_IF_ERROR(
      connection_->Call(kDefaultTimeout, [&](const Transport& transport, auto* context) {
        return transport.devices->ListDevices(context, v1::ListDevicesRequest(), &reply);
      }));
  return DeviceListFrom(reply);
}

absl::Status Client::watch_devices(absl::Duration interval,
                                   const std::function<bool(const DeviceList&)>& on_list) const {
  const std::shared_ptr<const Transport> transport = connection_->transport();
  v1::WatchDevicesRequest request;
  request.set_interval_seconds(absl::ToDoubleSeconds(interval));
  const absl::Duration patience = interval + connection_->Timeout(kDefaultTimeout);
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  PrepareCall(&context, connection_->token(), absl::InfiniteDuration());
  const auto reader = transport->devices->AsyncWatchDevices(&context, request, &queue, nullptr);
  v1::ListDevicesReply reply;
  grpc::Status ended;
  bool timed_out = false;
  void* tag = nullptr;
  bool ok = false;
  bool more = queue.Next(&tag, &ok) && ok;  // The call has started.
  while (more) {
    reader->Read(&reply, nullptr);
    const auto until = std::chrono::system_clock::now() + absl::ToChronoMicroseconds(patience);
    if (queue.AsyncNext(&tag, &ok, until) == grpc::CompletionQueue::TIMEOUT) {
      timed_out = true;
      context.TryCancel();
      queue.Next(&tag, &ok);  // The read's end.
      break;
    }
    more = ok && on_list(DeviceListFrom(reply));
    if (ok && !more) {
      context.TryCancel();
    }
  }
  const bool asked_to_end = ok && !more;
  reader->Finish(&ended, nullptr);
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  if (timed_out) {
    return absl::DeadlineExceededError(absl::StrFormat(
        "server %s has sent no list of devices for %s", address(), absl::FormatDuration(patience)));
  }
  return asked_to_end ? absl::OkStatus()
                      : StatusFrom(ended, absl::StrFormat("server %s", address()));
}

absl::StatusOr<SessionInfo> Client::session() const {
  RETURN_IF_ERROR(connection_->Settle());
  v1::Session reply;
  RETURN_IF_ERROR(
      connection_->Call(kDefaultTimeout, [&](const Transport& transport, auto* context) {
        return transport.sessions->GetSession(context, v1::GetSessionRequest(), &reply);
      }));
  return SessionInfoFrom(reply);
}

absl::StatusOr<std::vector<SessionInfo>> Client::sessions() const {
  RETURN_IF_ERROR(connection_->Settle());
  v1::ListSessionsReply reply;
  RETURN_IF_ERROR(
      connection_->Call(kDefaultTimeout, [&](const Transport& transport, auto* context) {
        return transport.sessions->ListSessions(context, v1::ListSessionsRequest(), &reply);
      }));
  std::vector<SessionInfo> sessions;
  for (const v1::Session& session : reply.sessions()) {
    sessions.push_back(SessionInfoFrom(session));
  }
  return sessions;
}

}  // namespace devserver::client
