#include "tests/bench/bare_server.h"

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

#include "devserver/v1/compute.grpc.pb.h"
#include "devserver/v1/tensor.grpc.pb.h"
#include "server/session/limits.h"

namespace devserver::bench {
namespace {

// The target of uploads and the source of downloads: touched pages, one user at a time.
std::byte* Memory() {
  static std::byte* const memory = [] {
    void* const mapped =
        mmap(nullptr, kBareBytesMax, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(mapped, kBareBytesMax, MADV_HUGEPAGE);
    std::memset(mapped, 1, kBareBytesMax);
    return static_cast<std::byte*>(mapped);
  }();
  return memory;
}

void FillTensor(uint64_t id, v1::Tensor* tensor) {
  tensor->set_id(id);
  tensor->set_dtype(v1::F32);
  tensor->add_shape(4);
  tensor->add_shape(4);
  tensor->set_device("gpu:0");
  tensor->set_size_bytes(64);
  tensor->set_state(v1::Tensor::READY);
}

grpc::ServerUnaryReactor* FinishOk(grpc::CallbackServerContext* context) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

class BareUpload final : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  explicit BareUpload(grpc::ByteBuffer* reply) : reply_(reply) { StartRead(&message_); }
  void OnReadDone(bool ok) override {
    if (!ok) {
      v1::TensorReply reply;
      FillTensor(1, reply.mutable_tensor());
      const grpc::Slice slice(reply.SerializeAsString());
      *reply_ = grpc::ByteBuffer(&slice, 1);
      Finish(grpc::Status::OK);
      return;
    }
    std::vector<grpc::Slice> slices;
    message_.Dump(&slices).ok();
    for (const grpc::Slice& slice : slices) {
      const size_t size = std::min(slice.size(), kBareBytesMax - received_bytes_);
      std::memcpy(Memory() + received_bytes_, slice.begin(), size);
      received_bytes_ += size;
    }
    message_.Clear();
    StartRead(&message_);
  }
  void OnDone() override { delete this; }

 private:
  grpc::ByteBuffer* const reply_;
  grpc::ByteBuffer message_;
  size_t received_bytes_ = 0;
};

class BareDownload final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  explicit BareDownload(grpc::ByteBuffer request) {
    v1::DownloadRequest parsed;
    grpc::SerializationTraits<v1::DownloadRequest>::Deserialize(&request, &parsed).ok();
    size_bytes_ = std::min<size_t>(parsed.size_bytes(), kBareBytesMax);
    WriteNext();
  }
  void OnWriteDone(bool ok) override {
    if (ok) {
      WriteNext();
    } else {
      Finish(grpc::Status::CANCELLED);
    }
  }
  void OnDone() override { delete this; }

 private:
  void WriteNext() {
    if (sent_bytes_ == size_bytes_) {
      Finish(grpc::Status::OK);
      return;
    }
    const size_t size = std::min<size_t>(size_bytes_ - sent_bytes_, Limits().chunk_bytes);
    uint8_t head[1 + 10];
    head[0] = v1::DownloadReply::kChunkFieldNumber << 3 | 2;
    const uint8_t* const head_end =
        google::protobuf::io::CodedOutputStream::WriteVarint64ToArray(size, head + 1);
    const grpc::Slice slices[] = {
        grpc::Slice(head, static_cast<size_t>(head_end - head)),
        grpc::Slice(Memory() + sent_bytes_, size, grpc::Slice::STATIC_SLICE)};
    message_ = grpc::ByteBuffer(slices, 2);
    sent_bytes_ += size;
    StartWrite(&message_);
  }

  grpc::ByteBuffer message_;
  size_t size_bytes_ = 0;
  size_t sent_bytes_ = 0;
};

class BareExecute final : public grpc::ServerBidiReactor<v1::ExecuteRequest, v1::ExecuteReply> {
 public:
  BareExecute() {
    reply_.set_done_through(1);
    reply_.mutable_window()->set_commands(65536);
    reply_.mutable_window()->set_size_bytes(4 << 20);
    v1::CommandReply* const reply = reply_.add_replies();
    reply->set_number(1);
    FillTensor(1, reply->mutable_fetched()->mutable_tensor());
    reply->mutable_fetched()->mutable_values()->mutable_raw()->assign(64, 'x');
    StartRead(&request_);
  }
  void OnReadDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status::OK);
      return;
    }
    const int count = request_.commands_size();
    if (count > 0 && request_.commands(count - 1).has_fetch()) {
      reply_.set_done_through(request_.commands(count - 1).number());
      reply_.mutable_replies(0)->set_number(reply_.done_through());
      StartWrite(&reply_);
    } else {
      StartRead(&request_);
    }
  }
  void OnWriteDone(bool ok) override {
    if (ok) {
      StartRead(&request_);
    } else {
      Finish(grpc::Status::CANCELLED);
    }
  }
  void OnDone() override { delete this; }

 private:
  v1::ExecuteRequest request_;
  v1::ExecuteReply reply_;
};

using BareTensorBase =
    v1::TensorService::WithCallbackMethod_GetTensor<v1::TensorService::WithRawCallbackMethod_Upload<
        v1::TensorService::WithRawCallbackMethod_Download<v1::TensorService::Service>>>;

class BareTensorService final : public BareTensorBase {
 public:
  grpc::ServerUnaryReactor* GetTensor(grpc::CallbackServerContext* context,
                                      const v1::GetTensorRequest* request,
                                      v1::Tensor* reply) override {
    FillTensor(request->id(), reply);
    return FinishOk(context);
  }
  grpc::ServerReadReactor<grpc::ByteBuffer>* Upload(grpc::CallbackServerContext* /*context*/,
                                                    grpc::ByteBuffer* reply) override {
    return new BareUpload(reply);
  }
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Download(grpc::CallbackServerContext* /*context*/,
                                                       const grpc::ByteBuffer* request) override {
    return new BareDownload(*request);
  }
};

using BareComputeBase = v1::ComputeService::WithCallbackMethod_MatMul<
    v1::ComputeService::WithCallbackMethod_Execute<v1::ComputeService::Service>>;

class BareComputeService final : public BareComputeBase {
 public:
  grpc::ServerUnaryReactor* MatMul(grpc::CallbackServerContext* context,
                                   const v1::MatMulRequest* request,
                                   v1::TensorReply* reply) override {
    FillTensor(request->id(), reply->mutable_tensor());
    reply->set_measured_seconds(1e-6);
    reply->set_simulated_seconds(1e-6);
    return FinishOk(context);
  }
  grpc::ServerBidiReactor<v1::ExecuteRequest, v1::ExecuteReply>* Execute(
      grpc::CallbackServerContext* /*context*/) override {
    return new BareExecute();
  }
};

// devserverd's (server/server.cc).
void TuneChannels(grpc::ServerBuilder* builder) {
  constexpr int kMiB = 1 << 20;
  builder->AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 8 * kMiB);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 4 * kMiB);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, 4 * kMiB);
  builder->AddChannelArgument(GRPC_ARG_TCP_READ_CHUNK_SIZE, kMiB);
  builder->AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 4 * kMiB);
  builder->SetMaxReceiveMessageSize(64 * kMiB);
}

}  // namespace

int RunBareServer(const std::string& port_file) {
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  BareTensorService tensors;
  BareComputeService compute;
  grpc::ServerBuilder builder;
  TuneChannels(&builder);
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&tensors);
  builder.RegisterService(&compute);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) {
    return 1;
  }
  const std::string draft = port_file + ".new";
  std::ofstream(draft) << port << '\n';
  if (std::rename(draft.c_str(), port_file.c_str()) != 0) {
    return 1;
  }
  int number = 0;
  sigwait(&stop, &number);
  server->Shutdown(std::chrono::system_clock::now());
  return 0;
}

}  // namespace devserver::bench
