// CommandStream: what the server answers, and what happens when the connection breaks.
#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/command_stream.h"
#include "client/stream_call.h"
#include "client/wire.h"
#include "server/base/status_macros.h"

namespace devserver::client {
namespace {

constexpr std::chrono::milliseconds kTidyAfter(
    100);  // Long for a machine, short for who looks at a table of memory.

}  // namespace

absl::Status CommandStream::TakeReply(v1::ExecuteReply* reply) {
  for (v1::CommandReply& command : *reply->mutable_replies()) {
    TakeCommandReply(&command);
  }
  return TakeDoneThrough(reply->done_through());
}

void CommandStream::TakeCommandReply(v1::CommandReply* reply) {
  if (reply->number() <= done_through_ || reply->number() >= next_number_) {
    return;  // Sent again after a broken connection, or nonsense.
  }
  if (!watching_) {
    watching_ = true;
    tidy_at_ = Clock::Real()->Now() + kTidyAfter;
    broken_.NotifyAll();
  }
  last_reply_ = std::max(last_reply_, reply->number());
  InFlight& in_flight = in_flight_[reply->number() - done_through_ - 1];
  if (in_flight.ticket != nullptr && !in_flight.ticket->done) {
    FetchTicket& ticket = *in_flight.ticket;
    if (reply->has_error()) {
      ticket.status = StatusFrom(reply->error());
    } else if (reply->has_fetched()) {
      ticket.packed = std::move(*reply->mutable_fetched()->mutable_values()->mutable_raw());
    } else {
      ticket.status = absl::InternalError(absl::StrFormat(
          "server %s answered fetch %d without values", options_.address, reply->number()));
    }
    ticket.done = true;
    in_flight.ticket = nullptr;
  } else if (in_flight.result != nullptr) {
    if (reply->has_error()) {
      in_flight.result->failure = StatusFrom(reply->error());
    } else if (reply->has_tensor() && reply->tensor().state() == v1::Tensor::FAILED) {
      in_flight.result->failure = StatusFrom(reply->tensor().error());
    }
    if (reply->has_receipt()) {
      in_flight.result->receipt = ReceiptFrom(reply->receipt());
    }
  } else if (reply->has_error()) {
    DeleteOneByOne(reply->number());
  }
}

void CommandStream::DeleteOneByOne(uint64_t number) {
  const auto found = shared_deletes_.find(number);
  if (found == shared_deletes_.end()) {
    return;
  }
  const std::vector<uint64_t> ids = std::move(found->second);
  shared_deletes_.erase(found);
  for (const uint64_t id : ids) {
    v1::Delete command;
    command.add_ids(id);
    Append(v1::Command::kDeleteFieldNumber, command, command.ByteSizeLong(), {});
  }
}

absl::Status CommandStream::TakeDoneThrough(uint64_t done_through) {
  if (done_through <= done_through_) {
    return absl::OkStatus();
  }
  const uint64_t sent_through =
      batches_sent_ == 0 ? done_through_ : batches_[batches_sent_ - 1].last;
  if (done_through > sent_through) {
    return absl::InternalError(
        absl::StrFormat("server %s says that command %d is finished; %d were sent",
                        options_.address, done_through, sent_through));
  }
  for (; done_through_ < done_through; ++done_through_) {
    const std::shared_ptr<FetchTicket> ticket = std::move(in_flight_.front().ticket);
    in_flight_.pop_front();
    shared_deletes_.erase(done_through_ + 1);
    if (ticket != nullptr) {
      ticket->status = absl::InternalError(absl::StrFormat(
          "server %s finished fetch %d without an answer", options_.address, done_through_ + 1));
      ticket->done = true;
    }
  }
  while (!batches_.empty() && batches_.front().last <= done_through_) {
    unfinished_bytes_ -= batches_.front().size_bytes;
    batches_.pop_front();
    --batches_sent_;  // It was sent: done_through <= sent_through.
  }
  return absl::OkStatus();
}

void CommandStream::Attach(std::shared_ptr<const Transport> transport, uint64_t received_through) {
  auto call = std::make_unique<Call>(this, std::move(transport));
  Call* const started = call.get();
  Call* write = nullptr;
  std::shared_ptr<grpc::ClientContext> cancelled;
  {
    MutexLock lock(&mu_);
    if (received_through < done_through_ || received_through >= next_number_) {
      LoseLocked(absl::InternalError(absl::StrFormat(
          "server %s says that it has had commands up to %d; it has finished %d and %d were given",
          options_.address, received_through, done_through_, next_number_ - 1)));
    }
    if (closing_ || !lost_.ok()) {
      cancelled = call->context();
    }
    batches_sent_ = 0;
    while (batches_sent_ < batches_.size() && batches_[batches_sent_].last <= received_through) {
      ++batches_sent_;
    }
    call_ = std::move(call);
    call_writing_ = call_write_failed_ = call_reads_ended_ = false;
    if (breaks_without_reply_ > 0 && lost_.ok()) {
      AppendSync();  // Its answer tells that the new connection works.
    }
    write = ClaimWrite();
  }
  started->Start();
  if (write != nullptr) {
    write->Write();
  }
  if (cancelled != nullptr) {
    cancelled->TryCancel();
  }
}

void CommandStream::Lose(const absl::Status& reason) {
  MutexLock lock(&mu_);
  LoseLocked(reason);
}

void CommandStream::LoseLocked(const absl::Status& reason) {
  if (!lost_.ok()) {
    return;
  }
  lost_ = reason;
  for (InFlight& in_flight : in_flight_) {
    if (in_flight.ticket != nullptr) {
      in_flight.ticket->status = reason;
      in_flight.ticket->done = true;
      in_flight.ticket = nullptr;
    }
  }
  // in_flight_ stays: tensors find their place in it when they end.
  batches_.clear();
  batches_sent_ = 0;
  unfinished_bytes_ = 0;
  deletes_.clear();
  shared_deletes_.clear();
  changed_.NotifyAll();
  broken_.NotifyAll();
}

absl::Status CommandStream::lost() const {
  MutexLock lock(&mu_);
  return lost_;
}

void CommandStream::Close() {
  std::shared_ptr<grpc::ClientContext> context;
  {
    MutexLock lock(&mu_);
    closing_ = true;
    if (call_ != nullptr) {
      context = call_->context();
    }
    broken_.NotifyAll();
  }
  if (context != nullptr) {
    context->TryCancel();
  }
}

void CommandStream::Drop() {
  std::shared_ptr<grpc::ClientContext> context;
  {
    MutexLock lock(&mu_);
    if (call_ != nullptr) {
      context = call_->context();
    }
  }
  if (context != nullptr) {
    context->TryCancel();
  }
}

CommandStream::Break CommandStream::WaitForBreak(TimePoint deadline) {
  std::unique_ptr<Call> ended;  // Destroyed after the lock.
  MutexLock lock(&mu_);
  while (!closing_ && !(break_pending_ && lost_.ok())) {
    const TimePoint until = watching_ ? std::min(deadline, tidy_at_) : deadline;
    broken_.WaitUntil(&mu_, until);
    const TimePoint now = Clock::Real()->Now();
    if (watching_ && now >= tidy_at_) {
      watching_ = last_reply_ > acknowledged_ && call_ != nullptr && lost_.ok();
      tidy_at_ = now + kTidyAfter;
      if (watching_) {
        return {Event::kUntidy, absl::OkStatus(), 0};
      }
    }
    if (now >= deadline) {
      return {Event::kTimeout, absl::OkStatus(), 0};
    }
  }
  ended = std::move(ended_call_);
  if (closing_) {
    return {Event::kClosed, absl::OkStatus(), 0};
  }
  break_pending_ = false;
  return {Event::kBroken, break_reason_, breaks_without_reply_};
}

bool CommandStream::WaitUnlessClosed(TimePoint deadline) {
  MutexLock lock(&mu_);
  while (!closing_ && Clock::Real()->Now() < deadline) {
    broken_.WaitUntil(&mu_, deadline);
  }
  return !closing_;
}

void CommandStream::Tidy() {
  Call* write = nullptr;
  {
    MutexLock lock(&mu_);
    if (!lost_.ok() || last_reply_ <= acknowledged_) {
      return;
    }
    if (done_through_ >= last_reply_) {
      acknowledge_now_ = true;
    } else if (sync_number_ < last_reply_) {
      AppendSync();  // The server need not have said how far it is.
    }
    write = ClaimWrite();
  }
  if (write != nullptr) {
    write->Write();
  }
}

}  // namespace devserver::client
