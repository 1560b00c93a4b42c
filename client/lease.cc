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
  if (SessionIsGone(status)) {
    stream_->Lose(WhyGone(status));
  }
  if (!status.ok()) {
    stream_->Drop();  // A dead connection need not know yet that it is dead.
  }
}

void Connection::TakeUpAgain(const CommandStream::Break& first_break) {
  absl::Status why = first_break.reason;
  if (SessionIsGone(why)) {
    stream_->Lose(WhyGone(why));
    return;
  }
  if (!IsPassing(why)) {
    stream_->Lose(why);
    return;
  }
  if (first_break.breaks_without_reply > kBreaksWithoutReplyMax) {
    stream_->Lose(stream_->Unreachable(
        absl::StrFormat("it ended the command stream %d times in a row without an answer: %s",
                        first_break.breaks_without_reply, std::string(why.message()))));
    return;
  }
  const TimePoint give_up = DeadlineAfter(options_.reconnect_timeout);
  const TimePoint give_up_refused =
      DeadlineAfter(std::min(options_.reconnect_timeout / 5, kRefusedTimeoutMax));
  absl::Duration back_off = first_break.breaks_without_reply > 1
                                ? kBackOffFirst * (1 << first_break.breaks_without_reply)
                                : absl::ZeroDuration();
  for (;;) {
    back_off = std::min(back_off, kBackOffMax);
    if (stream_->WaitForBreak(DeadlineAfter(back_off)).event == CommandStream::Event::kClosed) {
      return;
    }
    const Attempt attempt = TryToAttach(&why);
    if (attempt == Attempt::kDone) {
      return;
    }
    const TimePoint now = Clock::Real()->Now();
    if (now >= give_up || (attempt == Attempt::kRefused && now >= give_up_refused)) {
      stream_->Lose(stream_->Unreachable(std::string(why.message())));
      return;
    }
    back_off = std::max(back_off * 2, kBackOffFirst);
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
  if (status.ok() || SessionIsGone(status)) {
    ReplaceTransport(transport);  // For the question why.
    stream_->Lose(WhyGone(status));
    return Attempt::kDone;
  }
  *why = status;
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

absl::Status Connection::WhyGone(const absl::Status& status) {
  // Only a session's opening tells the server's id: open one for the question.
  v1::OpenSessionRequest request;
  request.set_name(options_.name);
  v1::OpenSessionReply reply;
  const absl::Status probe =
      LeaseCall(*transport(), "", kAttemptTimeout,
                [&](const Transport& transport, grpc::ClientContext* context) {
                  return transport.sessions->OpenSession(context, request, &reply);
                });
  if (probe.ok()) {
    LeaseCall(*transport(), reply.token(), kAttemptTimeout,
              [&](const Transport& transport, grpc::ClientContext* context) {
                v1::CloseSessionReply closed;
                return transport.sessions->CloseSession(context, v1::CloseSessionRequest(),
                                                        &closed);
              })
        .IgnoreError();
  }
  const bool restarted = probe.ok() && reply.server_id() != server_id_;
  return MakeError(
      absl::StatusCode::kFailedPrecondition, ErrorReason::kSessionExpired,
      restarted
          ? absl::StrFormat("server restarted: %s is %s now and was %s, this client's tensors are "
                            "gone; connect again",
                            address_, reply.server_id(), server_id_)
          : absl::StrFormat(
                "lease expired: server %s has closed this session (%s), its tensors are "
                "gone; connect again",
                address_, std::string(status.message())));
}

}  // namespace devserver::client
