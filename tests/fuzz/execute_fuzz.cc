// Any bytes as a message of Execute, its commands run on a real session of two small devices. Every
// command that was accepted ends exactly once, every refusal can be sent, no device exceeds its
// memory, and afterwards no byte is left.
#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "tests/fuzz/small_server.h"

namespace devserver {
namespace {

constexpr int kCommandsMax = 64;  // A longer message finds nothing that a short one does not.

class Batch {
 public:
  Batch(SmallServer& server, Session& session) : server_(server), session_(session) {}

  void Handle(const v1::Command& command) {
    switch (command.kind_case()) {
      case v1::Command::kCreate:
        Note(RunCreate(session_, command.create(), MakeRequest(command.number())).status());
        break;
      case v1::Command::kOp:
        Note(RunOp(session_, command.op(), MakeRequest(command.number())).status());
        break;
      case v1::Command::kCopy:
        Note(RunCopy(session_, command.copy(), MakeRequest(command.number())).status());
        break;
      case v1::Command::kFetch:
        HandleFetch(command.fetch());
        break;
      case v1::Command::kDelete:
        RequireSendable(session_
                            .Delete({command.delete_().ids().data(),
                                     static_cast<size_t>(command.delete_().ids_size())})
                            .status());
        break;
      case v1::Command::kSync:
        server_.Drain();
        break;
      case v1::Command::KIND_NOT_SET:
        break;
    }
  }
  void RequireAllEnded() { Require(ended_.load() == accepted_); }

 private:
  Session::Request MakeRequest(uint64_t number) {
    Session::Request request;
    request.command_number = number;
    request.leave_failed = true;
    request.done = [this](Tensor& tensor) {
      RequireSendable(tensor.status());
      ended_.fetch_add(1);
    };
    return request;
  }
  void Note(const absl::Status& status) {
    RequireSendable(status);
    accepted_ += status.ok() ? 1 : 0;
  }
  void HandleFetch(const v1::Fetch& fetch) {
    const absl::StatusOr<TensorRef> tensor = FindForFetch(session_, fetch);
    RequireSendable(tensor.status());
    if (!tensor.ok()) {
      return;
    }
    server_.Drain();
    Require((*tensor)->done());
    v1::FetchedTensor fetched;
    Require(!(*tensor)->status().ok() ||
            FillFetched(server_.devices(), **tensor, fetch.raw(), &fetched).ok());
  }

  SmallServer& server_;
  Session& session_;
  uint64_t accepted_ = 0;
  std::atomic<uint64_t> ended_ = 0;
};

void Check(const uint8_t* data, size_t size) {
  v1::ExecuteRequest request;
  if (!request.ParseFromArray(data, static_cast<int>(size)) ||
      request.commands_size() > kCommandsMax) {
    return;
  }
  SmallServer& server = SmallServer::Get();
  {
    const SessionRef session = server.Open();
    Batch batch(server, *session);
    for (const v1::Command& command : request.commands()) {
      batch.Handle(command);
    }
    server.Drain();
    batch.RequireAllEnded();
    server.Close(session);
  }
  server.RequireBaseline();
}

}  // namespace
}  // namespace devserver

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  devserver::Check(data, size);
  return 0;
}
