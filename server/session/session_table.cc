#include "server/session/session_table.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_format.h"
#include "server/base/error_details.h"
#include "server/base/status_macros.h"

namespace devserver {
namespace {

// 128 bits nobody can guess, in hexadecimal.
std::string RandomToken() {
  std::array<unsigned char, 16> bytes = {};
  while (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    // Up to 256 bytes come whole or, before the first seed of the machine, not at all
    // (getrandom(2)).
  }
  std::string token;
  for (const unsigned char byte : bytes) {
    token += absl::StrFormat("%02x", byte);
  }
  return token;
}

}  // namespace

SessionTable::SessionTable(Surroundings surroundings)
    : surroundings_(surroundings), server_id_(RandomToken()) {}

SessionTable::~SessionTable() { CloseAll(); }

absl::StatusOr<SessionRef> SessionTable::Insert(std::string key, Session::Options options) {
  const uint64_t limit = surroundings_.limits->sessions;
  if (sessions_.size() >= limit) {
    ErrorDetails details;
    details.reason = ErrorReason::kLimit;
    details.asked = 1;
    details.used = sessions_.size();
    details.limit = limit;
    return WithDetails(absl::ResourceExhaustedError(
                           absl::StrFormat("too many sessions: asked 1, used %d, limit %d "
                                           "(limits.sessions); close one, or wait for a "
                                           "lease to run out",
                                           sessions_.size(), limit)),
                       details);
  }
  options.serial = ++last_serial_;
  auto session = std::make_shared<Session>(std::move(options), surroundings_);
  sessions_.emplace(std::move(key), session);
  return session;
}

absl::StatusOr<SessionRef> SessionTable::Open(std::string name, std::string peer,
                                              double lease_seconds) {
  const Limits& limits = *surroundings_.limits;
  if (!(lease_seconds >= 0)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "lease_seconds is %g; give %g to %g, or 0 for the default of %g", lease_seconds,
        limits.lease_seconds_min, limits.lease_seconds_max, limits.lease_seconds));
  }
  Session::Options options;
  options.name = name.empty() ? "unnamed" : std::move(name);
  options.peer = std::move(peer);
  options.token = RandomToken();
  options.lease = Seconds(lease_seconds == 0 ? limits.lease_seconds
                                             : std::clamp(lease_seconds, limits.lease_seconds_min,
                                                          limits.lease_seconds_max));
  const MutexLock lock(&mu_);
  std::string key = options.token;
  return Insert(std::move(key), std::move(options));
}

absl::StatusOr<SessionRef> SessionTable::Find(std::string_view token) {
  const MutexLock lock(&mu_);
  const auto found = sessions_.find(token);
  if (found == sessions_.end() || found->second->options().is_default ||
      found->second->Expired(surroundings_.clock->Now())) {
    return MakeError(absl::StatusCode::kNotFound, ErrorReason::kSessionExpired,
                     "no session with this token: it was closed, its lease ran out, or the server "
                     "restarted; open "
                     "a new one with OpenSession");
  }
  found->second->Renew();
  return found->second;
}

absl::StatusOr<SessionRef> SessionTable::FindDefault(const std::string& peer) {
  std::string key = "default " + peer;
  const MutexLock lock(&mu_);
  const auto found = sessions_.find(key);
  if (found != sessions_.end()) {
    found->second->Renew();
    return found->second;
  }
  Session::Options options;
  options.name = key;
  options.peer = peer;
  options.lease = Seconds(surroundings_.limits->default_session_idle_seconds);
  options.is_default = true;
  return Insert(std::move(key), std::move(options));
}

uint64_t SessionTable::Close(const SessionRef& session) {
  {
    const MutexLock lock(&mu_);
    std::erase_if(sessions_, [&](const auto& entry) { return entry.second == session; });
  }
  return session->Close();
}

size_t SessionTable::CloseExpired() {
  std::vector<SessionRef> expired;
  {
    const MutexLock lock(&mu_);
    const TimePoint now = surroundings_.clock->Now();
    for (auto entry = sessions_.begin(); entry != sessions_.end();) {
      if (entry->second->Expired(now)) {
        expired.push_back(entry->second);
        entry = sessions_.erase(entry);
      } else {
        ++entry;
      }
    }
  }
  for (const SessionRef& session : expired) {
    session->Close();
  }
  return expired.size();
}

void SessionTable::CloseAll() {
  std::map<std::string, SessionRef, std::less<>> sessions;
  {
    const MutexLock lock(&mu_);
    sessions.swap(sessions_);
  }
  for (const auto& [key, session] : sessions) {
    session->Close();
  }
}

std::vector<SessionRef> SessionTable::List() const {
  std::vector<SessionRef> sessions;
  {
    const MutexLock lock(&mu_);
    for (const auto& [key, session] : sessions_) {
      sessions.push_back(session);
    }
  }
  std::ranges::sort(sessions, {},
                    [](const SessionRef& session) { return session->options().serial; });
  return sessions;
}

}  // namespace devserver
