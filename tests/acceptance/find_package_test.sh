#!/bin/bash
# ctest: nosanitizer, timeout=180
# What a user of the client library does: installs devserverd to a prefix, builds a small project of their own against it
# with find_package(devserver), and runs that against the installed daemon.
set -euo pipefail

source_dir=${DEVSERVER_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
build_dir=${DEVSERVER_BUILD_DIR:-$source_dir/build}
work=$(mktemp -d /tmp/find_package_test.XXXXXX)
daemon=

clean_up() {
  [ -z "$daemon" ] || kill "$daemon" 2> /dev/null || true
  rm -rf "$work"
}
trap clean_up EXIT
fail() {
  echo "FAILED: $*"
  exit 1
}

prefix=$work/prefix
cmake --install "$build_dir" --prefix "$prefix" > "$work/install.log" || fail "$(tail -n 20 "$work/install.log")"
# An installed package that points back to the source or build folder works only on the machine that built it.
if grep -rlF -e "$source_dir" "$prefix"/lib*/*/cmake "$prefix"/include "$prefix"/lib*/cmake 2> /dev/null; then
  fail "these installed files name $source_dir"
fi

mkdir "$work/project"
cat > "$work/project/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(outside LANGUAGES CXX)
find_package(devserver 0.1 REQUIRED)
add_executable(outside main.cc)
target_link_libraries(outside PRIVATE devserver::client)
CMAKE
cat > "$work/project/main.cc" <<'CPP'
#include <cstdio>
#include <string>
#include <vector>

#include "devserver/client.h"
#include "devserver/nn.h"
#include "devserver/safetensors.h"
#include "server/tensor/shape.h"

namespace dc = devserver::client;

int main(int argc, char** argv) {
  const absl::StatusOr<dc::Client> client = dc::Client::connect(argc > 1 ? argv[1] : "");
  if (!client.ok()) {
    std::fprintf(stderr, "%s\n", std::string(client.status().message()).c_str());
    return 1;
  }
  const dc::Tensor x = dc::ones({2, 3}, client->try_gpu());
  const absl::StatusOr<std::vector<float>> sum = dc::add(x, x).fetch<float>();
  if (!sum.ok()) {
    std::fprintf(stderr, "%s\n", std::string(sum.status().message()).c_str());
    return 1;
  }
  std::printf("%s on %s: %zu elements, the first is %g\n", x.shape().ToString().c_str(),
              x.device_name().c_str(), sum->size(), sum->at(0));
  return sum->size() == 6 && sum->at(0) == 2 ? 0 : 1;
}
CPP
{ cmake -S "$work/project" -B "$work/build" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Debug \
    -DCMAKE_CXX_FLAGS="-Wall -Wextra -Werror" && cmake --build "$work/build"; } > "$work/build.log" 2>&1 ||
  fail "the outside project does not build: $(tail -n 40 "$work/build.log")"

"$prefix/bin/devserverd" --listen 127.0.0.1:0 --port-file "$work/port" --simulate T4 2> "$work/devserverd.log" &
daemon=$!
for _ in $(seq 200); do
  [ ! -s "$work/port" ] || break
  kill -0 "$daemon" 2> /dev/null || break
  sleep 0.05
done
[ -s "$work/port" ] || fail "devserverd did not start: $(cat "$work/devserverd.log")"
said=$("$work/build/outside" "127.0.0.1:$(cat "$work/port")") || fail "the outside program: $said"
echo "$said"
[ "$said" = "[2,3] on gpu:0: 6 elements, the first is 2" ] || fail "that is not what it should print"
kill "$daemon"
wait "$daemon" || fail "devserverd ended with $?: $(cat "$work/devserverd.log")"
daemon=
echo PASSED
