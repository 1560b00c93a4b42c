// A TCP relay in front of a server on loopback: a network that is slow, stalls and breaks when the
// test says so.
//
//   client <-> relay, delays each direction <-> server
//
// It knows enough of HTTP/2 to tell messages (DATA frames) from the transport's own chatter, and
// counts round trips of messages: how often the client sent one after it had got one. One thread,
// joined by the destructor. Thread safety: any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "server/base/clock.h"

namespace devserver {

class Relay {
 public:
  // `target`: "127.0.0.1:PORT".
  explicit Relay(const std::string& target,
                 std::chrono::milliseconds delay = std::chrono::milliseconds(0));
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  std::string address() const;

  // Of messages on all connections since they were last set to 0; a request alone is the first half
  // of one.
  int64_t round_trips() const { return round_trips_; }
  void ResetRoundTrips() { Request(kReset); }
  int64_t connections_made() const { return connections_made_; }
  int64_t client_bytes() const { return client_bytes_; }

  // Resets every connection; new ones are welcome.
  void CutConnections() { Request(kCut); }
  // Cuts, once, when this many more bytes of clients have been passed on.
  void CutAfterClientBytes(int64_t count) { cut_at_client_bytes_ = client_bytes_ + count; }
  // As long as it is set every connection is reset, old and new.
  void Refuse(bool refuse) {
    refuse_ = refuse;
    Request(kWake);
  }
  // As long as it is set no byte is passed on, and nobody is told: a network that is gone.
  void Stall(bool stall) {
    stall_ = stall;
    Request(kWake);
  }

 private:
  enum RequestBit : uint32_t { kWake = 1, kCut = 2, kReset = 4 };
  struct Chunk {
    TimePoint due;
    std::vector<char> bytes;
    size_t sent = 0;
    bool has_message = false;
  };
  // Finds the DATA frames in one direction of a connection.
  struct FrameParser {
    size_t skip = 0;  // bytes until the next frame's header
    std::vector<char> header;
    bool TakesMessage(const char* data, size_t size);
  };
  struct Direction {
    FrameParser parser;
    std::deque<Chunk> chunks;
    size_t buffered_bytes = 0;
    bool ended = false;
  };
  struct Pair {
    int client = -1;
    int server = -1;
    Direction up;    // client to server
    Direction down;  // server to client
    bool got_message = false;
  };

  void Request(uint32_t bits);
  void Loop();
  void TakeRequests();
  void Accept();
  // False: the connection has ended.
  bool Serve(Pair* pair, short client_events, short server_events);
  bool Read(Pair* pair, bool from_client);
  bool Send(Pair* pair, bool to_client);
  static void Reset(Pair* pair);

  // Constant after construction.
  const std::chrono::milliseconds delay_;
  uint16_t target_port_ = 0;
  uint16_t port_ = 0;
  int listener_ = -1;
  int wake_ = -1;

  // Settings and counts; order nothing.
  std::atomic<uint32_t> requests_ = 0;
  std::atomic<bool> refuse_ = false;
  std::atomic<bool> stall_ = false;
  std::atomic<bool> stop_ = false;
  std::atomic<int64_t> round_trips_ = 0;
  std::atomic<int64_t> connections_made_ = 0;
  std::atomic<int64_t> client_bytes_ = 0;
  std::atomic<int64_t> cut_at_client_bytes_ = INT64_MAX;

  // Touched only by the thread.
  std::list<Pair> pairs_;

  std::thread thread_;
};

}  // namespace devserver
