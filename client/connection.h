// A client's connection to one server: its calls, its session and what keeps that alive. Not
// installed.
//
// Clients, devices and tensors share it; with the last of them it closes the session, in bounded
// time. In default_session mode there is no session, no stream and no thread: every command is a
// unary call of its own. Thread safety: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "client/command_stream.h"
#include "client/tensor_handle.h"
#include "client/transport.h"
#include "client/wire.h"
#include "devserver/client.h"
#include "server/base/mutex.h"

namespace devserver::client {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  static absl::StatusOr<std::shared_ptr<Connection>> Open(const std::string& address,
                                                          ClientOptions options);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  const std::string& address() const { return address_; }
  const ClientOptions& options() const { return options_; }
  const std::string& server_id() const { return server_id_; }
  const std::string& token() const { return token_; }
  const ServerLimits& limits() const { return limits_; }
  const DeviceList& devices() const { return devices_; }
  // By its exact name; nullptr if there is none.
  const DeviceInfo* FindDevice(std::string_view name) const;
  absl::Duration Timeout(absl::Duration timeout) const {
    return timeout < absl::ZeroDuration() ? options_.timeout : timeout;
  }
  // Tensors up to this size travel with the commands.
  uint64_t inline_bytes() const;
  uint64_t chunk_bytes() const;

  // One unary call: `invoke`(transport, context) makes it.
  template <typename Invoke>
  absl::Status Call(absl::Duration timeout, Invoke invoke) const {
    const std::shared_ptr<const Transport> transport = this->transport();
    grpc::ClientContext context;
    PrepareCall(&context, token_, Timeout(timeout));
    return StatusFrom(invoke(*transport, &context), absl::StrFormat("server %s", address_));
  }
  std::shared_ptr<const Transport> transport() const;
  // For Upload and Download: beside the commands, so that neither waits for the other.
  std::shared_ptr<const Transport> bulk_transport();
  // Closes the bulk connection when the calls on it have ended; the next transfer makes a new one.
  void DropBulkTransport();

  // Gives the command that makes `result` its id and sends it. Kind: v1::Create, v1::Op or
  // v1::Copy.
  template <typename Kind>
  void Submit(int kind_field, Kind* kind, std::string_view name,
              std::span<TensorHandle* const> inputs, TensorHandle* result) {
    if (stream_ != nullptr) {
      result->id = stream_->PickId();
      result->delete_at_end = true;
      kind->set_id(result->id);
    }
    SubmitEncoded({kind_field, kind, name, inputs, result, nullptr});
  }
  std::shared_ptr<FetchTicket> Fetch(TensorHandle* tensor);
  // Ids for uploads; 0 where the server picks.
  uint64_t PickId() { return stream_ == nullptr ? 0 : stream_->PickId(); }

  absl::Status StatusOf(const TensorHandle& tensor) const;
  absl::Status Await(const TensorHandle& tensor, absl::Duration timeout,
                     std::optional<Receipt>* receipt = nullptr);
  absl::Status Await(const FetchTicket& ticket, absl::Duration timeout);
  absl::Status Sync(absl::Duration timeout);
  // Sync for calls whose answer shows what is held: values that were kept only for a resend are
  // not.
  absl::Status Settle() {
    return stream_ == nullptr ? absl::OkStatus() : stream_->Settle(options_.timeout);
  }
  void Release(TensorHandle* tensor);

  // What the public values hide.
  static Tensor TensorOf(std::shared_ptr<TensorHandle> handle) { return Tensor(std::move(handle)); }
  static const std::shared_ptr<TensorHandle>& HandleOf(const Tensor& tensor) {
    return tensor.handle_;
  }
  static const std::shared_ptr<Connection>& ConnectionOf(const Device& device) {
    return device.connection_;
  }
  static const DeviceInfo* InfoOf(const Device& device) { return device.info_; }

 private:
  Connection(std::string address, ClientOptions options);

  absl::Status OpenSession();
  absl::Status ListDevices();
  void SubmitEncoded(const CommandStream::Command& command);
  // In default_session mode: runs it as a batch of one.
  void RunNow(const CommandStream::Command& command);

  // lease.cc: the thread that keeps the session.
  void RunLease();
  void KeepAlive();
  // Makes a new connection for a stream that broke, or gives the session up.
  void TakeUpAgain(const CommandStream::Break& broken);
  enum class Attempt {
    kDone,     // attached, or the session is lost
    kGone,     // the server doesn't know the session
    kRefused,  // nothing listens at the address
    kRetry,
  };
  Attempt TryToAttach(absl::Status* why);
  // For a session that is gone: whether the server restarted or the lease ran out.
  Attempt TryToTellWhy(absl::Status* why);
  Attempt AfterFailure(const absl::Status& status);
  void ReplaceTransport(std::shared_ptr<const Transport> transport);
  // A call of the lease thread, which the destructor can cut short.
  template <typename Invoke>
  absl::Status LeaseCall(const Transport& transport, const std::string& token,
                         absl::Duration timeout, Invoke invoke);

  // Constant after Open.
  const std::string address_;
  ClientOptions options_;
  std::string token_;  // "": default_session mode
  std::string server_id_;
  absl::Duration lease_;
  ServerLimits limits_;
  DeviceList devices_;
  std::unique_ptr<CommandStream> stream_;  // null in default_session mode

  // Guarded by mu_.
  mutable Mutex mu_;
  std::shared_ptr<const Transport> transport_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const Transport> bulk_transport_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<grpc::ClientContext> lease_call_ ABSL_GUARDED_BY(mu_);
  bool closing_ ABSL_GUARDED_BY(mu_) = false;

  std::thread lease_thread_;
};

}  // namespace devserver::client
