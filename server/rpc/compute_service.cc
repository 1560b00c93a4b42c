#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "devserver/v1/compute.grpc.pb.h"
#include "server/base/error_details.h"
#include "server/base/status_macros.h"
#include "server/rpc/commands.h"
#include "server/rpc/execute_stream.h"
#include "server/rpc/services.h"
#include "server/rpc/unary.h"
#include "server/rpc/wire.h"

namespace devserver {
namespace {

void FailReply(const absl::Status& status, v1::CommandReply* reply) {
  OpErrorToWire(status, reply->mutable_error());
}

// A batch in one RPC. Replies are filled on whatever thread a command finishes, each its own; the
// last one ends the call. Deletes itself.
class RunCall {
 public:
  RunCall(grpc::ServerUnaryReactor* reactor, SessionRef session, const v1::RunRequest* request,
          v1::RunReply* reply)
      : reactor_(reactor),
        session_(std::move(session)),
        request_(*request),
        reply_(reply),
        simulated_before_(SimulatedSeconds()),
        start_(Clock::Real()->Now()) {}

  void Start() {
    reply_->mutable_replies()->Reserve(request_.commands_size());
    for (int i = 0; i < request_.commands_size(); ++i) {
      reply_->add_replies();
    }
    for (int i = 0; i < request_.commands_size(); ++i) {
      StartCommand(request_.commands(i), reply_->mutable_replies(i));
    }
    Finished();
  }

 private:
  void StartCommand(const v1::Command& command, v1::CommandReply* reply) {
    reply->set_number(command.number());
    unfinished_.fetch_add(1, std::memory_order_relaxed);
    Session::Request request;
    request.leave_failed = true;
    request.measure_time = true;
    request.done = [this, reply](Tensor& tensor) {
      if (tensor.status().ok()) {
        TensorToWire(tensor, reply->mutable_tensor());
        if (tensor.is_copy()) {
          ReceiptToWire(tensor.quote(), tensor.measured_seconds(), tensor.simulated_seconds(),
                        reply->mutable_receipt());
        }
      } else {
        FailReply(tensor.status(), reply);
      }
      Finished();
    };
    absl::Status refused;
    bool runs_on = false;  // a callback will call Finished
    switch (command.kind_case()) {
      case v1::Command::kCreate:
        refused = RunCreate(*session_, command.create(), std::move(request)).status();
        runs_on = refused.ok();
        break;
      case v1::Command::kOp:
        refused = RunOp(*session_, command.op(), std::move(request)).status();
        runs_on = refused.ok();
        break;
      case v1::Command::kCopy:
        refused = RunCopy(*session_, command.copy(), std::move(request)).status();
        runs_on = refused.ok();
        break;
      case v1::Command::kFetch:
        refused = StartFetch(command.fetch(), reply);
        runs_on = refused.ok();
        break;
      case v1::Command::kDelete:
        refused = session_
                      ->Delete({command.delete_().ids().data(),
                                static_cast<size_t>(command.delete_().ids_size())})
                      .status();
        break;
      case v1::Command::kSync:  // The whole call waits for everything in it.
        break;
      case v1::Command::KIND_NOT_SET:
        refused = absl::InvalidArgumentError(
            "Run: a command without a kind; give create, op, copy, delete, fetch or sync");
        break;
    }
    if (!refused.ok()) {
      FailReply(refused, reply);
    }
    if (!runs_on) {
      Finished();
    }
  }

  absl::Status StartFetch(const v1::Fetch& fetch, v1::CommandReply* reply) {
    ASSIGN_OR_RETURN(const TensorRef tensor, FindForFetch(*session_, fetch));
    tensor->WhenDone([this, reply, raw = fetch.raw()](Tensor& done) {
      const absl::Status status =
          done.status().ok()
              ? FillFetched(*session_->surroundings().devices, done, raw, reply->mutable_fetched())
              : done.InputFailed("fetch");
      if (!status.ok()) {
        FailReply(status, reply);
      }
      Finished();
    });
    return absl::OkStatus();
  }

  void Finished() {
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) != 1) {
      return;
    }
    reply_->set_measured_seconds(SecondsBetween(start_, Clock::Real()->Now()));
    const std::vector<double> simulated = SimulatedSeconds();
    double most = 0;
    for (size_t i = 0; i < simulated.size(); ++i) {
      most = std::max(most, simulated[i] - simulated_before_[i]);
    }
    reply_->set_simulated_seconds(most);
    grpc::Status status = grpc::Status::OK;
    const size_t reply_bytes = reply_->ByteSizeLong();
    if (reply_bytes > session_->surroundings().limits->message_bytes) {
      ErrorDetails details;
      details.reason = ErrorReason::kLimit;
      details.asked = reply_bytes;
      details.limit = session_->surroundings().limits->message_bytes;
      status = ToGrpc(WithDetails(absl::ResourceExhaustedError(absl::StrFormat(
                                      "Run: the commands were run, but their replies take %d "
                                      "bytes, limit %d (limits.message_bytes); fetch "
                                      "less in one call, or use the Execute or Download stream",
                                      details.asked, details.limit)),
                                  details));
    }
    reactor_->Finish(status);
    delete this;
  }

  std::vector<double> SimulatedSeconds() const {
    const DeviceSet& devices = *session_->surroundings().devices;
    std::vector<double> seconds;
    seconds.reserve(devices.size());
    for (size_t i = 0; i < devices.size(); ++i) {
      seconds.push_back(devices.queue(i).device().simulated_seconds());
    }
    return seconds;
  }

  grpc::ServerUnaryReactor* const reactor_;
  const SessionRef session_;
  const v1::RunRequest& request_;
  v1::RunReply* const reply_;
  const std::vector<double> simulated_before_;
  const TimePoint start_;
  std::atomic<uint32_t> unfinished_ = 1;  // The extra one is Start's own; 0 publishes all replies.
};

// The stream as raw bytes, everything else as messages.
using RawExecuteService =
    v1::ComputeService::WithRawCallbackMethod_Execute<v1::ComputeService::WithCallbackMethod_MatMul<
        v1::ComputeService::WithCallbackMethod_Dense<v1::ComputeService::WithCallbackMethod_Apply<
            v1::ComputeService::WithCallbackMethod_Run<v1::ComputeService::Service>>>>>;

class ComputeService final : public RawExecuteService {
 public:
  explicit ComputeService(const BackendSlot* slot) : slot_(*slot) {}

  grpc::ServerUnaryReactor* MatMul(grpc::CallbackServerContext* context,
                                   const v1::MatMulRequest* request,
                                   v1::TensorReply* reply) override {
    return Finish(context, reply, [request](Session& session, Session::Request command) {
      command.id = request->id();
      std::unique_ptr<OpAttributes> attributes;
      if (request->transpose_a() || request->transpose_b()) {
        attributes = std::make_unique<OpAttributes>();
        attributes->transpose_a = request->transpose_a();
        attributes->transpose_b = request->transpose_b();
      }
      const uint64_t inputs[] = {request->a(), request->b()};
      return session.Apply(OpCode::kMatMul, inputs, std::move(attributes), std::move(command))
          .status();
    });
  }

  grpc::ServerUnaryReactor* Dense(grpc::CallbackServerContext* context,
                                  const v1::DenseRequest* request,
                                  v1::TensorReply* reply) override {
    return Finish(context, reply, [request](Session& session, Session::Request command) {
      command.id = request->id();
      auto attributes = std::make_unique<OpAttributes>();
      ASSIGN_OR_RETURN(attributes->activation, ActivationFromWire(request->activation()));
      const uint64_t inputs[] = {request->x(), request->w(), request->bias()};
      const size_t count = request->bias() == 0 ? 2 : 3;
      return session
          .Apply(OpCode::kDense, {inputs, count}, std::move(attributes), std::move(command))
          .status();
    });
  }

  grpc::ServerUnaryReactor* Apply(grpc::CallbackServerContext* context, const v1::Op* request,
                                  v1::TensorReply* reply) override {
    return Finish(context, reply, [request](Session& session, Session::Request command) {
      return RunOp(session, *request, std::move(command)).status();
    });
  }

  grpc::ServerUnaryReactor* Run(grpc::CallbackServerContext* context, const v1::RunRequest* request,
                                v1::RunReply* reply) override {
    absl::StatusOr<SessionRef> session = slot_.FindSession(*context);
    if (!session.ok()) {
      return FinishWith(context, session.status());
    }
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    (new RunCall(reactor, *std::move(session), request, reply))->Start();
    return reactor;
  }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Execute(
      grpc::CallbackServerContext* context) override {
    return NewExecuteStream(slot_, context);
  }

 private:
  template <typename Launch>
  grpc::ServerUnaryReactor* Finish(grpc::CallbackServerContext* context, v1::TensorReply* reply,
                                   Launch launch) {
    return FinishWhenDone(slot_, context, std::move(launch),
                          [reply](Tensor& tensor) { return FillTensorReply(tensor, reply); });
  }

  const BackendSlot& slot_;
};

}  // namespace

std::unique_ptr<grpc::Service> NewComputeService(const BackendSlot* slot) {
  return std::make_unique<ComputeService>(slot);
}

}  // namespace devserver
