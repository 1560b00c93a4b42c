#include "server/session/session.h"

#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "server/base/error_details.h"
#include "server/base/status_macros.h"
#include "server/session/execution.h"

namespace devserver {
namespace {

// Which command an id was given with, to tell a replay from another command. Inside this process
// only.
uint64_t AttributesHash(const OpAttributes* attributes) {
  if (attributes == nullptr) {
    return 0;
  }
  const OpAttributes& a = *attributes;
  return absl::HashOf(a.transpose_a, a.transpose_b, a.keep_dims, a.activation, a.dtype, a.axes,
                      a.shape, a.starts, a.stops, a.value, a.start, a.step, a.low, a.high, a.mean,
                      a.stddev, a.seed);
}

template <typename T>
absl::Span<const T> Hashable(std::span<const T> values) {
  return absl::MakeConstSpan(values.data(), values.size());
}

template <typename... Parts>
uint64_t Fingerprint(uint64_t id, const Parts&... parts) {
  return id == 0 ? 0 : absl::HashOf(parts...);
}

enum class CommandKind : uint8_t { kCreate, kValues, kOp, kCopy, kUpload };

absl::Status OverLimit(ErrorReason reason, const std::string& message, uint64_t asked,
                       uint64_t used, uint64_t limit) {
  ErrorDetails details;
  details.reason = reason;
  details.asked = asked;
  details.used = used;
  details.limit = limit;
  return WithDetails(absl::ResourceExhaustedError(message), details);
}

}  // namespace

Session::Session(Options options, Surroundings surroundings)
    : options_(std::move(options)),
      surroundings_(surroundings),
      account_(std::make_shared<Account>(options_.name, *surroundings.limits,
                                         surroundings.devices->size())),
      opened_(surroundings.clock->Now()),
      execution_(std::make_shared<Execution>(account_, surroundings.limits->commands_in_flight)),
      last_seen_(opened_.time_since_epoch().count()) {}

Session::~Session() = default;

absl::StatusOr<TensorRef> Session::Create(OpCode source,
                                          std::unique_ptr<const OpAttributes> attributes,
                                          std::string_view device, Request request) {
  const uint64_t fingerprint = Fingerprint(request.id, CommandKind::kCreate, source,
                                           AttributesHash(attributes.get()), device);
  const absl::StatusOr<TensorSpec> spec = InferSpec(source, {}, *attributes);
  absl::StatusOr<Accepted> accepted = Accepted{};
  {
    const MutexLock lock(&mu_);
    if (!spec.ok()) {
      accepted = spec.status();
    } else {
      accepted = CreateLocked(*spec, device, fingerprint, request, [&](Tensor& tensor) {
        tensor.SetOp(source, {}, std::move(attributes));
      });
    }
    if (!accepted.ok() && request.leave_failed) {
      LeaveFailedLocked(request.id, request.command_number, accepted.status());
    }
  }
  return Finish(std::move(accepted), request);
}

absl::StatusOr<TensorRef> Session::CreateFromValues(const TensorSpec& spec,
                                                    std::vector<std::byte> values,
                                                    std::string_view device, Request request) {
  const uint64_t fingerprint =
      Fingerprint(request.id, CommandKind::kValues, spec.dtype, Hashable(spec.shape.dims()), device,
                  std::string_view(reinterpret_cast<const char*>(values.data()), values.size()));
  absl::StatusOr<Accepted> accepted = Accepted{};
  {
    const MutexLock lock(&mu_);
    accepted = CreateLocked(spec, device, fingerprint, request, [&](Tensor& tensor) {
      const double link_seconds =
          surroundings_.devices->HostLinkSeconds(tensor.device_index(), tensor.size_bytes());
      tensor.SetValues(std::move(values), link_seconds);
    });
    if (!accepted.ok() && request.leave_failed) {
      LeaveFailedLocked(request.id, request.command_number, accepted.status());
    }
  }
  return Finish(std::move(accepted), request);
}

absl::StatusOr<Session::Accepted> Session::CreateLocked(const TensorSpec& spec,
                                                        std::string_view device,
                                                        uint64_t fingerprint, Request& request,
                                                        Work work) {
  ASSIGN_OR_RETURN(TensorRef replay, FindReplay(request.id, fingerprint));
  if (replay != nullptr) {
    return Accepted{std::move(replay), true};
  }
  ASSIGN_OR_RETURN(const size_t device_index, surroundings_.devices->Find(device));
  RETURN_IF_ERROR(CheckRoom(request));
  RETURN_IF_ERROR(CheckFits(spec, device_index));
  return Accepted{Launch(spec, device_index, fingerprint, request, work), false};
}

absl::StatusOr<TensorRef> Session::Apply(OpCode code, std::span<const uint64_t> inputs,
                                         std::unique_ptr<const OpAttributes> attributes,
                                         Request request) {
  const uint64_t fingerprint = Fingerprint(request.id, CommandKind::kOp, code, Hashable(inputs),
                                           AttributesHash(attributes.get()));
  absl::StatusOr<Accepted> accepted = Accepted{};
  {
    const MutexLock lock(&mu_);
    accepted = ApplyLocked(code, inputs, std::move(attributes), fingerprint, request);
    if (!accepted.ok() && request.leave_failed) {
      LeaveFailedLocked(request.id, request.command_number, accepted.status());
    }
  }
  return Finish(std::move(accepted), request);
}

absl::StatusOr<Session::Accepted> Session::ApplyLocked(
    OpCode code, std::span<const uint64_t> ids, std::unique_ptr<const OpAttributes> attributes,
    uint64_t fingerprint, Request& request) {
  ASSIGN_OR_RETURN(TensorRef replay, FindReplay(request.id, fingerprint));
  if (replay != nullptr) {
    return Accepted{std::move(replay), true};
  }
  const OpDef& op = GetOp(code);
  if (ids.empty()) {
    return MakeError(absl::StatusCode::kInvalidArgument, ErrorReason::kShapeMismatch,
                     absl::StrFormat("%s: no inputs; %s", op.name,
                                     op.inputs_max == 0 ? "it is made with CreateTensor"
                                                        : "give the ids of its input tensors"));
  }
  RETURN_IF_ERROR(CheckRoom(request));
  Tensor::Inputs inputs;
  absl::InlinedVector<TensorSpec, 3> specs;
  for (const uint64_t id : ids) {
    ASSIGN_OR_RETURN(TensorRef input, FindInput(id, op.name));
    specs.push_back(input->spec());
    inputs.push_back(std::move(input));
  }
  for (const TensorRef& input : inputs) {
    if (input->queue() != inputs[0]->queue()) {
      return DeviceMismatch(code, inputs);
    }
  }
  static const OpAttributes* const defaults = new OpAttributes;
  ASSIGN_OR_RETURN(const TensorSpec spec,
                   InferSpec(code, specs, attributes == nullptr ? *defaults : *attributes));
  const size_t device_index = inputs[0]->device_index();
  if (!inputs[0]->queue()->device().Supports(code, specs[0].dtype)) {
    return MakeError(absl::StatusCode::kUnimplemented, ErrorReason::kDtypeUnsupported,
                     absl::StrFormat("%s can't run %s on %s; ListOps tells what it can",
                                     inputs[0]->device_name(), op.name, DTypeName(specs[0].dtype)));
  }
  RETURN_IF_ERROR(CheckFits(spec, device_index));
  const TimePoint now = last_seen();
  for (const TensorRef& input : inputs) {
    input->Touch(now);
  }
  return Accepted{
      Launch(spec, device_index, fingerprint, request,
             [&](Tensor& tensor) { tensor.SetOp(code, std::move(inputs), std::move(attributes)); }),
      false};
}

absl::StatusOr<TensorRef> Session::Copy(uint64_t source, std::string_view device,
                                        double max_seconds, Request request) {
  const uint64_t fingerprint = Fingerprint(request.id, CommandKind::kCopy, source, device);
  absl::StatusOr<Accepted> accepted = Accepted{};
  {
    const MutexLock lock(&mu_);
    accepted = CopyLocked(source, device, max_seconds, fingerprint, request);
    if (!accepted.ok() && request.leave_failed) {
      LeaveFailedLocked(request.id, request.command_number, accepted.status());
    }
  }
  return Finish(std::move(accepted), request);
}

absl::StatusOr<Session::Accepted> Session::CopyLocked(uint64_t source, std::string_view device,
                                                      double max_seconds, uint64_t fingerprint,
                                                      Request& request) {
  ASSIGN_OR_RETURN(TensorRef replay, FindReplay(request.id, fingerprint));
  if (replay != nullptr) {
    return Accepted{std::move(replay), true};
  }
  if (device.empty()) {
    return absl::InvalidArgumentError("copy: no target device given; name one, as in \"gpu:1\"");
  }
  RETURN_IF_ERROR(CheckRoom(request));
  ASSIGN_OR_RETURN(const size_t device_index, surroundings_.devices->Find(device));
  ASSIGN_OR_RETURN(TensorRef input, FindInput(source, "copy"));
  const TensorSpec spec = input->spec();
  RETURN_IF_ERROR(CheckFits(spec, device_index));
  Quote quote = surroundings_.devices->fabric().QuoteCopy(
      input->device_name(), surroundings_.devices->queue(device_index).name(), spec.size_bytes());
  const bool unknown = quote.estimated.basis == Basis::kUnknown;
  if (max_seconds != 0 && !(!unknown && quote.estimated.seconds <= max_seconds)) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, ErrorReason::kTooExpensive,
        absl::StrFormat(
            "copy of tensor %d (%d bytes) from %s to %s: the quote is %s, max_seconds is "
            "%g; raise max_seconds, or 0 for no bound",
            source, spec.size_bytes(), input->device_name(),
            surroundings_.devices->queue(device_index).name(),
            unknown ? "unknown" : absl::StrFormat("%g s", quote.estimated.seconds), max_seconds));
  }
  input->Touch(last_seen());
  return Accepted{
      Launch(spec, device_index, fingerprint, request,
             [&](Tensor& tensor) { tensor.SetCopy(std::move(input), std::move(quote)); }),
      false};
}

absl::StatusOr<Session::Ensured> Session::EnsureOn(uint64_t source, std::string_view device,
                                                   double max_seconds, Request request) {
  ASSIGN_OR_RETURN(TensorRef tensor, Find(source));
  ASSIGN_OR_RETURN(const size_t device_index, surroundings_.devices->Find(device));
  if (tensor->state() == Tensor::State::kFailed) {
    return tensor->InputFailed("ensure_on");
  }
  if (tensor->queue() == &surroundings_.devices->queue(device_index)) {
    tensor->WhenDone(std::move(request.done));
    return Ensured{std::move(tensor), false};
  }
  ASSIGN_OR_RETURN(tensor, Copy(source, device, max_seconds, std::move(request)));
  return Ensured{std::move(tensor), true};
}

absl::StatusOr<TensorRef> Session::Finish(absl::StatusOr<Accepted> accepted, Request& request) {
  RETURN_IF_ERROR(accepted.status());
  if (accepted->is_replay && request.done) {
    accepted->tensor->WhenDone(
        std::move(request.done));  // Outside the lock: it may be called at once.
  }
  return std::move(accepted->tensor);
}

absl::StatusOr<TensorRef> Session::FindReplay(uint64_t id, uint64_t fingerprint) const {
  RETURN_IF_ERROR(CheckOpen());
  if (id == 0) {
    return nullptr;
  }
  const auto found = tensors_.find(id);
  if (found == tensors_.end()) {
    return nullptr;
  }
  if (found->second->fingerprint() != fingerprint) {
    return MakeError(
        absl::StatusCode::kAlreadyExists, ErrorReason::kDuplicateId,
        absl::StrFormat("tensor %d exists and was made by another command (it is %s on %s); "
                        "choose another id, or 0 to let the server pick",
                        id, found->second->spec().ToString(), found->second->device_name()));
  }
  return found->second;
}

absl::Status Session::CheckOpen() const {
  if (closed_) {
    return MakeError(absl::StatusCode::kNotFound, ErrorReason::kSessionExpired,
                     absl::StrFormat("session '%s' was closed or its lease ran out; open a new one",
                                     options_.name));
  }
  return absl::OkStatus();
}

absl::Status Session::CheckRoom(const Request& request) const {
  const Limits& limits = *surroundings_.limits;
  if (tensors_.size() >= limits.session_tensors) {
    return OverLimit(
        ErrorReason::kQuota,
        absl::StrFormat("session '%s' is over its quota of handles: asked 1, used %d, limit %d "
                        "(limits.session_tensors); delete tensors",
                        options_.name, tensors_.size(), limits.session_tensors),
        1, tensors_.size(), limits.session_tensors);
  }
  // A stream is held back before it comes to this (execution.h); a batch that was read whole is let
  // in.
  if (request.command_number == 0 && account_->in_flight() >= limits.commands_in_flight) {
    return OverLimit(
        ErrorReason::kQuota,
        absl::StrFormat("session '%s' has too many commands in flight: asked 1, used %d, limit %d "
                        "(limits.commands_in_flight); wait for results",
                        options_.name, account_->in_flight(), limits.commands_in_flight),
        1, account_->in_flight(), limits.commands_in_flight);
  }
  return absl::OkStatus();
}

absl::Status Session::CheckFits(const TensorSpec& spec, size_t device_index) const {
  const DeviceProperties& properties =
      surroundings_.devices->queue(device_index).device().properties();
  const uint64_t size_bytes = spec.size_bytes();
  if (size_bytes > properties.memory_limit_bytes) {
    absl::Status status = OverLimit(
        ErrorReason::kDeviceMemory,
        absl::StrFormat("%s does not fit %s: asked %d bytes, used %d, limit %d; use a smaller "
                        "tensor or another "
                        "device",
                        spec.ToString(), properties.name, size_bytes,
                        surroundings_.devices->queue(device_index).device().memory().used_bytes,
                        properties.memory_limit_bytes),
        size_bytes, surroundings_.devices->queue(device_index).device().memory().used_bytes,
        properties.memory_limit_bytes);
    ErrorDetails details = *DetailsOf(status);
    details.device = properties.name;
    return WithDetails(std::move(status), details);
  }
  if (size_bytes > surroundings_.limits->session_bytes) {
    return OverLimit(
        ErrorReason::kQuota,
        absl::StrFormat("%s does not fit the byte quota of session '%s': asked %d bytes, used %d, "
                        "limit %d (limits.session_bytes)",
                        spec.ToString(), options_.name, size_bytes, account_->bytes(),
                        surroundings_.limits->session_bytes),
        size_bytes, account_->bytes(), surroundings_.limits->session_bytes);
  }
  return absl::OkStatus();
}

const TensorRef* Session::FindLocked(uint64_t id) const {
  const auto found = tensors_.find(id);
  return found == tensors_.end() ? nullptr : &found->second;
}

absl::Status Session::NoSuchTensor(uint64_t id, std::string_view what) const {
  return MakeError(
      absl::StatusCode::kNotFound, ErrorReason::kNoSuchTensor,
      id == 0 ? absl::StrFormat("%shandle 0 is never a tensor; give the id of one", what)
              : absl::StrFormat("%sno tensor %d in session '%s' (deleted, never made, or another "
                                "session's); ListTensors shows what is there",
                                what, id, options_.name));
}

absl::StatusOr<TensorRef> Session::FindInput(uint64_t id, std::string_view what) const {
  const TensorRef* const input = FindLocked(id);
  if (input == nullptr) {
    return NoSuchTensor(id, absl::StrFormat("%s: ", what));
  }
  if ((*input)->state() == Tensor::State::kFailed) {
    return (*input)->InputFailed(what);
  }
  return *input;
}

absl::Status Session::DeviceMismatch(OpCode code, std::span<const TensorRef> inputs) const {
  // The cure moves the smaller tensor; of two equal ones the first.
  const TensorRef& target =
      *std::ranges::max_element(inputs, [](const TensorRef& a, const TensorRef& b) {
        return a->size_bytes() <= b->size_bytes() && a->queue() != b->queue();
      });
  const TensorRef& source = *std::ranges::find_if(
      inputs, [&](const TensorRef& input) { return input->queue() != target->queue(); });
  const Quote quote = surroundings_.devices->fabric().QuoteCopy(
      source->device_name(), target->device_name(), source->size_bytes());
  ErrorDetails details;
  details.reason = ErrorReason::kDeviceMismatch;
  details.cure_source = source->id();
  details.cure_device = target->device_name();
  details.cure_bytes = source->size_bytes();
  const bool known = quote.estimated.basis != Basis::kUnknown;
  details.cure_seconds = known ? quote.estimated.seconds : -1;
  return WithDetails(
      absl::InvalidArgumentError(absl::StrFormat(
          "%s: tensor %d (%s) is on %s, tensor %d (%s) is on %s, and nothing moves by itself. Copy "
          "one first: CopyTensor {\"source\": %d, \"device\": \"%s\"}, or copy_to(%s) in C++, "
          "moves %d bytes, estimated time %s",
          GetOp(code).name, source->id(), source->spec().ToString(), source->device_name(),
          target->id(), target->spec().ToString(), target->device_name(), source->id(),
          target->device_name(), target->device_name(), source->size_bytes(),
          known ? absl::StrFormat("%g s%s", quote.estimated.seconds,
                                  quote.simulated ? " (simulated)" : "")
                : "unknown")),
      details);
}

TensorRef Session::Launch(const TensorSpec& spec, size_t device_index, uint64_t fingerprint,
                          Request& request, Work work) {
  Tensor::Identity identity;
  identity.id = request.id == 0 ? PickId() : request.id;
  identity.spec = spec;
  identity.queue = &surroundings_.devices->queue(device_index);
  identity.device_index = device_index;
  identity.account = account_;
  identity.fingerprint = fingerprint;
  identity.command_number = request.command_number;
  identity.created = last_seen();
  TensorRef tensor = std::make_shared<Tensor>(std::move(identity));
  if (!request.label.empty()) {
    tensor->SetLabel(std::move(request.label));
  }
  if (request.measure_time) {
    tensor->MeasureTime();
  }
  tensor->SetDone(std::move(request.done));
  work(*tensor);
  tensors_[tensor->id()] = tensor;
  account_->CommandStarted();
  Tensor::Start(tensor);
  return tensor;
}

void Session::LeaveFailed(uint64_t id, uint64_t command_number, const absl::Status& status) {
  const MutexLock lock(&mu_);
  LeaveFailedLocked(id, command_number, status);
}

void Session::LeaveFailedLocked(uint64_t id, uint64_t command_number, const absl::Status& status) {
  if (id == 0 || closed_ || tensors_.size() >= surroundings_.limits->session_tensors ||
      tensors_.contains(id)) {
    return;
  }
  Tensor::Identity identity;
  identity.id = id;
  identity.account = account_;
  identity.command_number = command_number;
  identity.created = last_seen();
  const TensorRef tensor = std::make_shared<Tensor>(std::move(identity));
  ErrorDetails details = DetailsOf(status).value_or(ErrorDetails());
  if (details.origin_tensor == 0) {
    details.origin_tensor = id;
    details.command_number = command_number;
  }
  tensor->Fail(WithDetails(status, details));
  tensors_[id] = tensor;
}

uint64_t Session::PickId() {
  while (tensors_.contains(next_id_)) {
    ++next_id_;
  }
  return next_id_++;
}

absl::StatusOr<TensorRef> Session::Find(uint64_t id) {
  const MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckOpen());
  const TensorRef* const tensor = FindLocked(id);
  if (tensor == nullptr) {
    return NoSuchTensor(id, "");
  }
  (*tensor)->Touch(last_seen());
  return *tensor;
}

absl::StatusOr<uint64_t> Session::Delete(std::span<const uint64_t> ids) {
  std::vector<TensorRef> dropped;  // Their memory is given back after the lock.
  const MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckOpen());
  for (const uint64_t id : ids) {
    if (FindLocked(id) == nullptr) {
      return NoSuchTensor(id, "");
    }
  }
  uint64_t freed_bytes = 0;
  for (const uint64_t id : ids) {
    const auto found = tensors_.find(id);
    if (found != tensors_.end()) {  // Not for an id that was named twice.
      freed_bytes +=
          found->second->state() == Tensor::State::kFailed ? 0 : found->second->size_bytes();
      dropped.push_back(std::move(found->second));
      tensors_.erase(found);
    }
  }
  return freed_bytes;
}

absl::StatusOr<TensorRef> Session::BeginUpload(const TensorSpec& spec, std::string_view device,
                                               uint64_t id, std::string label) {
  const uint64_t fingerprint =
      Fingerprint(id, CommandKind::kUpload, spec.dtype, Hashable(spec.shape.dims()), device);
  Tensor::Identity identity;
  {
    const MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(TensorRef replay, FindReplay(id, fingerprint));
    if (replay != nullptr) {
      return replay;
    }
    ASSIGN_OR_RETURN(identity.device_index, surroundings_.devices->Find(device));
    RETURN_IF_ERROR(CheckRoom(Request()));
    RETURN_IF_ERROR(CheckFits(spec, identity.device_index));
    identity.id = id == 0 ? PickId() : id;
  }
  identity.spec = spec;
  identity.queue = &surroundings_.devices->queue(identity.device_index);
  identity.account = account_;
  identity.fingerprint = fingerprint;
  identity.created = last_seen();
  RETURN_IF_ERROR(account_->ReserveBytes(identity.device_index, spec.size_bytes()));
  absl::StatusOr<DeviceBuffer> buffer = identity.queue->device().Allocate(spec.size_bytes());
  if (!buffer.ok()) {
    account_->ReleaseBytes(identity.device_index, spec.size_bytes());
    return buffer.status();
  }
  TensorRef tensor = std::make_shared<Tensor>(std::move(identity));
  tensor->SetBuffer(*std::move(buffer));
  tensor->SetLabel(std::move(label));
  return tensor;
}

absl::Status Session::CommitUpload(const TensorRef& tensor) {
  tensor->queue()->device().AdvanceClock(
      surroundings_.devices->HostLinkSeconds(tensor->device_index(), tensor->size_bytes()));
  // Before it is in the table: another upload of this id that finds it there must find it done.
  tensor->Complete();
  {
    const MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(const TensorRef other, FindReplay(tensor->id(), tensor->fingerprint()));
    if (other != nullptr) {
      return MakeError(
          absl::StatusCode::kAlreadyExists, ErrorReason::kDuplicateId,
          absl::StrFormat("tensor %d was made by another call during the upload; choose "
                          "another id, or 0 to let the server pick",
                          tensor->id()));
    }
    tensors_[tensor->id()] = tensor;
  }
  return absl::OkStatus();
}

std::vector<TensorRef> Session::List(uint64_t after, size_t count_max) const {
  std::vector<TensorRef> tensors;
  {
    const MutexLock lock(&mu_);
    for (const auto& [id, tensor] : tensors_) {
      if (id > after) {
        tensors.push_back(tensor);
      }
    }
  }
  const auto by_id = [](const TensorRef& a, const TensorRef& b) { return a->id() < b->id(); };
  const size_t count = std::min(count_max, tensors.size());
  std::partial_sort(tensors.begin(), tensors.begin() + static_cast<ptrdiff_t>(count), tensors.end(),
                    by_id);
  tensors.resize(count);
  return tensors;
}

size_t Session::tensor_count() const {
  const MutexLock lock(&mu_);
  return tensors_.size();
}

void Session::Renew() {
  last_seen_.store(surroundings_.clock->Now().time_since_epoch().count(),
                   std::memory_order_relaxed);
}

TimePoint Session::last_seen() const {
  return TimePoint(TimePoint::duration(last_seen_.load(std::memory_order_relaxed)));
}

bool Session::Expired(TimePoint now) const { return now - last_seen() >= options_.lease; }

Seconds Session::lease_remaining() const {
  const Seconds idle = surroundings_.clock->Now() - last_seen();
  return std::max(options_.lease - idle, Seconds(0));
}

uint64_t Session::Close() {
  account_->Cancel();
  absl::flat_hash_map<uint64_t, TensorRef> tensors;
  {
    const MutexLock lock(&mu_);
    closed_ = true;
    tensors.swap(tensors_);
  }
  const uint64_t freed_bytes = account_->bytes();
  execution_->Close();
  return freed_bytes;
}

}  // namespace devserver
