#include "devserver/tensor.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/connection.h"
#include "client/transfer.h"
#include "client/values.h"
#include "server/base/status_macros.h"

namespace devserver::client {
namespace {

constexpr int64_t kPrintedElementsMax = 4096;  // More are not fetched to be printed.
constexpr int kPrintedAxisMax = 8;

absl::Status NoTensor() {
  return absl::FailedPreconditionError(
      "this Tensor is a default-constructed one: it stands for nothing on the server");
}

const DeviceInfo& NoDevice() {
  static const DeviceInfo* const none = new DeviceInfo;
  return *none;
}

const TensorSpec& NoSpec() {
  static const TensorSpec* const none = new TensorSpec;
  return *none;
}

// What was wrong before anything was sent.
bool NeverSent(const TensorHandle& tensor) { return tensor.id == 0 && !tensor.failure.ok(); }

}  // namespace

Device::Device(std::shared_ptr<Connection> connection, const DeviceInfo* info, std::string note)
    : connection_(std::move(connection)), info_(info), note_(std::move(note)) {}

const DeviceInfo& Device::info() const { return info_ == nullptr ? NoDevice() : *info_; }
const std::string& Device::name() const { return info().name; }
bool Device::is_gpu() const {
  return info().kind == DeviceKind::kCuda || info().kind == DeviceKind::kSimulated;
}

uint64_t Tensor::id() const { return handle_ == nullptr ? 0 : handle_->id; }
const TensorSpec& Tensor::spec() const { return handle_ == nullptr ? NoSpec() : handle_->spec; }
const Shape& Tensor::shape() const { return spec().shape; }
DType Tensor::dtype() const { return spec().dtype; }

const std::string& Tensor::device_name() const {
  return handle_ == nullptr || handle_->device == nullptr ? NoDevice().name : handle_->device->name;
}

Device Tensor::device() const {
  return handle_ == nullptr ? Device() : Device(handle_->connection, handle_->device);
}

absl::Status Tensor::status() const {
  if (handle_ == nullptr) {
    return NoTensor();
  }
  return handle_->connection == nullptr ? handle_->failure
                                        : handle_->connection->StatusOf(*handle_);
}

absl::Status Tensor::sync(absl::Duration timeout) const {
  if (handle_ == nullptr || handle_->connection == nullptr) {
    return status();
  }
  return handle_->connection->Await(*handle_, timeout);
}

PendingFetch Tensor::fetch_async() const {
  PendingFetch pending;
  pending.tensor_ = handle_;
  if (handle_ != nullptr && handle_->connection != nullptr && !NeverSent(*handle_) &&
      size_bytes() <= handle_->connection->inline_bytes()) {
    pending.ticket_ = handle_->connection->Fetch(handle_.get());
  }
  return pending;
}

absl::Status Tensor::fetch_into(std::span<std::byte> target, const TransferOptions& options) const {
  if (handle_ == nullptr || handle_->connection == nullptr || NeverSent(*handle_)) {
    return status();
  }
  if (target.size() != size_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("fetch of %s: the target has %d bytes, the tensor %d", spec().ToString(),
                        target.size(), size_bytes()));
  }
  Connection& connection = *handle_->connection;
  if (size_bytes() > connection.inline_bytes()) {
    RETURN_IF_ERROR(connection.Await(*handle_, options.timeout));
    return Download(&connection, handle_->id, target, options);
  }
  if (options.progress != nullptr) {
    options.progress(0, size_bytes());
  }
  const std::shared_ptr<FetchTicket> ticket = connection.Fetch(handle_.get());
  RETURN_IF_ERROR(connection.Await(*ticket, options.timeout));
  if (ticket->packed.size() != target.size()) {
    return absl::InternalError(absl::StrFormat("server %s sent %d bytes for %s, which has %d",
                                               connection.address(), ticket->packed.size(),
                                               spec().ToString(), target.size()));
  }
  std::ranges::copy(std::as_bytes(std::span(ticket->packed)), target.begin());
  if (options.progress != nullptr) {
    options.progress(size_bytes(), size_bytes());
  }
  return absl::OkStatus();
}

template <typename T>
absl::StatusOr<std::vector<T>> Tensor::fetch(absl::Duration timeout) const {
  if (handle_ != nullptr && handle_->connection != nullptr && ElementOf<T>::kDType == dtype() &&
      size_bytes() > handle_->connection->inline_bytes()) {
    std::vector<T> values(static_cast<size_t>(shape().element_count()));
    TransferOptions options;
    options.timeout = timeout;
    RETURN_IF_ERROR(fetch_into(std::as_writable_bytes(std::span(values)), options));
    return values;
  }
  return fetch_async().get<T>(timeout);
}

template <typename T>
absl::StatusOr<T> Tensor::item(absl::Duration timeout) const {
  RETURN_IF_ERROR(status());
  if (shape().element_count() != 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("item: %s has %d elements; fetch() gives them all", spec().ToString(),
                        shape().element_count()));
  }
  ASSIGN_OR_RETURN(const std::vector<T> values, fetch<T>(timeout));
  return values[0];
}

bool PendingFetch::ready() const { return ticket_ == nullptr || ticket_->done; }

template <typename T>
absl::StatusOr<std::vector<T>> PendingFetch::get(absl::Duration timeout) const {
  const Tensor tensor = Connection::TensorOf(tensor_);
  if (tensor_ == nullptr || tensor_->connection == nullptr || NeverSent(*tensor_)) {
    return tensor.status();
  }
  RETURN_IF_ERROR(CheckElementType<T>(tensor.dtype()));
  const TensorSpec& spec = tensor.spec();
  if (ticket_ == nullptr) {
    std::vector<std::byte> packed(spec.size_bytes());
    TransferOptions options;
    options.timeout = timeout;
    RETURN_IF_ERROR(tensor.fetch_into(packed, options));
    return Unpack<T>(spec, packed);
  }
  RETURN_IF_ERROR(tensor_->connection->Await(*ticket_, timeout));
  if (ticket_->packed.size() != spec.size_bytes()) {
    return absl::InternalError(absl::StrFormat(
        "server %s sent %d bytes for %s, which has %d", tensor_->connection->address(),
        ticket_->packed.size(), spec.ToString(), spec.size_bytes()));
  }
  return Unpack<T>(spec, std::as_bytes(std::span(ticket_->packed)));
}

Tensor Tensor::copy_to(const Device& device, double max_seconds) const {
  const auto result = std::make_shared<TensorHandle>();
  result->device = Connection::InfoOf(device);
  result->connection = Connection::ConnectionOf(device);
  result->spec = spec();
  result->is_copy = true;
  if (handle_ == nullptr) {
    result->failure = NoTensor();
  } else if (NeverSent(*handle_)) {
    result->failure = PassOn("copy", *handle_);
  } else if (result->connection == nullptr) {
    result->failure = absl::InvalidArgumentError(
        "copy: no target device given; Client::device(\"gpu:0\") gives one");
  } else if (result->connection != handle_->connection) {
    result->failure = absl::InvalidArgumentError(absl::StrFormat(
        "copy: tensor %d is on server %s, the device %s on %s or of another client of it",
        handle_->id, handle_->connection->address(), device.name(), result->connection->address()));
  } else {
    v1::Copy copy;
    copy.set_source(handle_->id);
    copy.set_device(device.name());
    copy.set_max_seconds(max_seconds);
    TensorHandle* const inputs[] = {handle_.get()};
    result->connection->Submit(v1::Command::kCopyFieldNumber, &copy, "copy", inputs, result.get());
  }
  return Tensor(result);
}

Tensor Tensor::to(const Device& device) const {
  return handle_ != nullptr && device == this->device() ? *this : copy_to(device);
}

absl::StatusOr<Receipt> Tensor::receipt(absl::Duration timeout) const {
  RETURN_IF_ERROR(status());
  if (!handle_->is_copy) {
    return absl::FailedPreconditionError(
        absl::StrFormat("tensor %d was not made by a copy: there is no receipt", id()));
  }
  std::optional<Receipt> receipt;
  RETURN_IF_ERROR(handle_->connection->Await(*handle_, timeout, &receipt));
  if (!receipt.has_value()) {
    return absl::InternalError(absl::StrFormat("server %s sent no receipt for the copy %d",
                                               handle_->connection->address(), id()));
  }
  return *std::move(receipt);
}

std::string Tensor::to_string(absl::Duration timeout) const {
  const std::string what = absl::StrFormat("%s on %s", spec().ToString(), device_name());
  if (const absl::Status now = status(); !now.ok()) {
    return now.ToString(absl::StatusToStringMode::kWithNoExtraData);
  }
  if (shape().element_count() > kPrintedElementsMax) {
    return absl::StrFormat("%s (too large to print; slice it)", what);
  }
  std::vector<std::byte> packed(size_bytes());
  TransferOptions options;
  options.timeout = timeout;
  if (const absl::Status fetched = fetch_into(packed, options); !fetched.ok()) {
    return fetched.ToString(absl::StatusToStringMode::kWithNoExtraData);
  }
  return absl::StrFormat("%s %s", FormatElements(spec(), packed, kPrintedAxisMax), what);
}

#define DEVSERVER_INSTANTIATE(T)                                                  \
  template absl::StatusOr<std::vector<T>> Tensor::fetch<T>(absl::Duration) const; \
  template absl::StatusOr<T> Tensor::item<T>(absl::Duration) const;               \
  template absl::StatusOr<std::vector<T>> PendingFetch::get<T>(absl::Duration) const;
DEVSERVER_INSTANTIATE(float)
DEVSERVER_INSTANTIATE(double)
DEVSERVER_INSTANTIATE(int32_t)
DEVSERVER_INSTANTIATE(int64_t)
DEVSERVER_INSTANTIATE(uint8_t)
#undef DEVSERVER_INSTANTIATE

}  // namespace devserver::client
