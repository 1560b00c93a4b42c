// Small calls against bare gRPC (bare_server.h) with the same messages: unary calls, a command on
// the Execute stream that asks for a reply, and commands in batches of 64.
//
// Both sides of the first two run the very same client code on the generated stubs; devserverd's
// calls name a session besides.
//
// Batches are encoded before the clock starts and sent as raw messages with a buffer hint, so that
// the client is not what is measured; the server decodes, checks and queues each command. The
// control of a batch decodes the same messages and drops them.

// ctest: args=--benchmark_filter=^(unary|stream|batch)/
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "devserver/client.h"
#include "server/base/status_macros.h"
#include "tests/bench/bench_support.h"
#include "tests/bench/servers.h"

namespace devserver::bench {
namespace {

constexpr uint64_t kSourceId = 1;  // of the tensor that calls work on
constexpr uint64_t kFirstResultId = uint64_t{1} << 32;
constexpr int kBatch = 64;

// The tensor kSourceId: `elements` ones on gpu:0, or a square of them.
absl::Status CreateOnes(const Caller& caller, std::vector<int64_t> shape) {
  grpc::ClientContext context;
  caller.Prepare(&context);
  v1::Create create;
  create.mutable_shape()->Add(shape.begin(), shape.end());
  create.set_dtype(v1::F32);
  create.set_device("gpu:0");
  create.set_fill(1);
  create.set_id(kSourceId);
  v1::TensorReply reply;
  return FromGrpc(caller.transport().tensors->CreateTensor(&context, create, &reply));
}

struct Callers {
  std::unique_ptr<Caller> subject;
  std::unique_ptr<Caller> control;
};

absl::StatusOr<std::shared_ptr<Callers>> OpenCallers(std::vector<int64_t> shape) {
  auto callers = std::make_shared<Callers>();
  ASSIGN_OR_RETURN(callers->subject, Caller::OpenSubject());
  ASSIGN_OR_RETURN(callers->control, Caller::OpenControl());
  RETURN_IF_ERROR(CreateOnes(*callers->subject, std::move(shape)));
  return callers;
}

// ---- Unary calls.

absl::Status CallGetTensor(const Caller& caller, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    grpc::ClientContext context;
    caller.Prepare(&context);
    v1::GetTensorRequest request;
    request.set_id(kSourceId);
    v1::Tensor reply;
    RETURN_IF_ERROR(FromGrpc(caller.transport().tensors->GetTensor(&context, request, &reply)));
    if (reply.size_bytes() != 64 || reply.state() != v1::Tensor::READY) {
      return absl::InternalError(reply.ShortDebugString());
    }
  }
  return absl::OkStatus();
}

// Each with a result of its own, which stays until the session ends.
absl::Status CallMatMul(const Caller& caller, int64_t count, uint64_t* next_id) {
  for (int64_t i = 0; i < count; ++i) {
    grpc::ClientContext context;
    caller.Prepare(&context);
    v1::MatMulRequest request;
    request.set_a(kSourceId);
    request.set_b(kSourceId);
    request.set_id((*next_id)++);
    v1::TensorReply reply;
    RETURN_IF_ERROR(FromGrpc(caller.transport().compute->MatMul(&context, request, &reply)));
    if (reply.tensor().size_bytes() != 64) {
      return absl::InternalError(reply.ShortDebugString());
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Sides> MakeGetTensor() {
  ASSIGN_OR_RETURN(const std::shared_ptr<Callers> callers, OpenCallers({4, 4}));
  Sides sides;
  sides.subject.run = [callers](int64_t n) { return CallGetTensor(*callers->subject, n); };
  sides.control.run = [callers](int64_t n) { return CallGetTensor(*callers->control, n); };
  return sides;
}

absl::StatusOr<Sides> MakeMatMul() {
  ASSIGN_OR_RETURN(const std::shared_ptr<Callers> callers, OpenCallers({4, 4}));
  const auto next_id = std::make_shared<uint64_t>(kFirstResultId);
  Sides sides;
  sides.subject.run = [callers, next_id](int64_t n) {
    return CallMatMul(*callers->subject, n, next_id.get());
  };
  sides.control.run = [callers](int64_t n) {
    uint64_t control_id = kFirstResultId;
    return CallMatMul(*callers->control, n, &control_id);
  };
  sides.check = [callers, next_id]() -> absl::Status {
    grpc::ClientContext context;
    callers->subject->Prepare(&context);
    v1::Fetch request;
    request.set_id(kFirstResultId);
    v1::FetchedTensor reply;
    RETURN_IF_ERROR(
        FromGrpc(callers->subject->transport().tensors->FetchTensor(&context, request, &reply)));
    const auto& numbers = reply.values().numbers();
    const bool right = numbers.size() == 16 && std::ranges::count(numbers, 4.0) == 16;
    return right ? absl::OkStatus() : absl::InternalError(reply.ShortDebugString());
  };
  return sides;
}

// ---- A command that asks for a reply, on a stream that stays open.

class PingPong {
 public:
  explicit PingPong(const Caller& caller) {
    caller.Prepare(&context_);
    stream_ = caller.transport().compute->Execute(&context_);
  }
  ~PingPong() {
    stream_->WritesDone();
    v1::ExecuteReply reply;
    while (stream_->Read(&reply)) {
    }
    stream_->Finish();
  }
  PingPong(const PingPong&) = delete;
  PingPong& operator=(const PingPong&) = delete;

  absl::Status Run(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      v1::ExecuteRequest request;
      request.set_received_through(number_);
      v1::Command* const command = request.add_commands();
      command->set_number(++number_);
      command->mutable_fetch()->set_id(kSourceId);
      command->mutable_fetch()->set_raw(true);
      v1::ExecuteReply reply;
      if (!stream_->Write(request) || !stream_->Read(&reply)) {
        return absl::UnavailableError("the stream has ended");
      }
      if (reply.done_through() != number_ || reply.replies_size() != 1 ||
          reply.replies(0).fetched().values().raw().size() != 64) {
        return absl::InternalError(reply.ShortDebugString());
      }
    }
    return absl::OkStatus();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ExecuteRequest, v1::ExecuteReply>> stream_;
  uint64_t number_ = 0;
};

absl::StatusOr<Sides> MakeFetch() {
  ASSIGN_OR_RETURN(const std::shared_ptr<Callers> callers, OpenCallers({4, 4}));
  const auto subject = std::make_shared<PingPong>(*callers->subject);
  const auto control = std::make_shared<PingPong>(*callers->control);
  Sides sides;
  sides.subject.run = [callers, subject](int64_t n) { return subject->Run(n); };
  sides.control.run = [callers, control](int64_t n) { return control->Run(n); };
  return sides;
}

// The same through the client library: what its user waits for.
absl::StatusOr<Sides> MakeClientFetch() {
  ASSIGN_OR_RETURN(const std::string address, SubjectAddress());
  ASSIGN_OR_RETURN(const client::Client connected, client::Client::connect(address));
  ASSIGN_OR_RETURN(const client::Device device, connected.device("gpu:0"));
  const client::Tensor ones = client::ones({4, 4}, device);
  RETURN_IF_ERROR(ones.sync());
  ASSIGN_OR_RETURN(const std::shared_ptr<Callers> callers, OpenCallers({4, 4}));
  const auto control = std::make_shared<PingPong>(*callers->control);
  Sides sides;
  sides.subject.run = [connected, ones](int64_t count) -> absl::Status {
    for (int64_t i = 0; i < count; ++i) {
      ASSIGN_OR_RETURN(const std::vector<float> values, ones.fetch<float>());
      if (values != std::vector<float>(16, 1.0f)) {
        return absl::InternalError("fetched other values");
      }
    }
    return absl::OkStatus();
  };
  sides.control.run = [callers, control](int64_t n) { return control->Run(n); };
  return sides;
}

// ---- Batches of commands.

enum class Content {
  kNoOps,  // deletes of nothing: nothing to look up, nothing for a device, no reply
  kSyncs,  // the same, and every message gets a reply
  kAdds,   // 63 adds and a delete of their results
};

class Batches {
 public:
  Batches(std::shared_ptr<Callers> callers, bool subject, Content content)
      : callers_(std::move(callers)),
        caller_(subject ? *callers_->subject : *callers_->control),
        content_(content) {}

  void Prepare(int64_t commands) {
    messages_.clear();
    for (int64_t i = 0; i < commands / kBatch; ++i) {
      request_.Clear();
      FillBatch();
      const grpc::Slice slice(request_.SerializeAsString());
      messages_.emplace_back(&slice, 1);
    }
  }

  // On a stream of its own: until the server has finished everything and ended the call.
  absl::Status Run() {
    grpc::ClientContext context;
    caller_.Prepare(&context);
    grpc::GenericStub stub(caller_.transport().channel);
    grpc::CompletionQueue queue;
    const auto call = stub.PrepareCall(&context, kMethod, &queue);
    call->StartCall(Tag(Event::kStarted));
    grpc::ByteBuffer received;
    grpc::Status status;
    absl::Status wrong;
    size_t written = 0;
    void* tag = nullptr;
    bool ok = false;
    while (queue.Next(&tag, &ok)) {
      const Event event = static_cast<Event>(reinterpret_cast<intptr_t>(tag));
      if (event == Event::kFinished) {
        queue.Shutdown();
      } else if (event == Event::kRead) {
        if (!ok) {
          call->Finish(&status, Tag(Event::kFinished));
          continue;
        }
        wrong.Update(CheckReply(&received));
        call->Read(&received, Tag(Event::kRead));
      } else if (ok) {
        if (event == Event::kStarted) {
          call->Read(&received, Tag(Event::kRead));
        }
        if (written < messages_.size()) {
          grpc::WriteOptions options;
          if (written + 1 < messages_.size()) {
            options.set_buffer_hint();
          }
          call->Write(messages_[written++], options, Tag(Event::kWritten));
        } else if (event != Event::kHalfClosed) {
          call->WritesDone(Tag(Event::kHalfClosed));
        }
      }
    }
    RETURN_IF_ERROR(FromGrpc(status));
    return wrong;
  }

  // 63 adds leave the source as it was; one more must give twos.
  absl::Status CheckAdd() const {
    grpc::ClientContext context;
    caller_.Prepare(&context);
    v1::RunRequest request;
    *request.add_commands()->mutable_op() = AddOp(kFirstResultId - 1);
    request.add_commands()->mutable_fetch()->set_id(kFirstResultId - 1);
    v1::RunReply reply;
    RETURN_IF_ERROR(FromGrpc(caller_.transport().compute->Run(&context, request, &reply)));
    for (const double number : reply.replies(1).fetched().values().numbers()) {
      if (number != 2) {
        return absl::InternalError(reply.ShortDebugString());
      }
    }
    return reply.replies(1).has_fetched() ? absl::OkStatus()
                                          : absl::InternalError(reply.ShortDebugString());
  }

 private:
  static constexpr char kMethod[] = "/devserver.v1.ComputeService/Execute";
  enum class Event : intptr_t { kStarted, kWritten, kHalfClosed, kRead, kFinished };
  static void* Tag(Event event) { return reinterpret_cast<void*>(static_cast<intptr_t>(event)); }

  static v1::Op AddOp(uint64_t id) {
    v1::Op op;
    op.set_name("add");
    op.add_inputs(kSourceId);
    op.add_inputs(kSourceId);
    op.set_id(id);
    return op;
  }

  void FillBatch() {
    const uint64_t first_id = next_id_;
    for (int i = 0; i < kBatch; ++i) {
      v1::Command* const command = request_.add_commands();
      command->set_number(++number_);
      if (content_ == Content::kNoOps) {
        command->mutable_delete_();
      } else if (content_ == Content::kSyncs) {
        command->mutable_sync();
      } else if (i + 1 < kBatch) {
        *command->mutable_op() = AddOp(next_id_++);
      } else {
        for (uint64_t id = first_id; id < next_id_; ++id) {
          command->mutable_delete_()->add_ids(id);
        }
      }
    }
  }

  static absl::Status CheckReply(grpc::ByteBuffer* received) {
    v1::ExecuteReply reply;
    RETURN_IF_ERROR(
        FromGrpc(grpc::SerializationTraits<v1::ExecuteReply>::Deserialize(received, &reply)));
    return reply.replies().empty() ? absl::OkStatus()
                                   : absl::InternalError(reply.ShortDebugString());
  }

  const std::shared_ptr<Callers> callers_;
  const Caller& caller_;
  const Content content_;
  uint64_t number_ = 0;
  uint64_t next_id_ = kFirstResultId;
  v1::ExecuteRequest request_;
  std::vector<grpc::ByteBuffer> messages_;
};

absl::StatusOr<Sides> MakeBatches(Content content, std::vector<int64_t> shape) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Callers> callers, OpenCallers(std::move(shape)));
  const auto side = [&](const std::shared_ptr<Batches>& batches) {
    return Side{[batches](int64_t count) { batches->Prepare(count); },
                [batches](int64_t) { return batches->Run(); }};
  };
  const auto subject = std::make_shared<Batches>(callers, true, content);
  Sides sides;
  sides.subject = side(subject);
  sides.control = side(std::make_shared<Batches>(callers, false, content));
  if (content == Content::kAdds) {
    sides.check = [subject] { return subject->CheckAdd(); };
  }
  return sides;
}

// ---- The list.

void RegisterCall(const char* name, double goal, MakeSides make) {
  Comparison comparison;
  comparison.name = name;
  comparison.ratio_goal = goal;
  Register(comparison, std::move(make));
}

// One operation is one command; of adds 63 in 64 count.
void RegisterBatches(const char* name, double counted, double rate_goal, MakeSides make) {
  Comparison comparison;
  comparison.name = name;
  comparison.unit = Unit::kOperations;
  comparison.per_operation = counted;
  comparison.compare = Compare::kSpeed;
  comparison.rate_goal = rate_goal;
  comparison.count_step = kBatch;
  Register(comparison, std::move(make));
}

bool RegisterAll() {
  constexpr double kAddsCounted = (kBatch - 1.0) / kBatch;
  RegisterCall("unary/get_tensor", 1.15, MakeGetTensor);
  RegisterCall("unary/matmul_4x4", 0, MakeMatMul);
  RegisterCall("stream/fetch_64_bytes", 1.2, MakeFetch);
  RegisterCall("stream/client_fetch_64_bytes", 0, MakeClientFetch);
  RegisterBatches("batch/no_op", 1, 3e6, [] { return MakeBatches(Content::kNoOps, {16}); });
  RegisterBatches("batch/sync", 1, 0, [] { return MakeBatches(Content::kSyncs, {16}); });
  RegisterBatches("batch/add_0_floats", kAddsCounted, 0,
                  [] { return MakeBatches(Content::kAdds, {0}); });
  RegisterBatches("batch/add_16_floats", kAddsCounted, 1e6,
                  [] { return MakeBatches(Content::kAdds, {16}); });
  return true;
}

const bool kRegistered = RegisterAll();

}  // namespace
}  // namespace devserver::bench
