#!/bin/bash
# ctest: serial, nosanitizer, timeout=120
# The service as it is deployed, under a real systemd: PID 1 of its own namespaces over an overlay of this machine's /, so
# that nothing is downloaded and the host sees none of the writes. Needs root and namespaces; skipped (77) without.
set -euo pipefail

source_dir=${DEVSERVER_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
build_dir=${DEVSERVER_BUILD_DIR:-$source_dir/build}
unit=$source_dir/deploy/devserverd.service
daemon=$build_dir/bin/devserverd
ctl=$build_dir/bin/devserverctl
work=
systemd_pid=

skip() {
  echo "SKIPPED: $*"
  exit 77
}
fail() {
  echo "FAILED: $*"
  if [ -n "$systemd_pid" ]; then
    inside systemctl status --no-pager --full devserverd || true
    inside journalctl --no-pager -n 60 || true
  fi
  exit 1
}
inside() {
  nsenter -t "$systemd_pid" --all -- "$@"
}
property() {
  inside systemctl show devserverd --value -p "$1"
}
# wait_for SECONDS WHAT COMMAND...
wait_for() {
  local seconds=$1 what=$2 began=$SECONDS
  shift 2
  until "$@" > /dev/null 2>&1; do
    [ $((SECONDS - began)) -lt "$seconds" ] || fail "no $what within $seconds s"
    sleep 0.05
  done
}
# The standard health check by a client that shares no code with the daemon. 08 01 is {status: SERVING}.
is_serving() {
  inside /usr/bin/python3 - "$1" <<'PYTHON'
import sys
import grpc
with grpc.insecure_channel(sys.argv[1]) as channel:
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    sys.exit(0 if check(b"", timeout=5) == b"\x08\x01" else 1)
PYTHON
}
clean_up() {
  if [ -n "$systemd_pid" ]; then
    kill -KILL "$systemd_pid" 2> /dev/null || true  # PID 1 of its namespace: all in it go with it.
  fi
  [ -z "$work" ] || rm -rf "$work"
}
trap clean_up EXIT

check_unit_file() {
  local said copy=$work/devserverd.service
  sed "s#/usr/bin/devserverd#$daemon#" "$unit" > "$copy"
  # An unknown key is only a line on standard error, the exit status is 0 all the same.
  said=$(systemd-analyze verify --man=no "$copy" 2>&1) || fail "systemd-analyze verify: $said"
  [ -z "$said" ] || fail "systemd-analyze verify says: $said"
  said=$(systemd-analyze security --offline=true --threshold=20 "$copy" 2>&1) ||
    fail "systemd-analyze security rates it worse than 2.0: $(tail -n 1 <<< "$said")"
  echo "unit file: $(tail -n 1 <<< "$said")"
}

# Boots systemd; its process id as this machine sees it is then in $systemd_pid.
boot() {
  local starter pid
  export work unit daemon ctl source_dir
  setsid unshare --fork --pid --mount --uts --ipc --cgroup --net --propagation private bash -euc '
    root=$work/root
    mount -t tmpfs -o size=512m tmpfs "$work"
    mkdir -p "$root" "$work/upper" "$work/scratch"
    mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/scratch" "$root"
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys"
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
    mount -t tmpfs -o mode=755 tmpfs "$root/run"
    # Only the bare system, not what is enabled on this machine.
    rm -rf "$root"/etc/systemd/system/*.wants "$root/var/log/journal"
    : > "$root/etc/fstab"
    : > "$root/etc/machine-id"
    install -m 755 "$daemon" "$root/usr/bin/devserverd"
    install -m 755 "$ctl" "$root/usr/bin/devserverctl"
    install -m 644 "$unit" "$root/etc/systemd/system/devserverd.service"
    mkdir -p "$root/etc/devserverd"
    install -m 644 "$source_dir/deploy/devserverd.toml" "$root/etc/devserverd/devserverd.toml"
    echo "DEVSERVERD_FLAGS=--simulate V100-SXM2-16GB:2" > "$root/etc/default/devserverd"
    mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
    mount -t tmpfs -o mode=755 tmpfs "$root/dev"
    for name in null zero full random urandom tty; do
      touch "$root/dev/$name"
      mount --bind "/dev/$name" "$root/dev/$name"
    done
    mkdir -p "$root/dev/pts" "$root/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
    ln -s pts/ptmx "$root/dev/ptmx"
    mount -t tmpfs tmpfs "$root/dev/shm"
    ip link set lo up
    mkdir -p "$root/mnt"
    cd "$root"
    pivot_root . mnt
    umount -l /mnt
    exec env -i container=unshare PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
      /lib/systemd/systemd --system systemd.unit=multi-user.target
  ' > "$work.log" 2>&1 < /dev/null &
  starter=$!
  for _ in $(seq 300); do
    pid=$(pgrep -P "$starter" || true)
    if [ -n "$pid" ] && nsenter -t "$pid" --all systemctl is-system-running 2> /dev/null | grep -qE 'running|degraded'; then
      systemd_pid=$pid
      return 0
    fi
    kill -0 "$starter" 2> /dev/null || break
    sleep 0.1
  done
  skip "systemd does not boot in namespaces here: $(tail -n 3 "$work.log")"
}

check_start() {
  inside systemctl start devserverd || fail "systemctl start"
  [ "$(property ActiveState)" = active ] || fail "it is $(property ActiveState) after start"
  # READY came, so both must serve at once, without a retry.
  is_serving 127.0.0.1:50151 || fail "the TCP port is not SERVING after READY"
  is_serving unix:/run/devserverd/devserverd.sock || fail "the unix socket is not SERVING after READY"
  echo "start: $(property StatusText)"
}
check_sandbox() {
  local pid uid
  pid=$(property MainPID)
  uid=$(inside awk '/^Uid:/ {print $2}' "/proc/$pid/status")
  [ "$uid" -ge 61184 ] || fail "it runs as uid $uid, not as a dynamic user"
  inside grep -qE '^CapEff:\s0+$' "/proc/$pid/status" || fail "it has capabilities"
  inside grep -qE '^Seccomp:\s2$' "/proc/$pid/status" || fail "it has no system call filter"
  echo "sandbox: uid $uid, no capabilities, system calls filtered"
}
# The sandbox lets devserverd do its work: kernels compiled at run time, threads, the socket open to any user.
check_compute() {
  local device said
  for device in cpu:0 gpu:1; do
    said=$(inside setpriv --reuid nobody --clear-groups bash -euc '
      ctl="devserverctl --server unix:/run/devserverd/devserverd.sock"
      $ctl create 96,96 --ones --id 1000 --device "$0"
      $ctl matmul 1000 1000 --id 1001
      $ctl show 1001
      $ctl rm 1000 1001' "$device" 2>&1) || fail "computing on $device in the sandbox: $said"
    grep -q "\[96, 96, 96" <<< "$said" || fail "the product of ones on $device is not 96 everywhere: $said"
  done
  echo "compute: products on cpu:0 and gpu:1, as user nobody, over the unix socket"
}
check_stop() {
  local began=$SECONDS
  inside systemctl stop devserverd || fail "systemctl stop"
  [ "$(property ActiveState)" = inactive ] || fail "it is $(property ActiveState) after stop"
  [ "$(property Result)" = success ] || fail "stop ended with $(property Result)"
  [ $((SECONDS - began)) -le 11 ] || fail "an idle daemon took $((SECONDS - began)) s to stop"
  echo "stop: clean, in $((SECONDS - began)) s"
}
restarts_are() {
  [ "$(property NRestarts)" = "$1" ] && [ "$(property ActiveState)" = active ]
}
check_abort() {
  inside systemctl start devserverd
  inside kill -ABRT "$(property MainPID)"
  wait_for 20 "restart after an abort" restarts_are 1
  is_serving 127.0.0.1:50151 || fail "not SERVING after the restart"
  echo "abort: restarted, SERVING on the same port"
}
check_watchdog() {
  local pid
  inside mkdir -p /etc/systemd/system/devserverd.service.d
  printf '[Service]\nWatchdogSec=2\n' | inside tee /etc/systemd/system/devserverd.service.d/watchdog.conf > /dev/null
  inside systemctl daemon-reload
  inside systemctl restart devserverd
  pid=$(property MainPID)
  inside systemctl reset-failed devserverd
  # First that a healthy daemon is left alone for longer than the period ...
  sleep 3
  [ "$(property MainPID)" = "$pid" ] || fail "the watchdog killed a healthy daemon"
  # ... then one that hangs.
  inside kill -STOP "$pid"
  wait_for 30 "restart by the watchdog" restarts_are 1
  [ "$(property MainPID)" != "$pid" ] || fail "the hanging process is still there"
  inside journalctl -u devserverd --no-pager | grep -q 'Watchdog timeout' || fail "it was not the watchdog"
  is_serving 127.0.0.1:50151 || fail "not SERVING after the watchdog's restart"
  echo "watchdog: left the healthy one alone, restarted the hanging one"
}
check_bad_config() {
  echo '[limits]
sesions = 4' | inside tee /etc/devserverd/devserverd.toml > /dev/null
  inside systemctl reset-failed devserverd
  if inside systemctl restart devserverd 2> /dev/null; then
    fail "it started with an unknown key in its configuration"
  fi
  [ "$(property ExecMainStatus)" = 2 ] || fail "a bad configuration ends with status $(property ExecMainStatus), not 2"
  [ "$(property ActiveState)" = failed ] || fail "it is $(property ActiveState), not failed: it must not be restarted"
  inside journalctl -u devserverd --no-pager | grep -q 'devserverd.toml:2: .*did you mean limits.sessions' ||
    fail "the journal does not say what is wrong"
  echo "bad configuration: stays down, the journal names file, line and key"
}

[ "$(id -u)" -eq 0 ] || skip "needs root"
for program in "$daemon" "$ctl"; do
  [ -x "$program" ] || fail "there is no $program"
done
for tool in /lib/systemd/systemd systemd-analyze dbus-daemon ip pgrep nsenter unshare; do
  command -v "$tool" > /dev/null || skip "needs $tool (deploy/install-deps.sh --tests)"
done
work=$(mktemp -d /tmp/systemd_test.XXXXXX)
check_unit_file
unshare --fork --pid --mount --uts --ipc --cgroup --net true 2> /dev/null || skip "namespaces are not permitted here"
boot
check_start
check_sandbox
check_compute
check_stop
check_abort
check_watchdog
check_bad_config
echo "PASSED"
