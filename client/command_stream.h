// A session's commands on their way to the server: numbered, batched, resent after a broken
// connection. Not installed.
//
//   submitted -> batches_ [ sent, not finished | not sent ] -> finished: the server's done_through
//   has passed them
//
// A command is encoded once, into the batch (one ExecuteRequest) that it will travel in; batches
// are kept until they are finished. While a message is being written commands collect in the next
// batch, so a burst travels in few messages, and a single command leaves at once. Beyond the
// server's window Submit waits.
//
// A connection that breaks is reported to whoever waits in WaitForBreak, which makes a new one and
// calls Attach; the commands that the server has not had are sent again. If that can't be, it calls
// Lose: everything fails and nothing hangs. Thread safety: any thread.
#pragma once

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/slice.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/tensor_handle.h"
#include "client/transport.h"
#include "devserver/v1/compute.pb.h"
#include "server/base/clock.h"
#include "server/base/mutex.h"

namespace devserver::client {

class CommandStream {
 public:
  struct Options {
    std::string address;  // for messages
    std::string token;
    uint64_t window_commands = 0;  // not finished at one time; 0: a default
    uint64_t message_bytes = 0;    // of one command; 0: a default
  };

  struct Command {
    int kind_field = 0;  // of Command.kind: v1::Command::kOpFieldNumber
    const google::protobuf::MessageLite* kind = nullptr;
    std::string_view name;  // for messages: "matmul"; lives for ever
    std::span<TensorHandle* const> inputs;
    TensorHandle* result = nullptr;                 // of a command that makes a tensor
    std::shared_ptr<FetchTicket> ticket = nullptr;  // of a fetch
  };

  explicit CommandStream(Options options);
  // Close() was called. Waits for the end of the call.
  ~CommandStream();
  CommandStream(const CommandStream&) = delete;
  CommandStream& operator=(const CommandStream&) = delete;

  // Takes a command, waiting for room in the window at most `timeout`. A command that can't be
  // taken (an input has failed, no room, the session is lost) fails its result or ticket, and an
  // input's failure is passed on with its root cause.
  void Submit(const Command& command, absl::Duration timeout);
  // Deletes the tensor behind all commands so far; never waits. `tensor` is not used after the
  // call.
  void Delete(TensorHandle* tensor);

  // OK or why it failed, as known now.
  absl::Status StatusOf(const TensorHandle& tensor) const;
  // Waits until the server has finished the tensor; its status. With the receipt, if it has one.
  absl::Status Await(const TensorHandle& tensor, absl::Duration timeout,
                     std::optional<Receipt>* receipt);
  absl::Status Await(const FetchTicket& ticket, absl::Duration timeout);
  // Waits until every command so far is finished.
  absl::Status Sync(absl::Duration timeout);
  // The same, and the server has forgotten the values and failures that it had kept for the case of
  // a resend.
  absl::Status Settle(absl::Duration timeout);

  // Starts a call on `transport` and resends what came after `received_through`, a number that the
  // server has named.
  void Attach(std::shared_ptr<const Transport> transport, uint64_t received_through);
  // The session is gone for good: all that waits and all that comes ends with `reason`. The first
  // reason stays.
  void Lose(const absl::Status& reason);
  absl::Status lost() const;
  // Ends the call and lets WaitForBreak return kClosed.
  void Close();

  enum class Event {
    kBroken,
    kUntidy,  // for a moment the server keeps replies that have arrived: Tidy()
    kTimeout,
    kClosed,
  };
  struct Break {
    Event event = Event::kTimeout;
    absl::Status reason;           // how the call ended
    int breaks_without_reply = 0;  // calls in a row on which nothing was received
  };
  // Until the call has ended, there is something to tidy, `deadline` has passed, or Close().
  Break WaitForBreak(TimePoint deadline);
  // False: closed before `deadline`.
  bool WaitUnlessClosed(TimePoint deadline);
  // Commands tell the server which replies have arrived; if none come this does, in two steps, so
  // that it forgets them.
  void Tidy();
  // Ends the call, so that it breaks: the connection is known to be dead.
  void Drop();

  // UNAVAILABLE that names the address and the last command.
  absl::Status Unreachable(const std::string& why) const;
  // 2^32, 2^32 + 1, ..: the ids that clients pick.
  uint64_t PickId() { return next_id_.fetch_add(1, std::memory_order_relaxed); }

 private:
  class Call;
  // One ExecuteRequest. `encoded` holds its commands; sealed into `slice` when it is first written.
  struct Batch {
    uint64_t first = 0;
    uint64_t last = 0;
    std::string encoded;
    grpc::Slice slice;
    size_t size_bytes = 0;
  };
  struct InFlight {
    TensorHandle* result = nullptr;
    std::shared_ptr<FetchTicket> ticket;
  };

  absl::Status CheckInputs(const Command& command) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status AwaitRoom(const Command& command, absl::Duration timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint64_t Append(int kind_field, const google::protobuf::MessageLite& kind, size_t kind_bytes,
                  InFlight in_flight) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Batch& OpenBatch(size_t command_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AppendDeletes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AppendSync() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The call, if it is free and there is something to write: the caller must Write() it after
  // unlocking.
  Call* ClaimWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status AwaitDone(uint64_t number, TimePoint deadline, std::string_view what,
                         absl::Duration timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool WaitChanged(TimePoint deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status TimedOut(std::string_view what, absl::Duration timeout) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status UnreachableLocked(const std::string& why) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LoseLocked(const absl::Status& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes the server's word; an error if it makes no sense.
  absl::Status TakeReply(v1::ExecuteReply* reply) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeCommandReply(v1::CommandReply* reply) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DeleteOneByOne(uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status TakeDoneThrough(uint64_t done_through) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  const Options options_;
  std::atomic<uint64_t> next_id_ = uint64_t{1} << 32;  // Ids need no order, only to differ.

  // Guarded by mu_.
  mutable Mutex mu_;
  CondVar changed_;  // done_through_, a ticket, lost_, or room in the window
  int waiting_ ABSL_GUARDED_BY(mu_) = 0;
  CondVar broken_;  // call_ has ended, or closing_
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status lost_ ABSL_GUARDED_BY(mu_);

  uint64_t next_number_ ABSL_GUARDED_BY(mu_) = 1;
  uint64_t done_through_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t sync_number_ ABSL_GUARDED_BY(mu_) = 0;  // the last command that makes the server report
  size_t unreported_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // appended after it
  size_t unfinished_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::string_view last_name_ ABSL_GUARDED_BY(mu_) = "none";
  std::vector<uint64_t> deletes_ ABSL_GUARDED_BY(mu_);  // to be appended before the next command
  // Deletes of several tensors, by number. The server refuses one as a whole if it doesn't know an
  // id.
  absl::flat_hash_map<uint64_t, std::vector<uint64_t>> shared_deletes_ ABSL_GUARDED_BY(mu_);
  std::deque<InFlight> in_flight_ ABSL_GUARDED_BY(mu_);  // of done_through_ + 1, ..
  std::deque<Batch> batches_ ABSL_GUARDED_BY(mu_);       // not finished
  size_t batches_sent_ ABSL_GUARDED_BY(mu_) = 0;         // of batches_, on call_

  std::unique_ptr<Call> call_ ABSL_GUARDED_BY(mu_);  // null between calls
  bool call_writing_ ABSL_GUARDED_BY(mu_) = false;   // a write was claimed and has not ended
  bool call_write_failed_ ABSL_GUARDED_BY(mu_) = false;
  bool call_reads_ended_ ABSL_GUARDED_BY(mu_) = false;
  // An ended call. Not destroyed on gRPC's thread: it may hold the last reference to the channel,
  // whose end joins that thread.
  std::unique_ptr<Call> ended_call_ ABSL_GUARDED_BY(mu_);
  bool break_pending_ ABSL_GUARDED_BY(mu_) = false;  // for WaitForBreak
  absl::Status break_reason_ ABSL_GUARDED_BY(mu_);
  uint64_t last_reply_ ABSL_GUARDED_BY(mu_) = 0;       // the last command that was answered
  uint64_t acknowledged_ ABSL_GUARDED_BY(mu_) = 0;     // the last received_through that was sent
  bool acknowledge_now_ ABSL_GUARDED_BY(mu_) = false;  // with a message of its own if need be
  bool watching_ ABSL_GUARDED_BY(mu_) = false;  // replies have come: WaitForBreak looks at tidy_at_
  TimePoint tidy_at_ ABSL_GUARDED_BY(mu_);
  TimePoint broken_since_ ABSL_GUARDED_BY(mu_);
  int breaks_without_reply_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace devserver::client
