#include "tests/fakes/relay.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstdlib>
#include <utility>

namespace devserver {
namespace {

constexpr size_t kBufferedBytesMax = size_t{8} << 20;
constexpr size_t kReadBytes = size_t{64} << 10;
constexpr size_t kPrefaceBytes = 24;  // "PRI * HTTP/2.0 ..", RFC 9113 section 3.4
constexpr size_t kFrameHeaderBytes = 9;
constexpr char kDataFrame = 0;

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

void SetNoDelay(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

}  // namespace

Relay::Relay(const std::string& target, std::chrono::milliseconds delay) : delay_(delay) {
  target_port_ = static_cast<uint16_t>(std::atoi(target.substr(target.rfind(':') + 1).c_str()));
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  [[maybe_unused]] int failed =
      bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  assert(failed == 0);
  failed = listen(listener_, 64);
  assert(failed == 0);
  socklen_t size = sizeof(address);
  getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  wake_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  thread_ = std::thread(&Relay::Loop, this);
}

Relay::~Relay() {
  stop_ = true;
  Request(kWake);
  thread_.join();
  for (Pair& pair : pairs_) {
    Reset(&pair);
  }
  close(listener_);
  close(wake_);
}

std::string Relay::address() const { return "127.0.0.1:" + std::to_string(port_); }

void Relay::Request(uint32_t bits) {
  requests_ |= bits;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof(one));
}

void Relay::TakeRequests() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(wake_, &count, sizeof(count));
  const uint32_t requests = requests_.exchange(0);
  if ((requests & kReset) != 0) {
    round_trips_ = 0;
    for (Pair& pair : pairs_) {
      pair.got_message = true;  // The next request begins a new count.
    }
  }
  if ((requests & kCut) != 0 || refuse_ || client_bytes_ >= cut_at_client_bytes_) {
    if (client_bytes_ >= cut_at_client_bytes_) {
      cut_at_client_bytes_ = INT64_MAX;
    }
    for (Pair& pair : pairs_) {
      Reset(&pair);
    }
    pairs_.clear();
  }
}

void Relay::Loop() {
  while (!stop_) {
    std::vector<pollfd> polled = {{wake_, POLLIN, 0}, {listener_, POLLIN, 0}};
    TimePoint next_due = TimePoint::max();
    for (const Pair& pair : pairs_) {
      const auto events = [&](const Direction& in, const Direction& out) {
        const bool reads = !stall_ && !in.ended && in.buffered_bytes < kBufferedBytesMax;
        const bool due =
            !stall_ && !out.chunks.empty() && out.chunks.front().due <= Clock::Real()->Now();
        if (!stall_ && !out.chunks.empty() && !due) {
          next_due = std::min(next_due, out.chunks.front().due);
        }
        return static_cast<short>((reads ? POLLIN : 0) | (due ? POLLOUT : 0));
      };
      // A stalled connection is not looked at: its hang-up would end every poll at once.
      polled.push_back({stall_ ? -1 : pair.client, events(pair.up, pair.down), 0});
      polled.push_back({stall_ ? -1 : pair.server, events(pair.down, pair.up), 0});
    }
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(
        next_due == TimePoint::max() ? std::chrono::seconds(1) : next_due - Clock::Real()->Now());
    poll(polled.data(), polled.size(), static_cast<int>(std::max<int64_t>(0, wait.count())));
    size_t index = 2;
    for (auto pair = pairs_.begin(); pair != pairs_.end(); index += 2) {
      if (Serve(&*pair, polled[index].revents, polled[index + 1].revents)) {
        ++pair;
      } else {
        Reset(&*pair);
        pair = pairs_.erase(pair);
      }
    }
    TakeRequests();
    if ((polled[1].revents & POLLIN) != 0) {
      Accept();
    }
  }
}

void Relay::Accept() {
  Pair pair;
  pair.client = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (pair.client < 0) {
    return;
  }
  ++connections_made_;
  pair.server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(target_port_);
  if (refuse_ ||
      connect(pair.server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    Reset(&pair);
    return;
  }
  SetNoDelay(pair.client);
  SetNoDelay(pair.server);
  pair.up.parser.skip = kPrefaceBytes;
  pairs_.push_back(std::move(pair));
}

bool Relay::Serve(Pair* pair, short client_events, short server_events) {
  constexpr short kReadable = POLLIN | POLLHUP | POLLERR;
  if (stall_) {
    return true;
  }
  return ((client_events & kReadable) == 0 || Read(pair, true)) &&
         ((server_events & kReadable) == 0 || Read(pair, false)) &&
         ((server_events & POLLOUT) == 0 || Send(pair, false)) &&
         ((client_events & POLLOUT) == 0 || Send(pair, true));
}

bool Relay::Read(Pair* pair, bool from_client) {
  Direction& direction = from_client ? pair->up : pair->down;
  if (direction.ended) {
    return true;
  }
  Chunk chunk;
  chunk.bytes.resize(kReadBytes);
  const ssize_t size =
      recv(from_client ? pair->client : pair->server, chunk.bytes.data(), kReadBytes, MSG_DONTWAIT);
  if (size < 0) {
    return errno == EAGAIN || errno == EINTR;
  }
  if (size == 0) {
    direction.ended = true;
    return !direction.chunks.empty();  // What is on its way still arrives.
  }
  chunk.bytes.resize(static_cast<size_t>(size));
  chunk.due = Clock::Real()->Now() + delay_;
  chunk.has_message = direction.parser.TakesMessage(chunk.bytes.data(), chunk.bytes.size());
  if (from_client && chunk.has_message && std::exchange(pair->got_message, false)) {
    ++round_trips_;
  }
  direction.buffered_bytes += chunk.bytes.size();
  direction.chunks.push_back(std::move(chunk));
  return true;
}

bool Relay::Send(Pair* pair, bool to_client) {
  Direction& direction = to_client ? pair->down : pair->up;
  while (!direction.chunks.empty() && direction.chunks.front().due <= Clock::Real()->Now()) {
    Chunk& chunk = direction.chunks.front();
    size_t size = chunk.bytes.size() - chunk.sent;
    if (!to_client) {
      const int64_t left = cut_at_client_bytes_ - client_bytes_;
      if (left <= 0) {
        return true;  // TakeRequests cuts.
      }
      size = std::min(size, static_cast<size_t>(left));
    }
    const ssize_t sent = send(to_client ? pair->client : pair->server,
                              chunk.bytes.data() + chunk.sent, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
      return errno == EAGAIN || errno == EINTR;
    }
    chunk.sent += static_cast<size_t>(sent);
    client_bytes_ += to_client ? 0 : sent;
    if (chunk.sent == chunk.bytes.size()) {
      pair->got_message |= to_client && chunk.has_message;
      direction.buffered_bytes -= chunk.bytes.size();
      direction.chunks.pop_front();
    }
  }
  return !(direction.ended && direction.chunks.empty());
}

void Relay::Reset(Pair* pair) {
  const linger at_once = {1, 0};
  for (const int socket : {pair->client, pair->server}) {
    if (socket >= 0) {
      setsockopt(socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
      close(socket);
    }
  }
}

bool Relay::FrameParser::TakesMessage(const char* data, size_t size) {
  bool found = false;
  while (size > 0) {
    if (skip > 0) {
      const size_t skipped = std::min(skip, size);
      skip -= skipped;
      data += skipped;
      size -= skipped;
      continue;
    }
    header.push_back(*data++);
    --size;
    if (header.size() == kFrameHeaderBytes) {
      const auto byte = [&](size_t i) {
        return static_cast<size_t>(static_cast<uint8_t>(header[i]));
      };
      skip = byte(0) << 16 | byte(1) << 8 | byte(2);
      found |= header[3] == kDataFrame && skip > 0;
      header.clear();
    }
  }
  return found;
}

}  // namespace devserver
