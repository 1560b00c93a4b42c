#include "client/command_stream.h"

#include <google/protobuf/io/coded_stream.h>

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/deadline.h"
#include "client/stream_call.h"
#include "server/base/error_details.h"
#include "server/base/status_macros.h"

namespace devserver::client {
namespace {

using google::protobuf::io::CodedOutputStream;

constexpr uint64_t kWindowCommandsDefault = 65536;
constexpr uint64_t kMessageBytesDefault = uint64_t{4} << 20;  // gRPC's own limit
// One message: enough that its cost is shared by many commands, little enough that the server
// starts early.
constexpr uint64_t kBatchCommands = 1024;
constexpr size_t kBatchBytes = size_t{64} << 10;
constexpr size_t kDeletesPerCommand = 4096;
// What is kept for resending, at most; values inside commands make it grow.
constexpr size_t kUnfinishedBytesMax = size_t{64} << 20;
constexpr size_t kUnreportedBytesMax = size_t{4} << 20;
constexpr size_t kFramingBytesMax = 32;  // tags, lengths, number

// ExecuteRequest.commands = 1 and Command.number = 1; fields up to 15 have one byte of tag.
constexpr uint8_t kCommandsTag = 1 << 3 | 2;
constexpr uint8_t kNumberTag = 1 << 3;

// Appends what ExecuteRequest.commands holds for one command: a message is its fields one after the
// other, so a batch is its commands one after the other.
void AppendFramed(int kind_field, const google::protobuf::MessageLite& kind, size_t kind_bytes,
                  uint64_t number, std::string* encoded) {
  const auto kind_size = static_cast<uint32_t>(kind_bytes);
  const size_t command_bytes = 1 + CodedOutputStream::VarintSize64(number) + 1 +
                               CodedOutputStream::VarintSize32(kind_size) + kind_bytes;
  const auto command_size = static_cast<uint32_t>(command_bytes);
  const size_t offset = encoded->size();
  encoded->resize(offset + 1 + CodedOutputStream::VarintSize32(command_size) + command_bytes);
  auto* target = reinterpret_cast<uint8_t*>(encoded->data()) + offset;
  *target++ = kCommandsTag;
  target = CodedOutputStream::WriteVarint32ToArray(command_size, target);
  *target++ = kNumberTag;
  target = CodedOutputStream::WriteVarint64ToArray(number, target);
  *target++ = static_cast<uint8_t>(kind_field << 3 | 2);
  target = CodedOutputStream::WriteVarint32ToArray(kind_size, target);
  kind.SerializeWithCachedSizesToArray(target);
}

}  // namespace

CommandStream::CommandStream(Options options)
    : options_([&options] {
        if (options.window_commands == 0) {
          options.window_commands = kWindowCommandsDefault;
        }
        if (options.message_bytes == 0) {
          options.message_bytes = kMessageBytesDefault;
        }
        return std::move(options);
      }()) {}

CommandStream::~CommandStream() {
  MutexLock lock(&mu_);
  while (call_ != nullptr) {
    broken_.Wait(&mu_);
  }
}

void CommandStream::Submit(const Command& command, absl::Duration timeout) {
  const size_t kind_bytes = command.kind->ByteSizeLong();
  Call* write = nullptr;
  {
    MutexLock lock(&mu_);
    absl::Status status = CheckInputs(command);
    if (status.ok() && kind_bytes + kFramingBytesMax > options_.message_bytes) {
      status =
          MakeError(absl::StatusCode::kResourceExhausted, ErrorReason::kLimit,
                    absl::StrFormat("%s: the command has %d bytes, the server takes messages of %d",
                                    command.name, kind_bytes, options_.message_bytes));
    }
    if (status.ok()) {
      status = AwaitRoom(command, timeout);
    }
    if (!status.ok()) {
      if (command.result != nullptr) {
        command.result->failure = status;
        command.result->id = 0;
      }
      if (command.ticket != nullptr) {
        command.ticket->status = std::move(status);
        command.ticket->done = true;
      }
      return;
    }
    last_name_ = command.name;
    AppendDeletes();
    const uint64_t number =
        Append(command.kind_field, *command.kind, kind_bytes, {command.result, command.ticket});
    if (command.result != nullptr) {
      command.result->command_number = number;
    }
    if (command.ticket != nullptr) {
      command.ticket->command_number = number;
    }
    if (number - sync_number_ >= options_.window_commands / 8 ||
        unreported_bytes_ >= kUnreportedBytesMax) {
      AppendSync();  // Else the server need not say how far it is.
    }
    write = ClaimWrite();
  }
  if (write != nullptr) {
    write->Write();
  }
}

absl::Status CommandStream::CheckInputs(const Command& command) const {
  if (!lost_.ok()) {
    return lost_;
  }
  for (const TensorHandle* input : command.inputs) {
    if (!input->failure.ok()) {
      return PassOn(command.name, *input);
    }
  }
  return absl::OkStatus();
}

absl::Status CommandStream::AwaitRoom(const Command& command, absl::Duration timeout) {
  if (in_flight_.size() < options_.window_commands && unfinished_bytes_ < kUnfinishedBytesMax) {
    return absl::OkStatus();
  }
  const TimePoint deadline = DeadlineAfter(timeout);
  while (in_flight_.size() >= options_.window_commands ||
         unfinished_bytes_ >= kUnfinishedBytesMax) {
    if (!lost_.ok()) {
      return lost_;
    }
    if (!WaitChanged(deadline)) {
      return TimedOut(
          absl::StrFormat("%s: room in the window of %d commands and %d MB", command.name,
                          options_.window_commands, kUnfinishedBytesMax >> 20),
          timeout);
    }
  }
  return lost_;
}

uint64_t CommandStream::Append(int kind_field, const google::protobuf::MessageLite& kind,
                               size_t kind_bytes, InFlight in_flight) {
  const uint64_t number = next_number_++;
  const size_t command_bytes = kind_bytes + kFramingBytesMax;
  Batch& batch = OpenBatch(command_bytes);
  const size_t before = batch.encoded.size();
  AppendFramed(kind_field, kind, kind_bytes, number, &batch.encoded);
  batch.last = number;
  const size_t added = batch.encoded.size() - before;
  batch.size_bytes += added;
  unfinished_bytes_ += added;
  unreported_bytes_ += added;
  in_flight_.push_back(std::move(in_flight));
  if (kind_field == v1::Command::kSyncFieldNumber) {
    sync_number_ = number;
    unreported_bytes_ = 0;
  }
  return number;
}

CommandStream::Batch& CommandStream::OpenBatch(size_t command_bytes) {
  if (batches_.size() > batches_sent_) {
    Batch& last = batches_.back();
    const size_t bytes_max = std::min<size_t>(kBatchBytes, options_.message_bytes);
    if (!last.encoded.empty() && last.encoded.size() + command_bytes <= bytes_max &&
        last.last - last.first + 1 < kBatchCommands) {
      return last;
    }
  }
  Batch& batch = batches_.emplace_back();
  batch.first = next_number_ - 1;
  batch.last = batch.first;
  return batch;
}

void CommandStream::AppendDeletes() {
  size_t begin = 0;
  while (begin < deletes_.size()) {
    const size_t end = std::min(deletes_.size(), begin + kDeletesPerCommand);
    v1::Delete command;
    command.mutable_ids()->Add(deletes_.begin() + static_cast<ptrdiff_t>(begin),
                               deletes_.begin() + static_cast<ptrdiff_t>(end));
    const uint64_t number =
        Append(v1::Command::kDeleteFieldNumber, command, command.ByteSizeLong(), {});
    if (end - begin > 1) {
      shared_deletes_[number].assign(command.ids().begin(), command.ids().end());
    }
    begin = end;
  }
  deletes_.clear();
}

void CommandStream::AppendSync() {
  const v1::Sync sync;
  Append(v1::Command::kSyncFieldNumber, sync, sync.ByteSizeLong(), {});
}

void CommandStream::Delete(TensorHandle* tensor) {
  Call* write = nullptr;
  {
    MutexLock lock(&mu_);
    if (tensor->command_number > done_through_) {
      // Nobody is left to hear of its failure.
      in_flight_[tensor->command_number - done_through_ - 1].result = nullptr;
    }
    if (tensor->id == 0 || !tensor->delete_at_end || !lost_.ok() || closing_) {
      return;
    }
    deletes_.push_back(tensor->id);
    write = ClaimWrite();
  }
  if (write != nullptr) {
    write->Write();
  }
}

CommandStream::Call* CommandStream::ClaimWrite() {
  if (call_ == nullptr || call_writing_ || call_write_failed_ || call_reads_ended_) {
    return nullptr;
  }
  AppendDeletes();
  if (batches_sent_ == batches_.size()) {
    if (!std::exchange(acknowledge_now_, false)) {
      return nullptr;
    }
    call_writing_ = true;
    acknowledged_ = done_through_;
    call_->SetMessage(grpc::Slice(), done_through_, false);
    return call_.get();
  }
  Batch& batch = batches_[batches_sent_];
  if (!batch.encoded.empty()) {
    batch.slice = grpc::Slice(batch.encoded);
    std::string().swap(batch.encoded);
  }
  ++batches_sent_;
  call_writing_ = true;
  acknowledged_ = done_through_;
  acknowledge_now_ = false;
  call_->SetMessage(batch.slice, done_through_, batches_sent_ < batches_.size());
  return call_.get();
}

absl::Status CommandStream::StatusOf(const TensorHandle& tensor) const {
  MutexLock lock(&mu_);
  return tensor.failure.ok() ? lost_ : tensor.failure;
}

absl::Status CommandStream::Await(const TensorHandle& tensor, absl::Duration timeout,
                                  std::optional<Receipt>* receipt) {
  const TimePoint deadline = DeadlineAfter(timeout);
  Call* write = nullptr;
  {
    MutexLock lock(&mu_);
    if (tensor.failure.ok() && lost_.ok() && tensor.command_number > done_through_ &&
        tensor.command_number > sync_number_) {
      AppendSync();
      write = ClaimWrite();
    }
  }
  if (write != nullptr) {
    write->Write();
  }
  MutexLock lock(&mu_);
  while (tensor.failure.ok() && lost_.ok() && tensor.command_number > done_through_) {
    if (!WaitChanged(deadline)) {
      return TimedOut(absl::StrFormat("tensor %d", tensor.id), timeout);
    }
  }
  if (receipt != nullptr) {
    *receipt = tensor.receipt;
  }
  return tensor.failure.ok() ? lost_ : tensor.failure;
}

absl::Status CommandStream::Await(const FetchTicket& ticket, absl::Duration timeout) {
  if (!ticket.done) {
    const TimePoint deadline = DeadlineAfter(timeout);
    MutexLock lock(&mu_);
    while (!ticket.done) {
      if (!WaitChanged(deadline)) {
        return TimedOut(
            absl::StrFormat("the values that command %d fetches", ticket.command_number), timeout);
      }
    }
  }
  return ticket.status;
}

absl::Status CommandStream::Sync(absl::Duration timeout) {
  const TimePoint deadline = DeadlineAfter(timeout);
  Call* write = nullptr;
  uint64_t number = 0;
  {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(lost_);
    AppendDeletes();
    number = next_number_ - 1;
    if (number > done_through_ && number > sync_number_) {
      AppendSync();
      number = next_number_ - 1;
    }
    write = ClaimWrite();
  }
  if (write != nullptr) {
    write->Write();
  }
  MutexLock lock(&mu_);
  while (done_through_ < number) {
    RETURN_IF_ERROR(lost_);
    if (!WaitChanged(deadline)) {
      return TimedOut(absl::StrFormat("the end of command %d", number), timeout);
    }
  }
  return absl::OkStatus();
}

absl::Status CommandStream::Settle(absl::Duration timeout) {
  const TimePoint deadline = DeadlineAfter(timeout);
  RETURN_IF_ERROR(Sync(timeout));
  {
    MutexLock lock(&mu_);
    if (last_reply_ <= acknowledged_) {
      return absl::OkStatus();
    }
    AppendSync();  // Its message says what has arrived by now.
  }
  return Sync(absl::FromChrono(std::max(deadline - Clock::Real()->Now(), TimePoint::duration(0))));
}

bool CommandStream::WaitChanged(TimePoint deadline) {
  ++waiting_;
  const bool in_time = changed_.WaitUntil(&mu_, deadline);
  --waiting_;
  return in_time || Clock::Real()->Now() < deadline;
}

absl::Status CommandStream::TimedOut(std::string_view what, absl::Duration timeout) const {
  if (call_ == nullptr && !break_reason_.ok()) {
    return UnreachableLocked(absl::StrFormat("%s; waited %s for %s",
                                             std::string(break_reason_.message()),
                                             absl::FormatDuration(timeout), what));
  }
  return absl::DeadlineExceededError(absl::StrFormat(
      "waited %s for %s from server %s: it has finished commands up to %d of %d (last: %s)",
      absl::FormatDuration(timeout), what, options_.address, done_through_, next_number_ - 1,
      last_name_));
}

absl::Status CommandStream::Unreachable(const std::string& why) const {
  MutexLock lock(&mu_);
  return UnreachableLocked(why);
}

absl::Status CommandStream::UnreachableLocked(const std::string& why) const {
  return absl::UnavailableError(absl::StrFormat(
      "server %s can't be reached for %.1f s; last command %d (%s): %s", options_.address,
      SecondsBetween(broken_since_, Clock::Real()->Now()), next_number_ - 1, last_name_, why));
}

}  // namespace devserver::client
