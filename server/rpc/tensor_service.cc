#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "devserver/v1/tensor.grpc.pb.h"
#include "server/base/status_macros.h"
#include "server/rpc/bulk_streams.h"
#include "server/rpc/commands.h"
#include "server/rpc/services.h"
#include "server/rpc/unary.h"
#include "server/rpc/wire.h"

namespace devserver {
namespace {

constexpr uint32_t kPageSizeDefault = 100;
constexpr uint32_t kPageSizeMax = 1000;  // about 200 KB

// Where a page starts: behind tensor `tensor` of the session with serial number `session`.
struct PageStart {
  uint64_t session = 0;
  uint64_t tensor = 0;
};

absl::StatusOr<PageStart> ParsePageToken(const std::string& token) {
  PageStart start;
  if (token.empty()) {
    return start;
  }
  const std::vector<std::string> parts = absl::StrSplit(token, ':');
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &start.session) ||
      !absl::SimpleAtoi(parts[1], &start.tensor)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "page_token '%s' is not one of ours; give the last reply's next_page_token", Shown(token)));
  }
  return start;
}

// Bulk streams as raw bytes, everything else as messages.
using RawBulkService = v1::TensorService::WithRawCallbackMethod_Upload<
    v1::TensorService::WithRawCallbackMethod_Download<
        v1::TensorService::WithCallbackMethod_CreateTensor<
            v1::TensorService::WithCallbackMethod_GetTensor<
                v1::TensorService::WithCallbackMethod_ListTensors<
                    v1::TensorService::WithCallbackMethod_CopyTensor<
                        v1::TensorService::WithCallbackMethod_EnsureOn<
                            v1::TensorService::WithCallbackMethod_FetchTensor<
                                v1::TensorService::WithCallbackMethod_DeleteTensors<
                                    v1::TensorService::Service>>>>>>>>>;

class TensorService final : public RawBulkService {
 public:
  TensorService(const BackendSlot* slot, StallWatch* stalls) : slot_(*slot), stalls_(stalls) {}

  grpc::ServerUnaryReactor* CreateTensor(grpc::CallbackServerContext* context,
                                         const v1::Create* request,
                                         v1::TensorReply* reply) override {
    return FinishWhenDone(
        slot_, context,
        [request](Session& session, Session::Request command) {
          return RunCreate(session, *request, std::move(command)).status();
        },
        [reply](Tensor& tensor) { return FillTensorReply(tensor, reply); });
  }

  grpc::ServerUnaryReactor* GetTensor(grpc::CallbackServerContext* context,
                                      const v1::GetTensorRequest* request,
                                      v1::Tensor* reply) override {
    return FinishWith(context, [&]() -> absl::Status {
      ASSIGN_OR_RETURN(const SessionRef session, slot_.FindSession(*context));
      ASSIGN_OR_RETURN(const TensorRef tensor, session->Find(request->id()));
      TensorToWire(*tensor, reply);
      return absl::OkStatus();
    }());
  }

  grpc::ServerUnaryReactor* ListTensors(grpc::CallbackServerContext* context,
                                        const v1::ListTensorsRequest* request,
                                        v1::ListTensorsReply* reply) override {
    return FinishWith(context, List(*context, *request, reply));
  }

  grpc::ServerUnaryReactor* CopyTensor(grpc::CallbackServerContext* context,
                                       const v1::Copy* request, v1::TensorReply* reply) override {
    return FinishWhenDone(
        slot_, context,
        [request](Session& session, Session::Request command) {
          return RunCopy(session, *request, std::move(command)).status();
        },
        [reply](Tensor& tensor) { return FillTensorReply(tensor, reply); });
  }

  grpc::ServerUnaryReactor* EnsureOn(grpc::CallbackServerContext* context, const v1::Copy* request,
                                     v1::EnsureOnReply* reply) override {
    return FinishWhenDone(
        slot_, context,
        [request](Session& session, Session::Request command) {
          command.id = request->id();
          return session
              .EnsureOn(request->source(), request->device(), request->max_seconds(),
                        std::move(command))
              .status();
        },
        [request, reply](Tensor& tensor) {
          TensorToWire(tensor, reply->mutable_tensor());
          reply->set_copied(tensor.id() != request->source());
          if (reply->copied()) {
            ReceiptToWire(tensor.quote(), tensor.measured_seconds(), tensor.simulated_seconds(),
                          reply->mutable_receipt());
          }
          return absl::OkStatus();
        },
        request->source());
  }

  grpc::ServerUnaryReactor* FetchTensor(grpc::CallbackServerContext* context,
                                        const v1::Fetch* request,
                                        v1::FetchedTensor* reply) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    const absl::Status refused = [&]() -> absl::Status {
      ASSIGN_OR_RETURN(const SessionRef session, slot_.FindSession(*context));
      ASSIGN_OR_RETURN(const TensorRef tensor, FindForFetch(*session, *request));
      tensor->WhenDone([reactor, reply, raw = request->raw(),
                        devices = session->surroundings().devices](Tensor& done) {
        reactor->Finish(ToGrpc(done.status().ok() ? FillFetched(*devices, done, raw, reply)
                                                  : done.InputFailed("FetchTensor")));
      });
      return absl::OkStatus();
    }();
    if (!refused.ok()) {
      reactor->Finish(ToGrpc(refused));
    }
    return reactor;
  }

  grpc::ServerUnaryReactor* DeleteTensors(grpc::CallbackServerContext* context,
                                          const v1::Delete* request,
                                          v1::DeleteReply* reply) override {
    return FinishWith(context, [&]() -> absl::Status {
      ASSIGN_OR_RETURN(const SessionRef session, slot_.FindSession(*context));
      ASSIGN_OR_RETURN(
          const uint64_t freed_bytes,
          session->Delete({request->ids().data(), static_cast<size_t>(request->ids_size())}));
      reply->set_freed_bytes(freed_bytes);
      return absl::OkStatus();
    }());
  }

  grpc::ServerReadReactor<grpc::ByteBuffer>* Upload(grpc::CallbackServerContext* context,
                                                    grpc::ByteBuffer* reply) override {
    return NewUploadStream(slot_, stalls_, context, reply);
  }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Download(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override {
    return NewDownloadStream(slot_, stalls_, context, *request);
  }

 private:
  absl::Status List(const grpc::CallbackServerContext& context,
                    const v1::ListTensorsRequest& request, v1::ListTensorsReply* reply) {
    ASSIGN_OR_RETURN(const SessionRef own, slot_.FindSession(context));
    ASSIGN_OR_RETURN(Backend* const backend, slot_.Get());
    const DeviceQueue* only = nullptr;
    if (!request.device().empty()) {
      ASSIGN_OR_RETURN(const size_t index, backend->devices->Find(request.device()));
      only = &backend->devices->queue(index);
    }
    ASSIGN_OR_RETURN(PageStart start, ParsePageToken(request.page_token()));
    const uint32_t page_size =
        request.page_size() == 0 ? kPageSizeDefault : std::min(request.page_size(), kPageSizeMax);
    const std::vector<SessionRef> sessions =
        request.all_sessions() ? backend->sessions.List() : std::vector<SessionRef>{own};
    for (const SessionRef& session : sessions) {
      const uint64_t serial = session->options().serial;
      if (serial < start.session) {
        continue;
      }
      uint64_t after = serial == start.session ? start.tensor : 0;
      // Page by page, since the filter may leave out any number.
      for (std::vector<TensorRef> page; !(page = session->List(after, kPageSizeMax)).empty();) {
        for (const TensorRef& tensor : page) {
          if (only != nullptr && tensor->queue() != only) {
            continue;
          }
          if (static_cast<uint32_t>(reply->tensors_size()) == page_size) {
            reply->set_next_page_token(absl::StrFormat("%d:%d", serial, after));
            return absl::OkStatus();
          }
          AddListing(*session, *tensor, reply->add_tensors());
          after = tensor->id();
        }
        after = page.back()->id();
      }
    }
    return absl::OkStatus();
  }

  static void AddListing(const Session& session, const Tensor& tensor, v1::TensorListing* listing) {
    const TimePoint now = session.surroundings().clock->Now();
    TensorToWire(tensor, listing->mutable_tensor());
    listing->set_age_seconds(SecondsBetween(tensor.created(), now));
    listing->set_idle_seconds(SecondsBetween(tensor.last_used(), now));
    listing->set_session(session.options().name);
  }

  const BackendSlot& slot_;
  StallWatch* const stalls_;
};

}  // namespace

std::unique_ptr<grpc::Service> NewTensorService(const BackendSlot* slot, StallWatch* stalls) {
  return std::make_unique<TensorService>(slot, stalls);
}

}  // namespace devserver
