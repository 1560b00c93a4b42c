// The controls' server: gRPC with devserverd's messages and nothing behind them.
//
// What a call costs before devserverd does anything: same methods, same message types and sizes,
// same server arguments, a process of its own as well. It answers
//   GetTensor, MatMul   with a fixed reply
//   Execute             each message whose last command is a fetch with a fixed reply; other
//                       messages are decoded and dropped
//   Upload              copies the chunks into memory that is there already
//   Download            chunks of memory that is there already, as many as the request asks for
#pragma once

#include <cstddef>
#include <string>

namespace devserver::bench {

// The first argument of a process that runs RunBareServer; the second is the port file.
inline constexpr char kBareServerFlag[] = "--bare_server";

// The largest upload or download.
inline constexpr size_t kBareBytesMax = size_t{256} << 20;

// Serves on loopback until SIGTERM; writes the port to `port_file`. Returns the exit status.
int RunBareServer(const std::string& port_file);

}  // namespace devserver::bench
