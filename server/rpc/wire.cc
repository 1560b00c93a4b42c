#include "server/rpc/wire.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "server/base/error_details.h"
#include "server/base/status_macros.h"
#include "server/tensor/numbers.h"

namespace devserver {
namespace {

// Enumerations that travel are the same numbers on both sides.
static_assert(static_cast<int>(DType::kF32) == v1::F32 && static_cast<int>(DType::kF64) == v1::F64);
static_assert(static_cast<int>(DType::kF16) == v1::F16 &&
              static_cast<int>(DType::kBF16) == v1::BF16);
static_assert(static_cast<int>(DType::kI32) == v1::I32 && static_cast<int>(DType::kI64) == v1::I64);
static_assert(static_cast<int>(DType::kU8) == v1::U8 && static_cast<int>(DType::kBool) == v1::BOOL);
static_assert(static_cast<int>(Activation::kNone) == v1::NONE &&
              static_cast<int>(Activation::kRelu) == v1::RELU);
static_assert(static_cast<int>(Activation::kGelu) == v1::GELU &&
              static_cast<int>(Activation::kTanh) == v1::TANH);
static_assert(static_cast<int>(Activation::kSigmoid) == v1::SIGMOID);
static_assert(static_cast<int>(Medium::kMemory) == v1::Leg::MEMORY &&
              static_cast<int>(Medium::kPcie) == v1::Leg::PCIE);
static_assert(static_cast<int>(Medium::kNvlink) == v1::Leg::NVLINK &&
              static_cast<int>(Medium::kTcp) == v1::Leg::TCP);
static_assert(static_cast<int>(Basis::kConfigured) == v1::Seconds::CONFIGURED);
static_assert(static_cast<int>(Basis::kClock) == v1::Seconds::CLOCK &&
              static_cast<int>(Basis::kModel) == v1::Seconds::MODEL);
static_assert(static_cast<int>(ErrorReason::kNoSuchTensor) == v1::OpError::NO_SUCH_TENSOR);
static_assert(static_cast<int>(ErrorReason::kDeviceMismatch) == v1::OpError::DEVICE_MISMATCH);
static_assert(static_cast<int>(ErrorReason::kInputFailed) == v1::OpError::INPUT_FAILED);
static_assert(static_cast<int>(ErrorReason::kTooExpensive) == v1::OpError::TOO_EXPENSIVE);
static_assert(static_cast<int>(ErrorReason::kCancelled) == v1::OpError::CANCELLED);

constexpr int kListLengthMax =
    64;  // of axes, starts, stops: far above the limit on dimensions, and bounds a message

std::span<const int64_t> Dims(const google::protobuf::RepeatedField<int64_t>& field) {
  return {field.data(), static_cast<size_t>(field.size())};
}

absl::StatusOr<IntList> ListFromWire(const google::protobuf::RepeatedField<int64_t>& field,
                                     std::string_view name) {
  if (field.size() > kListLengthMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s has %d entries, the limit is %d", name, field.size(), kListLengthMax));
  }
  return IntList(field.begin(), field.end());
}

void SecondsToWire(const Duration& duration, v1::Seconds* wire) {
  wire->set_value(duration.basis == Basis::kUnknown ? 0 : duration.seconds);
  wire->set_basis(static_cast<v1::Seconds::Basis>(duration.basis));
  wire->set_samples(duration.samples);
}

absl::Status CountMismatch(const TensorSpec& spec, std::string_view unit, uint64_t given,
                           uint64_t wanted) {
  return MakeError(absl::StatusCode::kInvalidArgument, ErrorReason::kShapeMismatch,
                   absl::StrFormat("values don't fill the shape: %s takes %d %s, %d were given",
                                   spec.ToString(), wanted, unit, given));
}

absl::Status ValuesFromWire(const v1::Values& values, const TensorSpec& spec,
                            std::vector<std::byte>* elements) {
  const auto count = static_cast<uint64_t>(spec.shape.element_count());
  const int kinds = (values.numbers_size() > 0 ? 1 : 0) + (values.integers_size() > 0 ? 1 : 0) +
                    (values.raw().empty() ? 0 : 1);
  if (kinds > 1) {
    return absl::InvalidArgumentError("values: give one of numbers, integers and raw, not several");
  }
  if (!values.raw().empty()) {
    if (values.raw().size() != spec.size_bytes()) {
      return CountMismatch(spec, "bytes", values.raw().size(), spec.size_bytes());
    }
    const auto* const data = reinterpret_cast<const std::byte*>(values.raw().data());
    elements->assign(data, data + values.raw().size());
    return spec.dtype == DType::kBool ? CheckBools(*elements, 0) : absl::OkStatus();
  }
  const uint64_t given =
      static_cast<uint64_t>(values.numbers_size()) + static_cast<uint64_t>(values.integers_size());
  if (given != count) {
    return CountMismatch(spec, "values", given, count);
  }
  elements->resize(spec.size_bytes());
  if (values.integers_size() > 0) {
    return StoreIntegers(Dims(values.integers()), spec.dtype, *elements);
  }
  return StoreNumbers({values.numbers().data(), static_cast<size_t>(values.numbers_size())},
                      spec.dtype, *elements);
}

}  // namespace

absl::StatusOr<DType> DTypeFromWire(v1::DType dtype) {
  if (dtype == v1::DTYPE_UNSPECIFIED) {
    return DType::kF32;
  }
  if (!v1::DType_IsValid(dtype)) {
    return MakeError(
        absl::StatusCode::kInvalidArgument, ErrorReason::kDtypeUnsupported,
        absl::StrFormat(
            "no dtype has the number %d; there are F32, F64, F16, BF16, I32, I64, U8, BOOL",
            static_cast<int>(dtype)));
  }
  return static_cast<DType>(dtype);
}

absl::StatusOr<TensorSpec> SpecFromWire(std::span<const int64_t> dims, v1::DType dtype) {
  TensorSpec spec;
  ASSIGN_OR_RETURN(spec.dtype, DTypeFromWire(dtype));
  absl::StatusOr<Shape> shape = Shape::Create(dims);
  if (!shape.ok()) {
    return MakeError(shape.status().code(), ErrorReason::kShapeMismatch,
                     std::string(shape.status().message()));
  }
  spec.shape = *shape;
  return spec;
}

absl::StatusOr<Activation> ActivationFromWire(v1::Activation activation) {
  if (!v1::Activation_IsValid(activation)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "no activation has the number %d; there are NONE, RELU, GELU, TANH, SIGMOID",
        static_cast<int>(activation)));
  }
  return static_cast<Activation>(activation);
}

absl::StatusOr<std::unique_ptr<const OpAttributes>> AttributesFromWire(const v1::Attributes& wire) {
  auto attributes = std::make_unique<OpAttributes>();
  attributes->transpose_a = wire.transpose_a();
  attributes->transpose_b = wire.transpose_b();
  attributes->keep_dims = wire.keep_dims();
  ASSIGN_OR_RETURN(attributes->activation, ActivationFromWire(wire.activation()));
  if (wire.dtype() != v1::DTYPE_UNSPECIFIED) {
    ASSIGN_OR_RETURN(attributes->dtype, DTypeFromWire(wire.dtype()));
  }
  ASSIGN_OR_RETURN(attributes->axes, ListFromWire(wire.axes(), "axes"));
  ASSIGN_OR_RETURN(attributes->shape, ListFromWire(wire.shape(), "shape"));
  ASSIGN_OR_RETURN(attributes->starts, ListFromWire(wire.starts(), "starts"));
  ASSIGN_OR_RETURN(attributes->stops, ListFromWire(wire.stops(), "stops"));
  return attributes;
}

std::string Shown(const std::string& text) {
  constexpr size_t kShownMax = 64;
  if (text.size() <= kShownMax) {
    return text;
  }
  size_t end = kShownMax;
  while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0u) == 0x80u) {  // inside a character
    --end;
  }
  return text.substr(0, end);
}

absl::Status CheckLabel(const std::string& label, const Limits& limits) {
  if (label.size() <= limits.label_bytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("label or name of %d bytes is too long, the limit is %d (limits.label_bytes)",
                      label.size(), limits.label_bytes));
}

absl::StatusOr<CreateContent> ContentFromWire(const v1::Create& create, const Limits& limits) {
  CreateContent content;
  ASSIGN_OR_RETURN(content.spec, SpecFromWire(Dims(create.shape()), create.dtype()));
  RETURN_IF_ERROR(CheckLabel(create.label(), limits));
  if (create.has_values()) {
    if (content.spec.size_bytes() > limits.inline_bytes) {
      ErrorDetails details;
      details.reason = ErrorReason::kLimit;
      details.asked = content.spec.size_bytes();
      details.limit = limits.inline_bytes;
      return WithDetails(
          absl::ResourceExhaustedError(absl::StrFormat(
              "%s is too large for inline values: asked %d bytes, limit %d (limits.inline_bytes); "
              "use the "
              "TensorService.Upload stream",
              content.spec.ToString(), content.spec.size_bytes(), limits.inline_bytes)),
          details);
    }
    RETURN_IF_ERROR(ValuesFromWire(create.values(), content.spec, &content.values));
    return content;
  }
  auto attributes = std::make_unique<OpAttributes>();
  attributes->shape.assign(create.shape().begin(), create.shape().end());
  attributes->dtype = content.spec.dtype;
  switch (create.content_case()) {
    case v1::Create::kUniform:
      content.source = OpCode::kUniform;
      attributes->seed = create.uniform().seed();
      attributes->low = create.uniform().low();
      attributes->high = create.uniform().high();
      if (attributes->low == 0 && attributes->high == 0) {
        attributes->high = 1;
      }
      break;
    case v1::Create::kNormal:
      content.source = OpCode::kNormal;
      attributes->seed = create.normal().seed();
      attributes->mean = create.normal().mean();
      attributes->stddev = create.normal().stddev() == 0 ? 1 : create.normal().stddev();
      break;
    case v1::Create::kArange:
      content.source = OpCode::kArange;
      attributes->start = create.arange().start();
      attributes->step = create.arange().step() == 0 ? 1 : create.arange().step();
      break;
    case v1::Create::kEye:
      content.source = OpCode::kEye;
      if (!create.eye()) {
        return absl::InvalidArgumentError("eye: give true, or leave it out");
      }
      break;
    default:
      attributes->value = create.fill();
      break;
  }
  content.attributes = std::move(attributes);
  return content;
}

absl::Status ParseUploadMessage(
    google::protobuf::io::ZeroCopyInputStream* input, v1::UploadHeader* header, bool* has_header,
    absl::FunctionRef<absl::Status(std::span<const std::byte>)> on_chunk) {
  using google::protobuf::internal::WireFormatLite;
  constexpr uint32_t kHeaderTag =
      v1::UploadRequest::kHeaderFieldNumber << 3 | 2;  // 2: length-delimited
  constexpr uint32_t kChunkTag = v1::UploadRequest::kChunkFieldNumber << 3 | 2;
  const auto malformed = [] {
    return absl::InvalidArgumentError(
        "Upload: a message is not an UploadRequest; send the header first, then chunks");
  };
  *has_header = false;
  google::protobuf::io::CodedInputStream in(input);
  while (const uint32_t tag = in.ReadTag()) {
    int length = 0;
    if (tag != kHeaderTag && tag != kChunkTag) {
      if (!WireFormatLite::SkipField(&in, tag)) {
        return malformed();
      }
      continue;
    }
    if (!in.ReadVarintSizeAsInt(&length)) {
      return malformed();
    }
    if (tag == kHeaderTag) {
      std::string bytes;
      if (!in.ReadString(&bytes, length) || !header->MergeFromString(bytes)) {
        return malformed();
      }
      *has_header = true;
      continue;
    }
    while (length > 0) {
      const void* data = nullptr;
      int size = 0;
      if (!in.GetDirectBufferPointer(&data, &size) || size <= 0) {
        return malformed();
      }
      const int piece = std::min(length, size);
      RETURN_IF_ERROR(on_chunk({static_cast<const std::byte*>(data), static_cast<size_t>(piece)}));
      in.Skip(piece);
      length -= piece;
    }
  }
  return in.ConsumedEntireMessage() ? absl::OkStatus() : malformed();
}

void TensorToWire(const Tensor& tensor, v1::Tensor* wire) {
  wire->set_id(tensor.id());
  wire->set_dtype(static_cast<v1::DType>(tensor.spec().dtype));
  wire->mutable_shape()->Add(tensor.spec().shape.dims().begin(), tensor.spec().shape.dims().end());
  wire->set_device(tensor.device_name());
  wire->set_size_bytes(tensor.size_bytes());
  if (!tensor.label().empty()) {
    wire->set_label(tensor.label());
  }
  switch (tensor.state()) {
    case Tensor::State::kWaiting:
    case Tensor::State::kQueued:
      wire->set_state(v1::Tensor::PENDING);
      break;
    case Tensor::State::kReady:
      wire->set_state(v1::Tensor::READY);
      break;
    case Tensor::State::kFailed:
      wire->set_state(v1::Tensor::FAILED);
      OpErrorToWire(tensor.status(), wire->mutable_error());
      break;
  }
}

void QuoteToWire(const Quote& quote, v1::Receipt* receipt) {
  receipt->set_size_bytes(quote.size_bytes);
  for (const QuoteLeg& leg : quote.legs) {
    v1::Leg* const wire = receipt->add_legs();
    wire->set_source(leg.source);
    wire->set_target(leg.target);
    wire->set_medium(static_cast<v1::Leg::Medium>(leg.medium));
    SecondsToWire(leg.estimated, wire->mutable_estimated());
  }
  SecondsToWire(quote.estimated, receipt->mutable_estimated());
}

void ReceiptToWire(const Quote& quote, double measured_seconds, double simulated_seconds,
                   v1::Receipt* receipt) {
  QuoteToWire(quote, receipt);
  SecondsToWire({measured_seconds, Basis::kClock, 1}, receipt->mutable_measured());
  if (quote.simulated) {
    SecondsToWire({simulated_seconds, Basis::kModel, 0}, receipt->mutable_simulated());
  } else if (quote.estimated.basis != Basis::kUnknown && quote.estimated.seconds > 0) {
    receipt->set_measured_over_estimated(measured_seconds / quote.estimated.seconds);
  }
}

void OpErrorToWire(const absl::Status& status, v1::OpError* error) {
  error->set_code(static_cast<int>(status.code()));
  error->set_message(std::string(status.message()));
  const std::optional<ErrorDetails> details = DetailsOf(status);
  if (!details.has_value()) {
    return;
  }
  error->set_reason(static_cast<v1::OpError::Reason>(details->reason));
  error->set_command_number(details->command_number);
  error->set_origin_tensor(details->origin_tensor);
  error->set_device(details->device);
  if (details->limit != 0 || details->asked != 0) {
    error->mutable_amount()->set_asked(details->asked);
    error->mutable_amount()->set_used(details->used);
    error->mutable_amount()->set_limit(details->limit);
  }
  if (!details->cure_device.empty()) {
    error->mutable_cure()->set_source(details->cure_source);
    error->mutable_cure()->set_device(details->cure_device);
    error->mutable_cure_quote()->set_size_bytes(details->cure_bytes);
    const bool known = details->cure_seconds >= 0;
    SecondsToWire({details->cure_seconds, known ? Basis::kConfigured : Basis::kUnknown, 0},
                  error->mutable_cure_quote()->mutable_estimated());
  }
}

void SessionToWire(const Session& session, v1::Session* wire) {
  const Account& account = session.account();
  wire->set_name(session.options().name);
  wire->set_peer(session.options().peer);
  wire->set_lease_seconds(session.options().lease.count());
  wire->set_lease_remaining_seconds(session.lease_remaining().count());
  wire->set_age_seconds(SecondsBetween(session.opened(), session.surroundings().clock->Now()));
  wire->set_tensors(session.tensor_count());
  const DeviceSet& devices = *session.surroundings().devices;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (account.bytes_on(i) > 0) {
      (*wire->mutable_bytes_by_device())[devices.queue(i).name()] = account.bytes_on(i);
    }
  }
  wire->set_commands_done(account.done());
  wire->set_commands_queued(account.in_flight());
  wire->set_is_default(session.options().is_default);
  wire->set_bytes_copied(account.copied_bytes());
  wire->set_copy_seconds_measured(account.copy_seconds_measured());
  wire->set_copy_seconds_simulated(account.copy_seconds_simulated());
}

void LimitsToWire(const Limits& limits, v1::Limits* wire) {
  wire->set_message_bytes(limits.message_bytes);
  wire->set_inline_bytes(limits.inline_bytes);
  wire->set_chunk_bytes(limits.chunk_bytes);
  wire->set_session_bytes(limits.session_bytes);
  wire->set_session_tensors(limits.session_tensors);
  wire->set_commands_in_flight(limits.commands_in_flight);
  wire->set_dims(kDimsMax);
}

void ValuesToWire(const TensorSpec& spec, std::span<const std::byte> elements, bool raw,
                  v1::Values* values) {
  if (raw) {
    values->set_raw(elements.data(), elements.size());
    return;
  }
  const auto count = static_cast<size_t>(spec.shape.element_count());
  if (spec.dtype == DType::kI64) {
    values->mutable_integers()->Reserve(static_cast<int>(count));
    for (size_t i = 0; i < count; ++i) {
      values->add_integers(LoadInteger(elements.data(), spec.dtype, i));
    }
    return;
  }
  values->mutable_numbers()->Reserve(static_cast<int>(count));
  for (size_t i = 0; i < count; ++i) {
    values->add_numbers(LoadNumber(elements.data(), spec.dtype, i));
  }
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) {
    return grpc::Status::OK;
  }
  v1::OpError error;
  OpErrorToWire(status, &error);
  v1::StatusWithDetails details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(std::string(status.message()));
  details.add_details()->PackFrom(error);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                      details.SerializeAsString());
}

}  // namespace devserver
