#include "server/listen_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <system_error>

#include "absl/strings/str_format.h"

namespace devserver {
namespace {

constexpr size_t kHostBytesMax = 253;  // A DNS name's.

absl::Status BadAddress(std::string_view text, std::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrFormat("listen address \"%s\": %s; write HOST:PORT (127.0.0.1:50151, [::1]:50151, "
                      "localhost:50151) or unix:/PATH",
                      text, why));
}

bool IsHostName(std::string_view host) {
  return std::all_of(host.begin(), host.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_';
  });
}

absl::StatusOr<ListenAddress> ParseUnix(std::string_view text, std::string_view path) {
  if (path.starts_with("//")) {
    path.remove_prefix(2);  // unix:///run/x.sock
  }
  if (!path.starts_with('/')) {
    return BadAddress(text, "the path of a unix socket must be absolute");
  }
  if (path.size() >= sizeof(sockaddr_un::sun_path)) {
    return BadAddress(text, absl::StrFormat("the path has %d bytes, the system's limit is %d",
                                            path.size(), sizeof(sockaddr_un::sun_path) - 1));
  }
  if (path.find('\0') != std::string_view::npos) {
    return BadAddress(text, "the path holds a NUL");
  }
  ListenAddress address;
  address.unix_path = path;
  return address;
}

bool EqualsIgnoreCase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return std::tolower(x) == std::tolower(y); });
}

}  // namespace

std::string ListenAddress::ToString() const {
  if (!unix_path.empty()) {
    return "unix:" + unix_path;
  }
  const bool is_v6 = host.find(':') != std::string::npos;
  return absl::StrFormat("%s%s%s:%d", is_v6 ? "[" : "", host, is_v6 ? "]" : "", port);
}

bool ListenAddress::IsLocal() const {
  if (!unix_path.empty() || EqualsIgnoreCase(host, "localhost")) {
    return true;
  }
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) {
    return (ntohl(v4.s_addr) >> 24) == 127;
  }
  in6_addr v6;
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) {
    return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
  }
  return false;
}

absl::StatusOr<ListenAddress> ParseListenAddress(std::string_view text) {
  constexpr std::string_view kUnix = "unix:";
  if (text.starts_with(kUnix)) {
    return ParseUnix(text, text.substr(kUnix.size()));
  }
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) {
    return BadAddress(text, "there is no port");
  }
  const std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size()) {
    return BadAddress(text, absl::StrFormat("\"%s\" is not a port (0 to 65535)", digits));
  }
  ListenAddress address;
  address.port = port;
  if (host.starts_with('[') && host.ends_with(']')) {
    address.host = host.substr(1, host.size() - 2);
    in6_addr ignored;
    if (inet_pton(AF_INET6, address.host.c_str(), &ignored) != 1) {
      return BadAddress(text, "what stands in brackets is not an IPv6 address");
    }
    return address;
  }
  if (host.find(':') != std::string_view::npos) {
    return BadAddress(text, "an IPv6 address needs brackets");
  }
  if (host.empty()) {
    return BadAddress(text, "there is no host");
  }
  if (host.size() > kHostBytesMax || !IsHostName(host)) {
    return BadAddress(text, "that is not a host name");
  }
  address.host = host;
  return address;
}

absl::Status CheckAddressPolicy(const ListenAddress& address, bool insecure) {
  if (insecure || address.IsLocal()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "listen address %s can be reached from other machines, and devserverd has neither encryption "
      "nor passwords yet: "
      "whoever can connect can use the devices and read the tensors. Listen on 127.0.0.1 and reach "
      "it by ssh -L, or say "
      "--insecure (listen.insecure = true in the config file) if the network is trusted",
      address.ToString()));
}

}  // namespace devserver
