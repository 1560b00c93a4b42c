#include "server/rpc/commands.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "server/base/error_details.h"
#include "server/base/status_macros.h"
#include "server/rpc/wire.h"

namespace devserver {
namespace {

// What could not be decoded leaves its failure too, where a batch asks for it.
absl::Status Refuse(Session& session, const Session::Request& request, const absl::Status& status) {
  if (request.leave_failed) {
    session.LeaveFailed(request.id, request.command_number, status);
  }
  return status;
}

absl::Status NoSuchOp(const std::string& name) {
  std::string names;
  for (const OpDef& op : AllOps()) {
    if (op.inputs_max > 0) {
      names += absl::StrFormat("%s%s", names.empty() ? "" : ", ", op.name);
    }
  }
  return MakeError(absl::StatusCode::kNotFound, ErrorReason::kNoSuchOp,
                   absl::StrFormat("no op '%s'; there are: %s", Shown(name), names));
}

}  // namespace

absl::StatusOr<TensorRef> RunCreate(Session& session, const v1::Create& create,
                                    Session::Request request) {
  request.id = create.id();
  absl::StatusOr<CreateContent> content = ContentFromWire(create, *session.surroundings().limits);
  if (!content.ok()) {
    return Refuse(session, request, content.status());
  }
  request.label = create.label();
  if (content->attributes == nullptr) {
    return session.CreateFromValues(content->spec, std::move(content->values), create.device(),
                                    std::move(request));
  }
  return session.Create(content->source, std::move(content->attributes), create.device(),
                        std::move(request));
}

absl::StatusOr<TensorRef> RunOp(Session& session, const v1::Op& op, Session::Request request) {
  request.id = op.id();
  const OpDef* const def = FindOp(op.name());
  if (def == nullptr) {
    return Refuse(session, request, NoSuchOp(op.name()));
  }
  std::unique_ptr<const OpAttributes> attributes;
  if (op.has_attributes()) {
    absl::StatusOr<std::unique_ptr<const OpAttributes>> parsed =
        AttributesFromWire(op.attributes());
    if (!parsed.ok()) {
      return Refuse(session, request, parsed.status());
    }
    attributes = *std::move(parsed);
  }
  return session.Apply(def->code, {op.inputs().data(), static_cast<size_t>(op.inputs_size())},
                       std::move(attributes), std::move(request));
}

absl::StatusOr<TensorRef> RunCopy(Session& session, const v1::Copy& copy,
                                  Session::Request request) {
  request.id = copy.id();
  return session.Copy(copy.source(), copy.device(), copy.max_seconds(), std::move(request));
}

absl::StatusOr<TensorRef> FindForFetch(Session& session, const v1::Fetch& fetch) {
  ASSIGN_OR_RETURN(TensorRef tensor, session.Find(fetch.id()));
  const Limits& limits = *session.surroundings().limits;
  // As numbers every element takes 8 bytes or more; three quarters of a message leave room for the
  // rest of a reply.
  const uint64_t reply_bytes =
      fetch.raw() ? tensor->size_bytes()
                  : static_cast<uint64_t>(tensor->spec().shape.element_count()) * 8;
  if (tensor->size_bytes() > limits.inline_bytes || reply_bytes > limits.message_bytes / 4 * 3) {
    ErrorDetails details;
    details.reason = ErrorReason::kLimit;
    details.asked = tensor->size_bytes();
    details.limit = limits.inline_bytes;
    return WithDetails(
        absl::ResourceExhaustedError(absl::StrFormat(
            "tensor %d (%s) is too large to be fetched in one reply: asked %d bytes, limit %d "
            "(limits.inline_bytes)%s; use the TensorService.Download stream",
            fetch.id(), tensor->spec().ToString(), tensor->size_bytes(), limits.inline_bytes,
            fetch.raw() ? "" : ", fewer as plain numbers")),
        details);
  }
  return tensor;
}

absl::Status FillFetched(const DeviceSet& devices, const Tensor& tensor, bool raw,
                         v1::FetchedTensor* fetched) {
  TensorToWire(tensor, fetched->mutable_tensor());
  Device& device = tensor.queue()->device();
  device.AdvanceClock(devices.HostLinkSeconds(tensor.device_index(), tensor.size_bytes()));
  if (device.host_readable()) {
    ValuesToWire(tensor.spec(), tensor.host_bytes(), raw, fetched->mutable_values());
    return absl::OkStatus();
  }
  std::vector<std::byte> elements(tensor.size_bytes());
  RETURN_IF_ERROR(device.CopyToHost(tensor.data(), elements));
  ValuesToWire(tensor.spec(), elements, raw, fetched->mutable_values());
  return absl::OkStatus();
}

}  // namespace devserver
