// Where the server listens: "127.0.0.1:50151", "[::1]:50151", "localhost:0", or
// "unix:/run/devserverd/devserverd.sock". Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace devserver {

struct ListenAddress {
  std::string host;       // without brackets; empty for a unix socket
  uint16_t port = 0;      // 0: any free one
  std::string unix_path;  // absolute; empty for TCP

  // As gRPC takes it: "127.0.0.1:50151", "[::1]:50151", "unix:/run/x.sock".
  std::string ToString() const;
  // Whether only this machine can reach it: 127.0.0.0/8, ::1, localhost, or a unix socket.
  bool IsLocal() const;
};

// INVALID_ARGUMENT, quoting `text` and the accepted forms, if it is none of them. Resolves no
// names.
absl::StatusOr<ListenAddress> ParseListenAddress(std::string_view text);

// devserverd speaks without encryption or passwords, so an address that other machines can reach is
// refused unless `insecure` was said aloud. INVALID_ARGUMENT names the address and the way out.
absl::Status CheckAddressPolicy(const ListenAddress& address, bool insecure);

}  // namespace devserver
