// A client for tests of the wire: the generated stubs, requests as text, and what came back with
// its typed details.
#pragma once

#include <google/protobuf/text_format.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "devserver/v1/compute.grpc.pb.h"
#include "devserver/v1/device.grpc.pb.h"
#include "devserver/v1/session.grpc.pb.h"
#include "devserver/v1/tensor.grpc.pb.h"

namespace devserver {

// A message from protobuf's text format: Parse<v1::Create>("shape: [2, 3] fill: 1").
template <typename Message>
Message Parse(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

// The typed detail of a failed call. A call of ours that fails always has exactly one.
inline v1::OpError DetailsFrom(const grpc::Status& status) {
  v1::StatusWithDetails details;
  v1::OpError error;
  EXPECT_TRUE(details.ParseFromString(status.error_details())) << status.error_message();
  EXPECT_EQ(details.details_size(), 1) << status.error_message();
  if (details.details_size() == 1) {
    EXPECT_TRUE(details.details(0).UnpackTo(&error));
    EXPECT_EQ(details.code(), status.error_code());
    EXPECT_EQ(details.message(), status.error_message());
    EXPECT_EQ(error.code(), status.error_code());
    EXPECT_EQ(error.message(), status.error_message());
  }
  return error;
}

template <typename Reply>
struct Outcome {
  grpc::Status status;
  Reply reply;

  bool ok() const { return status.ok(); }
  grpc::StatusCode code() const { return status.error_code(); }
  std::string message() const { return status.error_message(); }
  v1::OpError error() const { return DetailsFrom(status); }
};

class WireClient {
 public:
  // In the session of `token`; empty: the default session.
  explicit WireClient(std::shared_ptr<grpc::Channel> channel, std::string token = "")
      : token_(std::move(token)),
        channel_(channel),
        devices(v1::DeviceService::NewStub(channel)),
        sessions(v1::SessionService::NewStub(channel)),
        tensors(v1::TensorService::NewStub(channel)),
        compute(v1::ComputeService::NewStub(channel)) {}

  void Prepare(grpc::ClientContext& context) const {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    if (!token_.empty()) {
      context.AddMetadata("devserver-session", token_);
    }
  }

  template <typename Reply, typename Stub, typename Request>
  Outcome<Reply> Call(Stub& stub,
                      grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                      const Request& request) const {
    grpc::ClientContext context;
    Prepare(context);
    Outcome<Reply> outcome;
    outcome.status = (stub.*method)(&context, request, &outcome.reply);
    return outcome;
  }

  Outcome<v1::TensorReply> Create(const std::string& text) const {
    return Call(*tensors, &v1::TensorService::Stub::CreateTensor, Parse<v1::Create>(text));
  }
  Outcome<v1::TensorReply> MatMul(const std::string& text) const {
    return Call(*compute, &v1::ComputeService::Stub::MatMul, Parse<v1::MatMulRequest>(text));
  }
  Outcome<v1::TensorReply> Dense(const std::string& text) const {
    return Call(*compute, &v1::ComputeService::Stub::Dense, Parse<v1::DenseRequest>(text));
  }
  Outcome<v1::TensorReply> Apply(const std::string& text) const {
    return Call(*compute, &v1::ComputeService::Stub::Apply, Parse<v1::Op>(text));
  }
  Outcome<v1::RunReply> Run(const std::string& text) const {
    return Call(*compute, &v1::ComputeService::Stub::Run, Parse<v1::RunRequest>(text));
  }
  Outcome<v1::TensorReply> Copy(const std::string& text) const {
    return Call(*tensors, &v1::TensorService::Stub::CopyTensor, Parse<v1::Copy>(text));
  }
  Outcome<v1::EnsureOnReply> EnsureOn(const std::string& text) const {
    return Call(*tensors, &v1::TensorService::Stub::EnsureOn, Parse<v1::Copy>(text));
  }
  Outcome<v1::Tensor> Get(uint64_t id) const {
    v1::GetTensorRequest request;
    request.set_id(id);
    return Call(*tensors, &v1::TensorService::Stub::GetTensor, request);
  }
  Outcome<v1::FetchedTensor> Fetch(uint64_t id, bool raw = false) const {
    v1::Fetch request;
    request.set_id(id);
    request.set_raw(raw);
    return Call(*tensors, &v1::TensorService::Stub::FetchTensor, request);
  }
  Outcome<v1::ListTensorsReply> List(const std::string& text) const {
    return Call(*tensors, &v1::TensorService::Stub::ListTensors,
                Parse<v1::ListTensorsRequest>(text));
  }
  Outcome<v1::DeleteReply> Delete(const std::vector<uint64_t>& ids) const {
    v1::Delete request;
    request.mutable_ids()->Add(ids.begin(), ids.end());
    return Call(*tensors, &v1::TensorService::Stub::DeleteTensors, request);
  }
  Outcome<v1::OpenSessionReply> Open(const std::string& text) const {
    return Call(*sessions, &v1::SessionService::Stub::OpenSession,
                Parse<v1::OpenSessionRequest>(text));
  }
  Outcome<v1::CloseSessionReply> Close() const {
    return Call(*sessions, &v1::SessionService::Stub::CloseSession, v1::CloseSessionRequest());
  }
  Outcome<v1::Session> Session() const {
    return Call(*sessions, &v1::SessionService::Stub::GetSession, v1::GetSessionRequest());
  }

  // The elements of a ready tensor as numbers (integers too).
  std::vector<double> Numbers(uint64_t id) const {
    const Outcome<v1::FetchedTensor> fetched = Fetch(id);
    EXPECT_TRUE(fetched.ok()) << fetched.message();
    const v1::Values& values = fetched.reply.values();
    std::vector<double> numbers(values.numbers().begin(), values.numbers().end());
    numbers.insert(numbers.end(), values.integers().begin(), values.integers().end());
    return numbers;
  }

  const std::string& token() const { return token_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

 private:
  const std::string token_;
  const std::shared_ptr<grpc::Channel> channel_;

 public:
  const std::unique_ptr<v1::DeviceService::Stub> devices;
  const std::unique_ptr<v1::SessionService::Stub> sessions;
  const std::unique_ptr<v1::TensorService::Stub> tensors;
  const std::unique_ptr<v1::ComputeService::Stub> compute;
};

// A client with a session of its own, which is closed at the end.
class SessionClient final : public WireClient {
 public:
  explicit SessionClient(const std::shared_ptr<grpc::Channel>& channel,
                         const std::string& open = "name: 'test'")
      : WireClient(channel, OpenToken(channel, open)) {}
  ~SessionClient() { (void)Close(); }

 private:
  static std::string OpenToken(const std::shared_ptr<grpc::Channel>& channel,
                               const std::string& open) {
    const Outcome<v1::OpenSessionReply> opened = WireClient(channel).Open(open);
    EXPECT_TRUE(opened.ok()) << opened.message();
    return opened.reply.token();
  }
};

// One call of any method as raw bytes, message by message: what no generated stub would send.
class RawStream {
 public:
  RawStream(const WireClient& client, const std::string& method) : stub_(client.channel()) {
    client.Prepare(context_);
    call_ = stub_.PrepareCall(&context_, method, &queue_);
    call_->StartCall(nullptr);
    Wait();
  }
  ~RawStream() {
    context_.TryCancel();
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }
  RawStream(const RawStream&) = delete;
  RawStream& operator=(const RawStream&) = delete;

  // False when the call is over.
  bool Write(const std::string& bytes) {
    const grpc::Slice slice(bytes);
    call_->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    return Wait();
  }
  bool WritesDone() {
    call_->WritesDone(nullptr);
    return Wait();
  }
  // The next message; false when there is none any more.
  bool Read(std::string* bytes) {
    grpc::ByteBuffer buffer;
    call_->Read(&buffer, nullptr);
    if (!Wait()) {
      return false;
    }
    std::vector<grpc::Slice> slices;
    EXPECT_TRUE(buffer.Dump(&slices).ok());
    bytes->clear();
    for (const grpc::Slice& slice : slices) {
      bytes->append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
    return true;
  }
  grpc::Status Finish() {
    std::string rest;
    while (Read(&rest)) {
    }
    grpc::Status status;
    call_->Finish(&status, nullptr);
    Wait();
    return status;
  }
  void Cancel() { context_.TryCancel(); }

 private:
  bool Wait() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

}  // namespace devserver
