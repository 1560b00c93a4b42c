#include "server/rpc/execute_stream.h"

#include <google/protobuf/arena.h>
#include <grpcpp/server_context.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "devserver/v1/compute.pb.h"
#include "server/base/error_details.h"
#include "server/base/mutex.h"
#include "server/base/status_macros.h"
#include "server/rpc/commands.h"
#include "server/rpc/raw_message.h"
#include "server/rpc/wire.h"
#include "server/session/execution.h"

namespace devserver {
namespace {

using Reactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

// The first block of the request's arena: a batch of 64 commands fits, so reading costs no
// allocation.
constexpr size_t kArenaBytes = size_t{64} << 10;
constexpr size_t kRepliesPerMessage = 256;

class ExecuteStream;

// What the session's execution knows of the stream. The stream takes itself out before it goes, so
// that a thread of a device that is late finds nothing.
class StreamListener final : public Execution::Listener {
 public:
  explicit StreamListener(ExecuteStream* stream) : stream_(stream) {}
  void OnProgress() override;
  void OnDetached(const absl::Status& status) override;
  // Waits for calls that are under way.
  void TakeOut();

 private:
  ExecuteStream* Enter();
  void Leave();

  // Guarded by mu_.
  Mutex mu_;
  CondVar left_;
  ExecuteStream* stream_ ABSL_GUARDED_BY(mu_);
  int inside_ ABSL_GUARDED_BY(mu_) = 0;
};

class ExecuteStream final : public Reactor {
 public:
  explicit ExecuteStream(SessionRef session)
      : session_(std::move(session)),
        limits_(*session_->surroundings().limits),
        arena_block_(std::make_unique<char[]>(kArenaBytes)),
        arena_(arena_block_.get(), kArenaBytes),
        listener_(std::make_shared<StreamListener>(this)) {
    execution().Attach(listener_);
    ReadOn();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      {
        const MutexLock lock(&mu_);
        half_closed_ = true;
        reading_ = false;
      }
      execution().Flush();  // What was sent is still answered.
      Pump();
      return;
    }
    session_->Renew();
    const absl::Status status = HandleMessage();
    if (!status.ok()) {
      {
        const MutexLock lock(&mu_);
        reading_ = false;
      }
      End(status);
      return;
    }
    {
      const MutexLock lock(&mu_);
      reading_ = false;
    }
    ReadOn();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      End(absl::CancelledError("the client is gone"));
    }
    Send();
  }

  void OnCancel() override { End(absl::CancelledError("the client is gone")); }

  void OnDone() override {
    execution().Detach(listener_.get());
    listener_->TakeOut();
    delete this;
  }

  // Something may be there to send, or the window may have opened. Any thread.
  void Pump() {
    {
      const MutexLock lock(&mu_);
      pump_wanted_ = true;
      if (writing_) {
        return;  // OnWriteDone looks again.
      }
      writing_ = true;
    }
    Send();
  }

  // Ends the call with `status` when the write under way is done. The first one counts.
  void End(const absl::Status& status) {
    {
      const MutexLock lock(&mu_);
      if (end_.has_value()) {
        return;
      }
      end_ = status;
    }
    Pump();
  }

 private:
  Execution& execution() { return session_->execution(); }

  // Starts the next read, unless the window is used up: then Pump comes back to it. Safe against
  // the end of the stream: it is only called from reactions, which OnDone waits for, and from Pump,
  // which TakeOut waits for.
  void ReadOn() {
    {
      const MutexLock lock(&mu_);
      if (reading_ || half_closed_ || end_.has_value() || !execution().MayRead()) {
        return;
      }
      reading_ = true;
    }
    StartRead(&message_);
  }

  // Called by whoever set writing_; returns with a write under way, the call ended, or nothing to
  // say.
  void Send() {
    while (true) {
      std::optional<absl::Status> end;
      {
        const MutexLock lock(&mu_);
        pump_wanted_ = false;
        if (finished_) {
          return;
        }
        end = end_;
        finished_ = end.has_value();
      }
      if (end.has_value()) {
        Finish(ToGrpc(*end));
        return;
      }
      ReadOn();
      // Asked first: what finishes after it was not idle is seen by the next round, and what
      // finished before it is in this one's reply.
      const bool idle = execution().Idle();
      Execution::Outgoing outgoing;
      // Three quarters of a message, as for a single fetch (commands.cc).
      if (execution().TakeOutgoing(kRepliesPerMessage, limits_.message_bytes / 4 * 3, &outgoing)) {
        FillReply(outgoing);
        written_ = Serialize(reply_);
        StartWrite(&written_);
        return;
      }
      const MutexLock lock(&mu_);
      if (half_closed_ && idle && !end_.has_value()) {
        end_ = absl::OkStatus();
      } else if (!pump_wanted_ && !end_.has_value()) {
        writing_ = false;
        return;
      }
    }
  }

  void FillReply(const Execution::Outgoing& outgoing) {
    reply_.Clear();
    reply_.set_done_through(outgoing.done_through);
    reply_.mutable_window()->set_commands(outgoing.window_commands);
    reply_.mutable_window()->set_size_bytes(limits_.message_bytes);
    for (const Execution::Reply& reply : outgoing.replies) {
      v1::CommandReply* const wire = reply_.add_replies();
      wire->set_number(reply.number);
      absl::Status status = reply.status;
      if (status.ok() && reply.is_fetch) {
        status = FillFetched(*session_->surroundings().devices, *reply.tensor, reply.raw,
                             wire->mutable_fetched());
      } else if (status.ok()) {
        TensorToWire(*reply.tensor, wire->mutable_tensor());
        ReceiptToWire(reply.tensor->quote(), reply.tensor->measured_seconds(),
                      reply.tensor->simulated_seconds(), wire->mutable_receipt());
      }
      if (!status.ok()) {
        OpErrorToWire(status, wire->mutable_error());
        wire->mutable_error()->set_command_number(
            wire->error().command_number() == 0 ? reply.number : wire->error().command_number());
      }
    }
  }

  absl::Status HandleMessage() {
    RETURN_IF_ERROR(CheckMessageBytes(
        message_, limits_, "Execute",
        "send fewer commands in one, and large values with TensorService.Upload"));
    auto* const request = google::protobuf::Arena::CreateMessage<v1::ExecuteRequest>(&arena_);
    absl::Status status = ParseMessage(&message_, "Execute", request);
    if (status.ok()) {
      status = Handle(*request);
    }
    arena_.Reset();  // Now: a stream that falls silent holds nothing of a large message.
    return status;
  }

  absl::Status Handle(const v1::ExecuteRequest& request) {
    const DeviceQueue::WakeScope wake_later;
    const std::shared_ptr<Execution::Batch> batch =
        execution().BeginBatch(listener_.get(), request.received_through());
    absl::Status status;
    for (const v1::Command& command : request.commands()) {
      const absl::StatusOr<bool> is_new = batch->Accept(command.number());
      if (!is_new.ok()) {
        status = is_new.status();
        break;
      }
      if (*is_new) {
        HandleCommand(command, *batch);
      }
    }
    execution().EndBatch(batch);
    return status;
  }

  void HandleCommand(const v1::Command& command, Execution::Batch& batch) {
    const uint64_t number = command.number();
    absl::Status refused;
    switch (command.kind_case()) {
      case v1::Command::kOp:
        refused = RunOp(*session_, command.op(), MakeRequest(number, batch)).status();
        break;
      case v1::Command::kCreate:
        refused = RunCreate(*session_, command.create(), MakeRequest(number, batch)).status();
        break;
      case v1::Command::kCopy:
        refused = RunCopy(*session_, command.copy(), MakeRequest(number, batch)).status();
        break;
      case v1::Command::kFetch: {
        const absl::StatusOr<TensorRef> tensor = FindForFetch(*session_, command.fetch());
        refused = tensor.status();
        if (tensor.ok()) {
          batch.Fetch(number, *tensor, command.fetch().raw());
        }
        break;
      }
      case v1::Command::kDelete:
        refused = session_
                      ->Delete({command.delete_().ids().data(),
                                static_cast<size_t>(command.delete_().ids_size())})
                      .status();
        if (refused.ok()) {
          batch.Nothing();
        }
        break;
      case v1::Command::kSync:
        batch.Sync(number);
        break;
      case v1::Command::KIND_NOT_SET:
        refused = absl::InvalidArgumentError(
            "Execute: a command without a kind; give create, op, copy, delete, fetch or sync");
        break;
    }
    if (!refused.ok()) {
      batch.Refuse(number, refused);
    }
  }

  static Session::Request MakeRequest(uint64_t number, Execution::Batch& batch) {
    Session::Request request;
    request.command_number = number;
    request.leave_failed = true;
    request.done = batch.WhenDone(number);
    return request;
  }

  // Constant after construction.
  const SessionRef session_;
  const Limits& limits_;
  const std::unique_ptr<char[]> arena_block_;

  // Touched only by the read under way and the one who starts it.
  grpc::ByteBuffer message_;
  google::protobuf::Arena arena_;
  // Touched only by the one who set writing_.
  v1::ExecuteReply reply_;
  grpc::ByteBuffer written_;

  const std::shared_ptr<StreamListener> listener_;

  // Guarded by mu_.
  Mutex mu_;
  bool reading_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) =
      false;  // a write is under way, or somebody looks for one to do
  bool pump_wanted_ ABSL_GUARDED_BY(mu_) = false;  // look once more before writing_ goes
  bool half_closed_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
};

ExecuteStream* StreamListener::Enter() {
  const MutexLock lock(&mu_);
  inside_ += stream_ == nullptr ? 0 : 1;
  return stream_;
}

void StreamListener::Leave() {
  const MutexLock lock(&mu_);
  if (--inside_ == 0) {
    left_.NotifyAll();
  }
}

void StreamListener::TakeOut() {
  const MutexLock lock(&mu_);
  stream_ = nullptr;
  while (inside_ > 0) {
    left_.Wait(&mu_);
  }
}

void StreamListener::OnProgress() {
  if (ExecuteStream* const stream = Enter(); stream != nullptr) {
    stream->Pump();
    Leave();
  }
}

void StreamListener::OnDetached(const absl::Status& status) {
  if (ExecuteStream* const stream = Enter(); stream != nullptr) {
    stream->End(status);
    Leave();
  }
}

// A stream that is refused at once.
class RefusedStream final : public Reactor {
 public:
  explicit RefusedStream(const absl::Status& status) { Finish(ToGrpc(status)); }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* NewExecuteStream(
    const BackendSlot& slot, grpc::CallbackServerContext* context) {
  absl::StatusOr<SessionRef> session = slot.FindSession(*context);
  if (!session.ok()) {
    return new RefusedStream(session.status());
  }
  return new ExecuteStream(*std::move(session));
}

}  // namespace devserver
