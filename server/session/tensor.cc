#include "server/session/tensor.h"

#include <cassert>
#include <utility>

#include "absl/strings/str_format.h"
#include "server/base/error_details.h"
#include "server/base/status_macros.h"

namespace devserver {
namespace {

const OpAttributes& DefaultAttributes() {
  static const OpAttributes* const attributes = new OpAttributes;
  return *attributes;
}

// Adds to an error on the device which command it was, unless it says so already.
absl::Status WithOrigin(const absl::Status& status, uint64_t id, uint64_t number,
                        const std::string& device, std::string_view what) {
  ErrorDetails details = DetailsOf(status).value_or(ErrorDetails());
  if (details.reason == ErrorReason::kUnspecified && absl::IsUnimplemented(status)) {
    details.reason = ErrorReason::kDtypeUnsupported;
  }
  details.origin_tensor = id;
  details.command_number = number;
  details.device = device;
  return WithDetails(
      absl::Status(status.code(), absl::StrFormat("%s for tensor %d on %s: %s", what, id, device,
                                                  std::string(status.message()))),
      details);
}

}  // namespace

Tensor::Tensor(Identity identity)
    : last_used_(identity.created.time_since_epoch().count()), identity_(std::move(identity)) {
  if (identity_.queue != nullptr) {
    identity_.account->TensorAdded(identity_.device_index);
  }
}

Tensor::~Tensor() {
  if (bytes_reserved_) {
    buffer_ = DeviceBuffer();
    identity_.account->ReleaseBytes(identity_.device_index, size_bytes());
  }
  for (Waiter* waiter = waiters_.load(std::memory_order_acquire);
       waiter != nullptr && waiter != Closed();) {
    delete std::exchange(waiter, waiter->next);
  }
  if (identity_.queue != nullptr) {
    identity_.account->TensorRemoved(identity_.device_index);
  }
}

void Tensor::SetOp(OpCode code, Inputs inputs, std::unique_ptr<const OpAttributes> attributes) {
  code_ = code;
  inputs_ = std::move(inputs);
  attributes_ = std::move(attributes);
}

Tensor::Rare& Tensor::rare() {
  if (rare_ == nullptr) {
    rare_ = std::make_unique<Rare>();
  }
  return *rare_;
}

void Tensor::SetCopy(TensorRef source, Quote quote) {
  inputs_.push_back(std::move(source));
  rare().quote.emplace(std::move(quote));
  rare().measure_time = true;
}

void Tensor::SetValues(std::vector<std::byte> values, double link_seconds) {
  rare().values = std::move(values);
  rare().link_seconds = link_seconds;
}

const std::string& Tensor::label() const {
  static const std::string* const none = new std::string;
  return rare_ == nullptr ? *none : rare_->label;
}

const std::string& Tensor::device_name() const {
  static const std::string* const none = new std::string;
  return identity_.queue == nullptr ? *none : identity_.queue->name();
}

void Tensor::Start(const TensorRef& tensor) {
  // inputs_missing_ starts at 1, so that inputs that arrive meanwhile can't queue the work before
  // this loop is through. An input that is queued on the same device is there in time: the queue
  // runs in order.
  for (const TensorRef& input : tensor->inputs_) {
    const State state = input->state();
    if (state >= State::kReady || (state == State::kQueued && input->queue() == tensor->queue())) {
      continue;
    }
    tensor->inputs_missing_.fetch_add(1, std::memory_order_relaxed);
    input->WhenDone([tensor](Tensor&) { InputArrived(tensor); });
  }
  InputArrived(tensor);
}

void Tensor::InputArrived(const TensorRef& tensor) {
  if (tensor->inputs_missing_.fetch_sub(1, std::memory_order_acq_rel) != 1) {
    return;
  }
  tensor->queue()->Push(tensor);
  // After the push: who sees kQueued may queue work behind this.
  State expected = State::kWaiting;
  tensor->state_.compare_exchange_strong(expected, State::kQueued, std::memory_order_release,
                                         std::memory_order_relaxed);
}

void Tensor::SetBuffer(DeviceBuffer buffer) {
  buffer_ = std::move(buffer);
  bytes_reserved_ = true;
}

void Tensor::Fail(absl::Status status) {
  status_ = std::move(status);
  Enter(State::kFailed);
}

void Tensor::Complete() { Enter(State::kReady); }

void Tensor::WhenDone(DoneCallback done) {
  if (!this->done()) {
    auto* const waiter = new Waiter{std::move(done), waiters_.load(std::memory_order_acquire)};
    while (waiter->next != Closed()) {
      if (waiters_.compare_exchange_weak(waiter->next, waiter, std::memory_order_release,
                                         std::memory_order_acquire)) {
        return;  // Enter deletes it.
      }
    }
    done = std::move(waiter->done);
    delete waiter;
  }
  done(*this);
}

Tensor::Waiter* Tensor::Closed() {
  static Waiter closed{nullptr, nullptr};
  return &closed;
}

void Tensor::Enter(State state) {
  state_.store(state, std::memory_order_release);
  Waiter* waiters = nullptr;  // first come first
  for (Waiter* waiter = waiters_.exchange(Closed(), std::memory_order_acq_rel);
       waiter != nullptr;) {
    Waiter* const next = waiter->next;
    waiter->next = waiters;
    waiters = std::exchange(waiter, next);
  }
  if (done_) {
    // Moved out: a callback may hold what holds this tensor.
    DoneCallback done = std::move(done_);
    done(*this);
  }
  while (waiters != nullptr) {
    const std::unique_ptr<Waiter> waiter(std::exchange(waiters, waiters->next));
    waiter->done(*this);
  }
}

std::span<const std::byte> Tensor::host_bytes() const { return {buffer_.data(), size_bytes()}; }

absl::Status Tensor::InputFailed(std::string_view what) const {
  const std::optional<ErrorDetails> own = DetailsOf(status_);
  ErrorDetails details = own.value_or(ErrorDetails());
  std::string root(status_.message());
  if (details.reason == ErrorReason::kInputFailed) {
    // Keep the root cause alone: a chain of a thousand failures must not grow a message of a
    // thousand parts.
    constexpr std::string_view kMark = "root cause: ";
    const size_t mark = root.find(kMark);
    root = mark == std::string::npos ? root : root.substr(mark + kMark.size());
  }
  if (details.origin_tensor == 0) {
    details.origin_tensor = id();
  }
  details.reason = ErrorReason::kInputFailed;
  return WithDetails(
      absl::FailedPreconditionError(absl::StrFormat(
          "%s was not run because tensor %d failed; root cause: %s", what, id(), root)),
      details);
}

absl::Status Tensor::CheckInputs() const {
  const std::string_view what = is_copy() ? "copy" : GetOp(code_).name;
  for (const TensorRef& input : inputs_) {
    // An asynchronous device issues a command before its inputs have finished; their buffers are
    // there in stream order.
    if (!input->done() && !(input->queue() == queue() && input->issued_)) {
      return absl::InternalError(absl::StrFormat("%s ran before its input %d", what, input->id()));
    }
    if (!input->status().ok()) {
      return input->InputFailed(what);
    }
  }
  return absl::OkStatus();
}

absl::Status Tensor::RunOp(Device& device) {
  absl::InlinedVector<OpInput, 3> inputs;
  for (const TensorRef& input : inputs_) {
    inputs.push_back({&input->spec(), input->data()});
  }
  return device.Run({code_, inputs, &identity_.spec, buffer_.data(),
                     attributes_ == nullptr ? &DefaultAttributes() : attributes_.get()});
}

absl::Status Tensor::CopyFromSource(Device& device) {
  Device& peer = inputs_[0]->queue()->device();
  if (size_bytes() > 0) {
    RETURN_IF_ERROR(device.CopyFromPeer(peer, inputs_[0]->data(), buffer_.data(), size_bytes()));
  }
  if (quote().simulated && quote().estimated.basis != Basis::kUnknown) {
    device.AdvanceClock(quote().estimated.seconds);
    rare_->simulated_seconds = quote().estimated.seconds;
    if (&peer != &device) {
      peer.AdvanceClock(quote().estimated.seconds);  // The link is busy at both ends.
    }
  }
  return absl::OkStatus();
}

absl::Status Tensor::DoWork(Device& device) {
  if (identity_.account->cancelled()) {
    return MakeError(absl::StatusCode::kCancelled, ErrorReason::kCancelled,
                     "the session was closed before the command ran");
  }
  RETURN_IF_ERROR(CheckInputs());
  RETURN_IF_ERROR(identity_.account->ReserveBytes(identity_.device_index, size_bytes()));
  bytes_reserved_ = true;
  ASSIGN_OR_RETURN(buffer_, device.Allocate(size_bytes()));
  if (has_values()) {
    device.AdvanceClock(rare_->link_seconds);
    return size_bytes() == 0 ? absl::OkStatus()
                             : device.CopyFromHost(*rare_->values, buffer_.data());
  }
  return is_copy() ? CopyFromSource(device) : RunOp(device);
}

bool Tensor::Issue(Device& device) {
  TimePoint start;
  double simulated_start = 0;
  if (measures_time()) {
    start = std::chrono::steady_clock::now();
    simulated_start = device.simulated_seconds();
  }
  status_ = DoWork(device);
  if (measures_time()) {
    rare_->measured_seconds = SecondsBetween(start, std::chrono::steady_clock::now());
    if (!is_copy()) {
      rare_->simulated_seconds = device.simulated_seconds() - simulated_start;
    }
  }
  if (!status_.ok()) {
    const std::optional<ErrorDetails> details = DetailsOf(status_);
    if (!details.has_value() || details->origin_tensor == 0) {
      status_ = WithOrigin(status_, id(), command_number(), device_name(),
                           has_values() ? "create"
                           : is_copy()  ? "copy"
                                        : GetOp(code_).name);
    }
    buffer_ = DeviceBuffer();
    if (std::exchange(bytes_reserved_, false)) {
      identity_.account->ReleaseBytes(identity_.device_index, size_bytes());
    }
  } else if (is_copy()) {
    identity_.account->AddCopy(size_bytes(), measured_seconds(), simulated_seconds());
  }
  // The inputs were only needed for the work; dropped now, their memory serves the next command.
  inputs_.clear();
  if (rare_ != nullptr) {
    rare_->values.reset();
  }
  issued_ = true;
  return true;
}

void Tensor::Finish(const absl::Status& synchronized) {
  if (status_.ok() && !synchronized.ok()) {
    status_ = WithOrigin(synchronized, id(), command_number(), device_name(), "synchronize");
  }
  identity_.account->CommandFinished();
  Enter(status_.ok() ? State::kReady : State::kFailed);
}

}  // namespace devserver
