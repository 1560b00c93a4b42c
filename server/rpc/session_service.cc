#include <utility>

#include "absl/strings/str_format.h"
#include "devserver/v1/session.grpc.pb.h"
#include "server/base/status_macros.h"
#include "server/rpc/services.h"
#include "server/rpc/unary.h"
#include "server/rpc/wire.h"
#include "server/session/execution.h"

namespace devserver {
namespace {

constexpr uint32_t kProtocol = 1;  // raised when an old client would misunderstand a new server

class SessionService final : public v1::SessionService::CallbackService {
 public:
  explicit SessionService(const BackendSlot* slot) : slot_(*slot) {}

  grpc::ServerUnaryReactor* OpenSession(grpc::CallbackServerContext* context,
                                        const v1::OpenSessionRequest* request,
                                        v1::OpenSessionReply* reply) override {
    return FinishWith(context, Open(*context, *request, reply));
  }

  grpc::ServerUnaryReactor* AttachSession(grpc::CallbackServerContext* context,
                                          const v1::AttachSessionRequest* request,
                                          v1::AttachSessionReply* reply) override {
    return FinishWith(context, Attach(*request, reply));
  }

  grpc::ServerUnaryReactor* KeepAlive(grpc::CallbackServerContext* context,
                                      const v1::KeepAliveRequest* /*request*/,
                                      v1::KeepAliveReply* reply) override {
    return WithSession(context, [&](const SessionRef& session) {
      reply->set_lease_remaining_seconds(session->lease_remaining().count());
    });
  }

  grpc::ServerUnaryReactor* GetSession(grpc::CallbackServerContext* context,
                                       const v1::GetSessionRequest* /*request*/,
                                       v1::Session* reply) override {
    return WithSession(context, [&](const SessionRef& session) { SessionToWire(*session, reply); });
  }

  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* context,
                                         const v1::ListSessionsRequest* /*request*/,
                                         v1::ListSessionsReply* reply) override {
    const absl::StatusOr<Backend*> backend = slot_.Get();
    if (backend.ok()) {
      for (const SessionRef& session : (*backend)->sessions.List()) {
        SessionToWire(*session, reply->add_sessions());
      }
    }
    return FinishWith(context, backend.status());
  }

  grpc::ServerUnaryReactor* CloseSession(grpc::CallbackServerContext* context,
                                         const v1::CloseSessionRequest* /*request*/,
                                         v1::CloseSessionReply* reply) override {
    return WithSession(context, [&](const SessionRef& session) {
      const absl::StatusOr<Backend*> backend = slot_.Get();
      reply->set_freed_bytes(backend.ok() ? (*backend)->sessions.Close(session) : 0);
    });
  }

 private:
  template <typename Call>
  grpc::ServerUnaryReactor* WithSession(grpc::CallbackServerContext* context, Call call) {
    const absl::StatusOr<SessionRef> session = slot_.FindSession(*context);
    if (session.ok()) {
      call(*session);
    }
    return FinishWith(context, session.status());
  }

  absl::Status Open(const grpc::CallbackServerContext& context,
                    const v1::OpenSessionRequest& request, v1::OpenSessionReply* reply) {
    ASSIGN_OR_RETURN(Backend* const backend, slot_.Get());
    const bool any = request.protocol_min() == 0 && request.protocol_max() == 0;
    if (!any && (request.protocol_min() > kProtocol || request.protocol_max() < kProtocol)) {
      return absl::FailedPreconditionError(
          absl::StrFormat("the client speaks protocols %d to %d, this server %d to %d; use a "
                          "client or server of a fitting version",
                          request.protocol_min(), request.protocol_max(), kProtocol, kProtocol));
    }
    RETURN_IF_ERROR(CheckLabel(request.name(), slot_.limits()));
    ASSIGN_OR_RETURN(
        const SessionRef session,
        backend->sessions.Open(request.name(), PeerAddress(context), request.lease_seconds()));
    reply->set_token(session->options().token);
    SessionToWire(*session, reply->mutable_session());
    reply->set_protocol(kProtocol);
    reply->set_server_id(backend->sessions.server_id());
    LimitsToWire(slot_.limits(), reply->mutable_limits());
    reply->add_capabilities("execute");
    reply->add_capabilities("resume");
    return absl::OkStatus();
  }

  absl::Status Attach(const v1::AttachSessionRequest& request, v1::AttachSessionReply* reply) {
    ASSIGN_OR_RETURN(Backend* const backend, slot_.Get());
    ASSIGN_OR_RETURN(const SessionRef session, backend->sessions.Find(request.token()));
    SessionToWire(*session, reply->mutable_session());
    reply->set_received_through(session->execution().received_through());
    reply->set_server_id(backend->sessions.server_id());
    return absl::OkStatus();
  }

  const BackendSlot& slot_;
};

}  // namespace

std::unique_ptr<grpc::Service> NewSessionService(const BackendSlot* slot) {
  return std::make_unique<SessionService>(slot);
}

}  // namespace devserver
