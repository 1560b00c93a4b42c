// The sessions of a server: by token, and one default session for each peer address.
//
// Thread safety: any thread. Sessions are closed outside the table's lock.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/mutex.h"
#include "server/session/session.h"

namespace devserver {

using SessionRef = std::shared_ptr<Session>;

class SessionTable {
 public:
  explicit SessionTable(Surroundings surroundings);
  // Closes every session.
  ~SessionTable();

  // `lease_seconds` 0: the default; else it is brought into the limits. ResourceExhausted (kLimit)
  // at the limit of sessions.
  absl::StatusOr<SessionRef> Open(std::string name, std::string peer, double lease_seconds);
  // The session of `token`, its lease renewed. NOT_FOUND (kSessionExpired) if it is not there any
  // more.
  absl::StatusOr<SessionRef> Find(std::string_view token);
  // The default session of `peer` (an address without the port), made if it is not there, its idle
  // time begun anew.
  absl::StatusOr<SessionRef> FindDefault(const std::string& peer);
  // Takes it out of the table and closes it; returns the bytes it held.
  uint64_t Close(const SessionRef& session);
  // Closes the sessions whose lease has run out; returns how many.
  size_t CloseExpired();
  void CloseAll();

  // By serial.
  std::vector<SessionRef> List() const;
  const std::string& server_id() const { return server_id_; }
  const Surroundings& surroundings() const { return surroundings_; }

 private:
  absl::StatusOr<SessionRef> Insert(std::string key, Session::Options options)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  const Surroundings surroundings_;
  const std::string server_id_;
  // Guarded by mu_.
  mutable Mutex mu_;
  // By token, or by "default " and the peer. Tokens are hexadecimal, so the two can't meet.
  std::map<std::string, SessionRef, std::less<>> sessions_ ABSL_GUARDED_BY(mu_);
  uint64_t last_serial_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace devserver
