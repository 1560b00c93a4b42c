// Connection: the thread that keeps its session alive and takes it up again after a broken
// connection.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "client/connection.h"
#include "client/deadline.h"
#include "server/base/error_details.h"

namespace devserver::client {
namespace {

constexpr absl::Duration kAttemptTimeout = absl::Seconds(2);
constexpr absl::Duration kBackOffFirst = absl::Milliseconds(20);
constexpr absl::Duration kBackOffMax = absl::Seconds(1);
constexpr absl::Duration kRefusedTimeoutMax = absl::Seconds(3);
// Calls in a row that ended before the server said anything: it takes the session but not the
// commands.
constexpr int kBreaksWithoutReplyMax = 10;

bool SessionIsGone(const absl::Status& status) {
  const auto details = DetailsOf(status);
  return details.has_value() && details->reason == ErrorReason::kSessionExpired;
}

// Whether trying again may help.
bool IsPassing(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kInternal:  // gRPC's word for a connection that was cut in the middle of
                                       // a frame
      return true;
    default:
      return false;
  }
}

// Nothing listens at the address: a server's memory is gone with its process. gRPC tells it by text
// only.
bool IsRefused(const absl::Status& status) {
  const std::string message(status.message());
  return absl::StrContains(message, "onnection refused") ||
         absl::StrContains(message, "No such file or directory");
}

}  // namespace

template <typename Invoke>
absl::Status Connection::LeaseCall(const Transport& transport, const std::string& token,
                                   absl::Duration timeout, Invoke invoke) {
  auto context = std::make_shared<grpc::ClientContext>();
  PrepareCall(context.get(), token, timeout);
  {
    MutexLock lock(&mu_);
    if (closing_) {
      return absl::CancelledError("the client is closing");
    }
    lease_call_ = context;
  }
  const grpc::Status status = invoke(transport, context.get());
  {
    MutexLock lock(&mu_);
    lease_call_ = nullptr;
  }
  return StatusFrom(status, absl::StrFormat("server %s", address_));
}

void Connection::RunLease() {
  const absl::Duration interval = lease_ / 3;
  TimePoint keep_alive = DeadlineAfter(interval);
  for (;;) {
    const CommandStream::Break event = stream_->WaitForBreak(keep_alive);
    switch (event.event) {
      case CommandStream::Event::kClosed:
        return;
      case CommandStream::Event::kBroken:
        TakeUpAgain(event);
        break;
      case CommandStream::Event::kUntidy:
        stream_->Tidy();
        break;
      case CommandStream::Event::kTimeout:
        if (stream_->lost().ok()) {
          KeepAlive();
        }
        keep_alive = DeadlineAfter(interval);
    }
  }
}

void Connection::KeepAlive() {
  const absl::Duration timeout = std::max(lease_ / 3, absl::Milliseconds(500));
  const absl::Status status = LeaseCall(
      *transport(), token_, timeout, [](const Transport& transport, grpc::ClientContext* context) {
        v1::KeepAliveReply reply;
        return transport.sessions->KeepAlive(context, v1::KeepAliveRequest(), &reply);
      });
  if (!status.ok()) {
    stream_->Drop();  // A dead connection need not know yet that it is dead.
  }
}

void Connection::TakeUpAgain(const CommandStream::Break& broken) {
  absl::Status why = broken.reason;
  bool is_gone = SessionIsGone(why);
  if (!is_gone && !IsPassing(why)) {
    stream_->Lose(why);
    return;
  }
  if (broken.breaks_without_reply > kBreaksWithoutReplyMax) {
    stream_->Lose(stream_->Unreachable(
        absl::StrFormat("it ended the command stream %d times in a row without an answer: %s",
                        broken.breaks_without_reply, std::string(why.message()))));
    return;
  }
  const TimePoint give_up = DeadlineAfter(options_.reconnect_timeout);
  const TimePoint give_up_early =
      DeadlineAfter(std::min(options_.reconnect_timeout / 5, kRefusedTimeoutMax));
  absl::Duration back_off = broken.breaks_without_reply > 1
                                ? kBackOffFirst * (1 << broken.breaks_without_reply)
                                : absl::ZeroDuration();
  for (;;) {
    back_off = std::min(back_off, kBackOffMax);
    if (!stream_->WaitUnlessClosed(DeadlineAfter(back_off))) {
      return;
    }
    const Attempt attempt = is_gone ? TryToTellWhy(&why) : TryToAttach(&why);
    if (attempt == Attempt::kDone) {
      return;
    }
    is_gone |= attempt == Attempt::kGone;
    const TimePoint now = Clock::Real()->Now();
    const bool hopeless = is_gone || attempt == Attempt::kRefused;
    if (now >= give_up || (hopeless && now >= give_up_early)) {
      stream_->Lose(stream_->Unreachable(std::string(why.message())));
      return;
    }
    back_off =
        attempt == Attempt::kGone ? absl::ZeroDuration() : std::max(back_off * 2, kBackOffFirst);
  }
}

Connection::Attempt Connection::TryToAttach(absl::Status* why) {
  // A new channel: the old one may believe in a connection that is dead.
  const std::shared_ptr<const Transport> transport = OpenTransport(address_, Traffic::kCommands);
  v1::AttachSessionRequest request;
  request.set_token(token_);
  v1::AttachSessionReply reply;
  const absl::Status status =
      LeaseCall(*transport, token_, std::min(kAttemptTimeout, options_.reconnect_timeout),
                [&](const Transport& transport, grpc::ClientContext* context) {
                  return transport.sessions->AttachSession(context, request, &reply);
                });
  if (status.ok() && reply.server_id() == server_id_) {
    ReplaceTransport(transport);
    stream_->Attach(transport, reply.received_through());
    return Attempt::kDone;
  }
  *why = status;
  if (status.ok() || SessionIsGone(status)) {
    return Attempt::kGone;
  }
  return AfterFailure(status);
}

Connection::Attempt Connection::TryToTellWhy(absl::Status* why) {
  // Only a session's opening tells the server's id: open one for the question.
  const std::shared_ptr<const Transport> transport = OpenTransport(address_, Traffic::kCommands);
  v1::OpenSessionRequest request;
  request.set_name(options_.name);
  v1::OpenSessionReply reply;
  const absl::Status status =
      LeaseCall(*transport, "", std::min(kAttemptTimeout, options_.reconnect_timeout),
                [&](const Transport& transport, grpc::ClientContext* context) {
                  return transport.sessions->OpenSession(context, request, &reply);
                });
  if (!status.ok()) {
    *why = status;
    return AfterFailure(status);
  }
  LeaseCall(*transport, reply.token(), kAttemptTimeout,
            [&](const Transport& transport, grpc::ClientContext* context) {
              v1::CloseSessionReply closed;
              return transport.sessions->CloseSession(context, v1::CloseSessionRequest(), &closed);
            })
      .IgnoreError();
  const std::string message =
      reply.server_id() == server_id_
          ? absl::StrFormat(
                "lease expired: server %s has closed this session, its tensors are gone; "
                "connect again",
                address_)
          : absl::StrFormat(
                "server restarted: %s is %s now and was %s, this client's tensors are "
                "gone; connect again",
                address_, reply.server_id(), server_id_);
  stream_->Lose(
      MakeError(absl::StatusCode::kFailedPrecondition, ErrorReason::kSessionExpired, message));
  return Attempt::kDone;
}

// Whether another attempt may help; if not the session is lost.
Connection::Attempt Connection::AfterFailure(const absl::Status& status) {
  if (!IsPassing(status)) {
    stream_->Lose(status);
    return Attempt::kDone;
  }
  return IsRefused(status) ? Attempt::kRefused : Attempt::kRetry;
}

void Connection::ReplaceTransport(std::shared_ptr<const Transport> transport) {
  MutexLock lock(&mu_);
  transport_.swap(transport);  // The old one ends after the lock.
}

}  // namespace devserver::client
