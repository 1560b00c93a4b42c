#include "server/session/execution.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "server/base/error_details.h"

namespace devserver {
namespace {

// A client that sends commands without asking for anything is told how far they are every so often:
// it keeps what it sent until then. One report in an eighth of the window costs next to nothing and
// never lets the window run dry.
constexpr uint64_t kReportsPerWindow = 8;

// Replies are kept until the client says that it has them. One that follows the protocol never has
// more than a window of them open; one that doesn't must not fill the memory.
constexpr uint64_t kUnacknowledgedWindows = 2;

// About what a reply takes as a message. An i64 is a varint of up to ten bytes.
uint64_t MessageBytes(const Execution::Reply& reply) {
  constexpr uint64_t kFrameBytes = 1024;  // what it says of the tensor, its receipt, or the error
  if (!reply.is_fetch || !reply.status.ok()) {
    return kFrameBytes;
  }
  const TensorSpec& spec = reply.tensor->spec();
  const auto count = static_cast<uint64_t>(spec.shape.element_count());
  return kFrameBytes +
         (reply.raw ? spec.size_bytes() : count * (spec.dtype == DType::kI64 ? 10 : 8));
}

}  // namespace

Execution::Execution(std::shared_ptr<Account> account, uint64_t window_commands)
    : account_(std::move(account)), window_commands_(window_commands) {}

Execution::~Execution() = default;

void Execution::Attach(const std::shared_ptr<Listener>& listener) {
  std::shared_ptr<Listener> before;
  bool closed = false;
  {
    const MutexLock lock(&mu_);
    closed = closed_;
    before = std::exchange(listener_, closed ? nullptr : listener);
    unsent_.clear();
    for (const auto& [number, reply] : replies_) {
      unsent_.push_back(number);
    }
    read_paused_ = false;
    handling_ = false;
  }
  if (before != nullptr) {
    before->OnDetached(absl::AbortedError(
        "another Execute stream of this session took over; a session has one at a time"));
  }
  if (closed) {
    listener->OnDetached(MakeError(absl::StatusCode::kNotFound, ErrorReason::kSessionExpired,
                                   "the session was closed or its lease ran out; open a new one"));
  } else {
    listener->OnProgress();
  }
}

void Execution::Flush() {
  std::shared_ptr<Listener> listener;
  {
    const MutexLock lock(&mu_);
    sync_through_ = received_through_;
    listener = WhoToTell();
  }
  if (listener != nullptr) {
    listener->OnProgress();
  }
}

void Execution::Detach(const Listener* listener) {
  std::shared_ptr<Listener> gone;  // Destroyed after the lock.
  const MutexLock lock(&mu_);
  if (listener_.get() == listener) {
    gone = std::exchange(listener_, nullptr);
  }
}

void Execution::Close() {
  std::shared_ptr<Listener> listener;
  std::map<uint64_t, Reply> replies;  // They hold tensors: destroyed after the lock.
  {
    const MutexLock lock(&mu_);
    closed_ = true;
    listener = std::exchange(listener_, nullptr);
    replies.swap(replies_);
    unsent_.clear();
  }
  if (listener != nullptr) {
    listener->OnDetached(MakeError(absl::StatusCode::kNotFound, ErrorReason::kSessionExpired,
                                   "the session was closed or its lease ran out; open a new one"));
  }
}

std::shared_ptr<Execution::Batch> Execution::BeginBatch(const Listener* owner,
                                                        uint64_t acknowledged) {
  std::map<uint64_t, Reply> forgotten;  // They hold tensors: destroyed after the lock.
  auto batch = std::make_shared<Batch>(shared_from_this(), owner);
  const MutexLock lock(&mu_);
  handling_ = true;
  const auto end = replies_.upper_bound(acknowledged);
  for (auto reply = replies_.begin(); reply != end;) {
    forgotten.insert(replies_.extract(reply++));
  }
  batches_.push_back(batch);
  batch->last_number_ = received_through_;
  return batch;
}

void Execution::EndBatch(const std::shared_ptr<Batch>& batch) {
  std::shared_ptr<Listener> listener;
  {
    const MutexLock lock(&mu_);
    handling_ = false;
    sync_through_ = std::max(sync_through_, batch->sync_number_);
    const uint64_t ended = batch->ended_here_ + 1;
    if (batch->unfinished_.fetch_sub(ended, std::memory_order_acq_rel) == ended) {
      NoteFinished(*batch);
    }
    listener = WhoToTell();
  }
  if (listener != nullptr) {
    listener->OnProgress();
  }
}

void Execution::AddReply(Reply reply) {
  std::shared_ptr<Listener> listener;
  {
    const MutexLock lock(&mu_);
    if (closed_) {
      return;
    }
    const uint64_t number = reply.number;
    replies_[number] = std::move(reply);
    unsent_.push_back(number);
    listener = WhoToTell();
  }
  if (listener != nullptr) {
    listener->OnProgress();
  }
}

void Execution::NoteFinished(Batch& batch) {
  batch.finished_ = true;
  while (!batches_.empty() && batches_.front()->finished_) {
    done_through_ = batches_.front()->last_number_;
    batches_.pop_front();
  }
}

void Execution::BatchFinished(Batch& batch) {
  // Of a session that is gone the batches hold the last references.
  const std::shared_ptr<Execution> self = shared_from_this();
  std::shared_ptr<Listener> listener;
  {
    const MutexLock lock(&mu_);
    NoteFinished(batch);
    listener = WhoToTell();
  }
  if (listener != nullptr) {
    listener->OnProgress();
  }
}

bool Execution::ReportDue() const {
  return !unsent_.empty() ||
         (sync_through_ > reported_through_ && done_through_ >= sync_through_) ||
         done_through_ - reported_through_ >=
             std::max<uint64_t>(1, window_commands_ / kReportsPerWindow);
}

std::shared_ptr<Execution::Listener> Execution::WhoToTell() {
  const bool may_read = read_paused_ && account_->in_flight() < window_commands_;
  return !handling_ && (may_read || ReportDue()) ? listener_ : nullptr;
}

bool Execution::TakeOutgoing(size_t replies_max, uint64_t bytes_max, Outgoing* outgoing) {
  const MutexLock lock(&mu_);
  if (!ReportDue()) {
    return false;
  }
  outgoing->replies.clear();
  size_t taken = 0;
  uint64_t bytes = 0;
  for (; taken < unsent_.size() && outgoing->replies.size() < replies_max; ++taken) {
    const auto found = replies_.find(unsent_[taken]);
    if (found == replies_.end()) {  // It was acknowledged meanwhile.
      continue;
    }
    bytes += MessageBytes(found->second);
    if (bytes > bytes_max && !outgoing->replies.empty()) {
      break;
    }
    outgoing->replies.push_back(found->second);
  }
  unsent_.erase(unsent_.begin(), unsent_.begin() + static_cast<ptrdiff_t>(taken));
  // Only with the last of the replies: done_through promises that those it covers were handed out.
  if (unsent_.empty()) {
    reported_through_ = done_through_;
  }
  outgoing->done_through = reported_through_;
  const uint64_t in_flight = account_->in_flight();
  outgoing->window_commands = in_flight < window_commands_ ? window_commands_ - in_flight : 0;
  return true;
}

bool Execution::MayRead() {
  const MutexLock lock(&mu_);
  read_paused_ = account_->in_flight() >= window_commands_;
  return !read_paused_;
}

bool Execution::Idle() const {
  const MutexLock lock(&mu_);
  return batches_.empty() && unsent_.empty();
}

uint64_t Execution::received_through() const {
  const MutexLock lock(&mu_);
  return received_through_;
}

absl::StatusOr<bool> Execution::Batch::Accept(uint64_t number) {
  const MutexLock lock(&execution_->mu_);
  if (execution_->listener_.get() != owner_) {
    return absl::AbortedError(
        "another Execute stream of this session took over; a session has one at a time");
  }
  if (number == 0 || number > execution_->received_through_ + 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("Execute: command number %d came after %d; a session numbers its commands "
                        "1, 2, 3, .. without gaps",
                        number, execution_->received_through_));
  }
  if (number <= execution_->received_through_) {
    return false;
  }
  if (execution_->replies_.size() >= kUnacknowledgedWindows * execution_->window_commands_) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, ErrorReason::kLimit,
        absl::StrFormat(
            "Execute: %d replies were not acknowledged; send received_through with every message",
            execution_->replies_.size()));
  }
  execution_->received_through_ = number;
  last_number_ = number;
  unfinished_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void Execution::Batch::Refuse(uint64_t number, const absl::Status& status) {
  Reply reply;
  reply.number = number;
  reply.status = status;
  execution_->AddReply(std::move(reply));
  ++ended_here_;
}

Tensor::DoneCallback Execution::Batch::WhenDone(uint64_t number) {
  // Two words, which a DoneCallback keeps without an allocation.
  return [this, number](Tensor& tensor) {
    if (!tensor.status().ok() || tensor.is_copy()) {
      Reply reply;
      reply.number = number;
      reply.tensor = tensor.shared_from_this();
      reply.status = tensor.status();
      execution_->AddReply(std::move(reply));
    }
    Finished();
  };
}

void Execution::Batch::Fetch(uint64_t number, const TensorRef& tensor, bool raw) {
  execution_->account_->CommandStarted();
  tensor->WhenDone([this, number, raw](Tensor& done) {
    execution_->account_->CommandFinished();
    Reply reply;
    reply.number = number;
    reply.tensor = done.shared_from_this();
    reply.is_fetch = true;
    reply.raw = raw;
    reply.status = done.status().ok() ? absl::OkStatus() : done.InputFailed("fetch");
    execution_->AddReply(std::move(reply));
    Finished();
  });
}

void Execution::Batch::Sync(uint64_t number) {
  sync_number_ = number;
  ++ended_here_;
}

void Execution::Batch::Finished() {
  if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    execution_->BatchFinished(*this);
  }
}

}  // namespace devserver
