// The state of a session's Execute stream. It outlives connections: the client numbers its commands
// 1, 2, 3, ..; a number that was seen before is not run again, and replies are kept until the
// client says that it has them.
//
// Commands come in batches (one message each). A batch is finished when all its commands are;
// done_through is the last number of the last batch before which all batches are finished. A reply
// is handed out no later than the done_through that covers its number. Thread safety: any thread;
// BeginBatch to EndBatch on one thread. Listeners are called without locks, on any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/mutex.h"
#include "server/session/account.h"
#include "server/session/tensor.h"

namespace devserver {

// Lifetime: shared by the session and by the batches whose work is still queued when the session is
// gone.
class Execution : public std::enable_shared_from_this<Execution> {
 public:
  struct Reply {
    uint64_t number = 0;
    TensorRef tensor;  // of a fetch, of a copy (its receipt), or failed; null for a command that
                       // was refused
    bool is_fetch = false;
    bool raw = false;     // fetch: packed elements instead of numbers
    absl::Status status;  // not OK: the failure
  };

  // Something may be there to send, or the stream may be read on.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void OnProgress() = 0;
    // Another stream took over, or the session was closed: end this one.
    virtual void OnDetached(const absl::Status& status) = 0;
  };

  class Batch;

  Execution(std::shared_ptr<Account> account, uint64_t window_commands);
  ~Execution();
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  // Makes `listener` the one, and detaches the one before; replies that were not acknowledged will
  // be handed out again.
  void Attach(const std::shared_ptr<Listener>& listener);
  void Detach(const Listener* listener);
  void Close();

  // A message has arrived on the stream of `owner`. The client has the replies up to
  // `acknowledged`.
  std::shared_ptr<Batch> BeginBatch(const Listener* owner, uint64_t acknowledged);
  // All commands of the message were accepted or refused.
  void EndBatch(const std::shared_ptr<Batch>& batch);

  struct Outgoing {
    uint64_t done_through = 0;
    std::vector<Reply> replies;
    uint64_t window_commands = 0;  // how many more commands are taken
  };
  // What should be sent now; false if there is nothing to say. At most `replies_max` replies, and
  // of more than one only what takes about `bytes_max` as a message; call again for the rest.
  bool TakeOutgoing(size_t replies_max, uint64_t bytes_max, Outgoing* outgoing);
  // Whether the stream may be read on. If not, the listener will be called when it may.
  bool MayRead();

  // As if the client had sent a Sync behind what it sent.
  void Flush();
  // Nothing runs and nothing is left to hand out.
  bool Idle() const;

  uint64_t received_through() const;
  uint64_t window_commands() const { return window_commands_; }

 private:
  friend class Batch;

  void AddReply(Reply reply);
  void BatchFinished(Batch& batch);
  void NoteFinished(Batch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The listener, if it should be told now.
  std::shared_ptr<Listener> WhoToTell() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the client should hear of done_through.
  bool ReportDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  const std::shared_ptr<Account> account_;
  const uint64_t window_commands_;

  // Guarded by mu_.
  mutable Mutex mu_;
  std::shared_ptr<Listener> listener_ ABSL_GUARDED_BY(mu_);
  std::deque<std::shared_ptr<Batch>> batches_ ABSL_GUARDED_BY(mu_);  // received, not all finished
  std::map<uint64_t, Reply> replies_ ABSL_GUARDED_BY(mu_);           // not acknowledged, by number
  std::vector<uint64_t> unsent_ ABSL_GUARDED_BY(mu_);                // numbers of those to hand out
  uint64_t received_through_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t done_through_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t reported_through_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t sync_through_ ABSL_GUARDED_BY(mu_) = 0;  // a Sync wants to hear when this is done
  bool read_paused_ ABSL_GUARDED_BY(mu_) = false;
  bool handling_ ABSL_GUARDED_BY(mu_) =
      false;  // between BeginBatch and EndBatch replies are gathered
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

// The commands of one message. Lives until all of them have finished, in Execution::batches_: what
// is queued points to it. Accept to Nothing are for the thread that handles the message.
class Execution::Batch {
 public:
  Batch(std::shared_ptr<Execution> execution, const Listener* owner)
      : execution_(std::move(execution)), owner_(owner) {}

  // Takes the next command. False: a replay, skip it. INVALID_ARGUMENT if a number was left out;
  // ABORTED if another stream took over.
  absl::StatusOr<bool> Accept(uint64_t number);

  // --- How an accepted command ends: exactly one of these.
  void Refuse(uint64_t number, const absl::Status& status);
  // For Request::done of a command that was accepted by the session.
  Tensor::DoneCallback WhenDone(uint64_t number);
  void Fetch(uint64_t number, const TensorRef& tensor, bool raw);
  void Sync(uint64_t number);
  void Nothing() { ++ended_here_; }  // done, no reply

 private:
  friend class Execution;
  void Finished();  // one of the commands, on any thread

  // Constant after construction.
  const std::shared_ptr<Execution> execution_;
  const Listener* const owner_;  // only compared
  // Touched only by the thread that handles the message, constant after EndBatch.
  uint64_t last_number_ = 0;
  uint64_t sync_number_ = 0;  // of the last Sync; 0: none
  uint64_t ended_here_ = 0;   // commands that EndBatch takes off unfinished_

  std::atomic<uint64_t> unfinished_ = 1;  // commands, and one for EndBatch
  bool finished_ = false;                 // Guarded by execution_->mu_.
};

}  // namespace devserver
