// Everything has a limit. Each is a key of the config file (deploy/devserverd.toml) with the reason
// given here.
#pragma once

#include <cstdint>

namespace devserver {

struct Limits {
  // Sessions at once, default sessions among them. Each costs a few kilobytes plus what it holds.
  uint64_t sessions = 256;
  // Tensor bytes of one session over all devices: four 16 GB GPUs, so that one user may fill the
  // machine of the default quickstart but a mistake can't fill a larger one. The devices' own
  // limits hold besides.
  uint64_t session_bytes = uint64_t{64} << 30;
  // Handles of one session; one costs about 0.5 KB of host memory, so this is 128 MB.
  uint64_t session_tensors = 262'144;
  // Commands of one session that were accepted and have not finished; beyond it a stream is not
  // read on and a unary call is refused. Enough to hide a second of round trip at 50,000 commands
  // per second.
  uint64_t commands_in_flight = 65'536;
  // One message, but for bulk streams. gRPC clients refuse more than 4 MiB unless told otherwise.
  uint64_t message_bytes = uint64_t{4} << 20;
  // Values inside a Create or a Fetch; as JSON they grow eightfold.
  uint64_t inline_bytes = uint64_t{1} << 20;
  // One chunk of Upload or Download: throughput is flat from 1 MiB on, and a message has room for
  // it twice.
  uint64_t chunk_bytes = uint64_t{2} << 20;
  // What gRPC may hold of the messages of all connections. It takes a message whole before its
  // length is looked at, so this is what keeps one of 4 GB from filling the machine; the windows
  // of 64 uploads at once, 8 MiB each, have room.
  uint64_t transport_bytes = uint64_t{512} << 20;
  // Labels and session names, bytes.
  uint64_t label_bytes = 256;

  // A session whose client is silent for this long is closed: a dead laptop must not hold a GPU for
  // minutes.
  double lease_seconds = 30;
  double lease_seconds_min = 1;
  double lease_seconds_max = 3600;
  // A person at a terminal goes for lunch and finds the tensors of the default session still there.
  double default_session_idle_seconds = 8 * 3600;
  // An Upload or Download that moves nothing for this long is ended and its memory given back.
  double stall_seconds = 60;
  // What SIGTERM leaves running calls before they are cancelled; below systemd's TimeoutStopSec.
  double grace_seconds = 10;
};

}  // namespace devserver
