#include "client/connection.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "server/base/error_details.h"
#include "server/base/status_macros.h"

namespace devserver::client {
namespace {

constexpr uint32_t kProtocol = 1;
constexpr size_t kSessionNameBytesMax = 256;
constexpr absl::Duration kCloseTimeout = absl::Seconds(2);
// Where the server's limits aren't known: below any that make sense.
constexpr uint64_t kInlineBytesDefault = uint64_t{64} << 10;
constexpr uint64_t kChunkBytesDefault = uint64_t{1} << 20;
constexpr uint64_t kChunkBytesBest = uint64_t{4} << 20;  // Measured: more gains nothing.

// "train (ana@lab3)".
std::string SessionName() {
  std::array<char, 256> host = {};
  gethostname(host.data(), host.size() - 1);
  const passwd* user = getpwuid(getuid());
  return absl::StrFormat("%s (%s@%s)", program_invocation_short_name,
                         user == nullptr ? std::to_string(getuid()) : user->pw_name, host.data());
}

// A connect that gets no answer in time is a server that can't be reached.
absl::Status ConnectFailure(const absl::Status& status, const std::string& address,
                            absl::Duration timeout) {
  if (status.code() == absl::StatusCode::kDeadlineExceeded) {
    return absl::UnavailableError(
        absl::StrFormat("server %s: no answer within %s; is devserverd running there?", address,
                        absl::FormatDuration(timeout)));
  }
  return status;
}

}  // namespace

Connection::Connection(std::string address, ClientOptions options)
    : address_(std::move(address)), options_(std::move(options)) {
  transport_ = OpenTransport(address_, Traffic::kCommands);
}

absl::StatusOr<std::shared_ptr<Connection>> Connection::Open(const std::string& address,
                                                             ClientOptions options) {
  if (address.empty()) {
    return absl::InvalidArgumentError("no server address given; one reads \"127.0.0.1:50151\"");
  }
  if (options.name.empty()) {
    options.name = SessionName();
  }
  options.name.resize(std::min(options.name.size(), kSessionNameBytesMax));
  std::shared_ptr<Connection> connection(new Connection(address, std::move(options)));
  const absl::Duration timeout = connection->options_.connect_timeout;
  if (!connection->options_.default_session) {
    if (const absl::Status status = connection->OpenSession(); !status.ok()) {
      return ConnectFailure(status, address, timeout);
    }
  }
  if (const absl::Status status = connection->ListDevices(); !status.ok()) {
    return ConnectFailure(status, address, timeout);
  }
  if (!connection->token_.empty()) {
    connection->stream_ = std::make_unique<CommandStream>(
        CommandStream::Options{address, connection->token_, connection->limits_.commands_in_flight,
                               connection->limits_.message_bytes});
    connection->stream_->Attach(connection->transport(), 0);
    connection->lease_thread_ = std::thread(&Connection::RunLease, connection.get());
  }
  return connection;
}

absl::Status Connection::OpenSession() {
  v1::OpenSessionRequest request;
  request.set_name(options_.name);
  request.set_lease_seconds(absl::ToDoubleSeconds(options_.lease));
  request.set_protocol_min(kProtocol);
  request.set_protocol_max(kProtocol);
  v1::OpenSessionReply reply;
  RETURN_IF_ERROR(Call(options_.connect_timeout, [&](const Transport& transport, auto* context) {
    return transport.sessions->OpenSession(context, request, &reply);
  }));
  if (reply.protocol() != kProtocol || reply.token().empty()) {
    return absl::InternalError(absl::StrFormat(
        "server %s opened a session without a token or with protocol %d; asked for %d", address_,
        reply.protocol(), kProtocol));
  }
  token_ = reply.token();
  server_id_ = reply.server_id();
  limits_ = LimitsFrom(reply.limits());
  lease_ = absl::Seconds(std::clamp(reply.session().lease_seconds(), 0.1, 1e6));
  if (options_.reconnect_timeout <= absl::ZeroDuration()) {
    options_.reconnect_timeout = lease_;
  }
  return absl::OkStatus();
}

absl::Status Connection::ListDevices() {
  v1::ListDevicesReply reply;
  RETURN_IF_ERROR(Call(options_.connect_timeout, [&](const Transport& transport, auto* context) {
    return transport.devices->ListDevices(context, v1::ListDevicesRequest(), &reply);
  }));
  devices_ = DeviceListFrom(reply);
  if (FindDevice("cpu:0") == nullptr) {
    return absl::InternalError(absl::StrFormat("server %s lists %d devices and no cpu:0", address_,
                                               devices_.devices.size()));
  }
  return absl::OkStatus();
}

Connection::~Connection() {
  if (stream_ != nullptr) {
    stream_->Close();
    std::shared_ptr<grpc::ClientContext> lease_call;
    {
      MutexLock lock(&mu_);
      closing_ = true;
      lease_call = lease_call_;
    }
    if (lease_call != nullptr) {
      lease_call->TryCancel();
    }
    lease_thread_.join();
  }
  if (!token_.empty() && (stream_ == nullptr || stream_->lost().ok())) {
    // If this fails the lease ends it.
    Call(kCloseTimeout, [](const Transport& transport, auto* context) {
      v1::CloseSessionReply reply;
      return transport.sessions->CloseSession(context, v1::CloseSessionRequest(), &reply);
    }).IgnoreError();
  }
}

const DeviceInfo* Connection::FindDevice(std::string_view name) const {
  for (const DeviceInfo& device : devices_.devices) {
    if (device.name == name) {
      return &device;
    }
  }
  return nullptr;
}

uint64_t Connection::inline_bytes() const {
  return limits_.inline_bytes == 0 ? kInlineBytesDefault : limits_.inline_bytes;
}

uint64_t Connection::chunk_bytes() const {
  return limits_.chunk_bytes == 0 ? kChunkBytesDefault
                                  : std::min(limits_.chunk_bytes, kChunkBytesBest);
}

std::shared_ptr<const Transport> Connection::transport() const {
  MutexLock lock(&mu_);
  return transport_;
}

std::shared_ptr<const Transport> Connection::bulk_transport() {
  MutexLock lock(&mu_);
  if (bulk_transport_ == nullptr) {
    bulk_transport_ = OpenTransport(address_, Traffic::kBulk);
  }
  return bulk_transport_;
}

void Connection::DropBulkTransport() {
  std::shared_ptr<const Transport> dropped;  // Destroyed after the lock.
  MutexLock lock(&mu_);
  dropped.swap(bulk_transport_);
}

void Connection::SubmitEncoded(const CommandStream::Command& command) {
  if (stream_ == nullptr) {
    RunNow(command);
  } else {
    stream_->Submit(command, options_.timeout);
  }
}

std::shared_ptr<FetchTicket> Connection::Fetch(TensorHandle* tensor) {
  auto ticket = std::make_shared<FetchTicket>();
  v1::Fetch fetch;
  fetch.set_id(tensor->id);
  fetch.set_raw(true);
  TensorHandle* const inputs[] = {tensor};
  SubmitEncoded({v1::Command::kFetchFieldNumber, &fetch, "fetch", inputs, nullptr, ticket});
  return ticket;
}

void Connection::RunNow(const CommandStream::Command& command) {
  v1::RunRequest request;
  v1::Command* only = request.add_commands();
  switch (command.kind_field) {
    case v1::Command::kCreateFieldNumber:
      only->mutable_create()->CheckTypeAndMergeFrom(*command.kind);
      break;
    case v1::Command::kOpFieldNumber:
      only->mutable_op()->CheckTypeAndMergeFrom(*command.kind);
      break;
    case v1::Command::kCopyFieldNumber:
      only->mutable_copy()->CheckTypeAndMergeFrom(*command.kind);
      break;
    default:
      only->mutable_fetch()->CheckTypeAndMergeFrom(*command.kind);
  }
  v1::RunReply reply;
  absl::Status status = Call(kDefaultTimeout, [&](const Transport& transport, auto* context) {
    return transport.compute->Run(context, request, &reply);
  });
  if (status.ok() && reply.replies_size() != 1) {
    status = absl::InternalError(absl::StrFormat("server %s gave %d replies to one command",
                                                 address_, reply.replies_size()));
  }
  v1::CommandReply* result = status.ok() ? reply.mutable_replies(0) : nullptr;
  if (result != nullptr && result->has_error()) {
    status = StatusFrom(result->error());
  } else if (result != nullptr && result->tensor().state() == v1::Tensor::FAILED) {
    status = StatusFrom(result->tensor().error());
  }
  if (command.ticket != nullptr) {
    command.ticket->status = status;
    if (status.ok()) {
      command.ticket->packed =
          std::move(*result->mutable_fetched()->mutable_values()->mutable_raw());
    }
    command.ticket->done = true;
    return;
  }
  command.result->failure = status;
  if (result != nullptr) {
    command.result->id = result->tensor().id();
    if (result->has_receipt()) {
      command.result->receipt = ReceiptFrom(result->receipt());
    }
  }
}

absl::Status Connection::StatusOf(const TensorHandle& tensor) const {
  return stream_ == nullptr ? tensor.failure : stream_->StatusOf(tensor);
}

absl::Status Connection::Await(const TensorHandle& tensor, absl::Duration timeout,
                               std::optional<Receipt>* receipt) {
  if (stream_ != nullptr) {
    return stream_->Await(tensor, Timeout(timeout), receipt);
  }
  if (receipt != nullptr) {
    *receipt = tensor.receipt;
  }
  return tensor.failure;
}

absl::Status Connection::Await(const FetchTicket& ticket, absl::Duration timeout) {
  return stream_ == nullptr ? ticket.status : stream_->Await(ticket, Timeout(timeout));
}

absl::Status Connection::Sync(absl::Duration timeout) {
  return stream_ == nullptr ? absl::OkStatus() : stream_->Sync(Timeout(timeout));
}

void Connection::Release(TensorHandle* tensor) {
  if (stream_ != nullptr) {
    stream_->Delete(tensor);
  }
}

}  // namespace devserver::client
