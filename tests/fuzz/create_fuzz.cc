// Any bytes as a Create, run on a real session of a small device. A tensor that was made is what
// was asked for, its values fetched and given back make the same bytes, and afterwards no byte is
// left. A refusal can be sent.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/fuzz/small_server.h"

namespace devserver {
namespace {

// What a Fetch gives, put into a Create, is the same tensor.
void RequireRoundTrip(SmallServer& server, Session& session, const Tensor& tensor) {
  if (tensor.size_bytes() > server.limits().inline_bytes) {
    return;
  }
  for (const bool raw : {true, false}) {
    v1::FetchedTensor fetched;
    Require(FillFetched(server.devices(), tensor, raw, &fetched).ok());
    v1::Create again;
    *again.mutable_shape() = fetched.tensor().shape();
    again.set_dtype(fetched.tensor().dtype());
    *again.mutable_values() = fetched.values();
    const absl::StatusOr<TensorRef> copy = RunCreate(session, again, {});
    Require(copy.ok());
    server.Drain();
    Require((*copy)->status().ok());
    Require((*copy)->spec() == tensor.spec());
    // A NaN may lose its payload on the way through a number.
    const bool exact = raw || !IsFloat(tensor.spec().dtype);
    Require(!exact || tensor.size_bytes() == 0 ||
            std::memcmp((*copy)->data(), tensor.data(), tensor.size_bytes()) == 0);
    const uint64_t id = (*copy)->id();
    Require(session.Delete({&id, 1}).ok());
  }
}

void Check(const uint8_t* data, size_t size) {
  v1::Create create;
  if (!create.ParseFromArray(data, static_cast<int>(size))) {
    return;
  }
  SmallServer& server = SmallServer::Get();
  {
    const SessionRef session = server.Open();
    const absl::StatusOr<TensorRef> made = RunCreate(*session, create, {});
    if (made.ok()) {
      server.Drain();
      Require((*made)->done());
      Require((*made)->id() == create.id() || create.id() == 0);
      Require(std::ranges::equal((*made)->spec().shape.dims(), create.shape()));
      RequireSendable((*made)->status());
      if ((*made)->status().ok()) {
        RequireRoundTrip(server, *session, **made);
      }
    } else {
      RequireSendable(made.status());
    }
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
