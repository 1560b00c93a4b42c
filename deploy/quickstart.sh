#!/bin/bash
# From nothing to results: installs what devserverd needs, builds it, starts it on loopback with cpu:0 and four simulated
# V100 GPUs, runs the walk-through against it over gRPC, and stops it. Debian 12, as root. Quick when there is nothing to do.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/steps.sh

programs=$PWD/build-release/bin
daemon=
work=$(mktemp -d /tmp/quickstart.XXXXXX)
STEPS_LOGS=$work

stop_daemon() {
  if [ -n "$daemon" ]; then
    kill "$daemon" 2> /dev/null || true
    wait "$daemon" 2> /dev/null || true
    daemon=
  fi
}
trap stop_daemon EXIT

# Starts the daemon and waits until it serves; its port is then in $port.
start_daemon() {
  "$programs/devserverd" --listen 127.0.0.1:0 --port-file "$work/port" --simulate V100-SXM2-16GB:4 \
    2> "$work/devserverd.log" &
  daemon=$!
  for _ in $(seq 300); do
    if [ -s "$work/port" ]; then
      port=$(cat "$work/port")
      return 0
    fi
    kill -0 "$daemon" 2> /dev/null || break
    sleep 0.1
  done
  echo "quickstart: devserverd did not start. Its log ($work/devserverd.log):"
  tail -n 40 "$work/devserverd.log"
  exit 1
}

configure() {
  # Ninja runs CMake again by itself when a CMake file has changed.
  [ -f build-release/build.ninja ] || cmake --preset release
}

steps_begin quickstart 3
step "installing packages" "Mend what apt says above, then run deploy/quickstart.sh again." deploy/install-deps.sh
step "configuring" "rm -r build-release and another run start afresh." configure
step "building (release)" "" ninja -C build-release devserverd devserverctl use_gpu digits

start_daemon
echo "devserverd $("$programs/devserverd" --version | cut -d' ' -f2) serves on 127.0.0.1:$port: cpu:0 and 4 simulated V100-SXM2-16GB"
for example in "use_gpu 127.0.0.1:$port" "digits 127.0.0.1:$port tests/data"; do
  echo
  echo "== $example"
  # shellcheck disable=SC2086  # The arguments have no spaces in them.
  if ! "$programs"/$example; then
    echo "quickstart: '$example' failed. devserverd's log ($work/devserverd.log):"
    tail -n 40 "$work/devserverd.log"
    exit 1
  fi
done

echo
if ! kill "$daemon" || ! wait "$daemon"; then
  daemon=
  echo "quickstart: devserverd did not stop cleanly. Its log ($work/devserverd.log):"
  tail -n 40 "$work/devserverd.log"
  exit 1
fi
daemon=
rm -r "$work"
echo "quickstart: done. The programs:"
echo "    $programs/devserverd     the daemon; start it with: devserverd --simulate V100-SXM2-16GB:4"
echo "    $programs/devserverctl   the command line: devserverctl smi"
echo "    $programs/use_gpu        this walk-through, from client/examples/use_gpu.cc"
