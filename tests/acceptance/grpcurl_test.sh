#!/bin/bash
# ctest: timeout=120
# The grpcurl commands of README.md, typed into the real grpcurl; skipped (77) where that is not on the PATH. And what a
# person would try first: list and describe for all there is, and numbers that JSON has no word for.
set -euo pipefail

source_dir=${DEVSERVER_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
build_dir=${DEVSERVER_BUILD_DIR:-$source_dir/build}

if ! command -v grpcurl > /dev/null; then
  echo "SKIPPED: grpcurl is not on the PATH (https://github.com/fullstorydev/grpcurl/releases); reflection_test.py checks the same commands without it"
  exit 77
fi

work=$(mktemp -d)
daemon_pid=
finish() {
  [ -z "$daemon_pid" ] || { kill "$daemon_pid" 2> /dev/null && wait "$daemon_pid" || true; }
  rm -rf "$work"
}
trap finish EXIT
fail() {
  echo "FAILED: $*"
  cat "$work/out" "$work/log" 2> /dev/null || true
  exit 1
}

"$build_dir/bin/devserverd" --listen 127.0.0.1:0 --port-file "$work/port" --simulate V100-SXM2-16GB:4 2> "$work/log" &
daemon_pid=$!
while [ ! -e "$work/port" ]; do
  kill -0 "$daemon_pid" 2> /dev/null || fail "devserverd did not start"
done
address=127.0.0.1:$(cat "$work/port")
call() {
  timeout 30 grpcurl -plaintext "$@" > "$work/out" 2>&1
}

# The README's commands, one a line, "ok" or "refused" before each.
/usr/bin/python3 - "$source_dir" > "$work/commands" <<'PYTHON'
import pathlib, shlex, sys
sys.path.insert(0, sys.argv[1] + "/tests/acceptance")
from reflection_test import readme_commands
for words, is_refused in readme_commands(pathlib.Path(sys.argv[1], "README.md").read_text()):
    print("refused" if is_refused else "ok", shlex.join(words))
PYTHON
[ -s "$work/commands" ] || fail "README.md shows no grpcurl command"
while read -r wanted command; do
  echo "  $command"
  if timeout 30 bash -c "${command//127.0.0.1:50151/$address}" > "$work/out" 2>&1; then got=ok; else got=refused; fi
  [ "$got" = "$wanted" ] || fail "$command: $got, not $wanted"
done < "$work/commands"

call "$address" list || fail "list"
for service in $(cat "$work/out"); do
  call "$address" describe "$service" || fail "describe $service"
  call "$address" list "$service" || fail "list $service"
  for method in $(cat "$work/out"); do
    call "$address" describe "$method" || fail "describe $method"
  done
done

tensors=devserver.v1.TensorService
call -d '{"shape": [6], "id": 100, "values": {"numbers": ["NaN", "Infinity", "-Infinity", -0.0, 1e-3, 5]}}' \
  "$address" $tensors/CreateTensor || fail "special numbers"
call -d '{"id": 100}' "$address" $tensors/FetchTensor || fail "fetch of special numbers"
numbers=$(sed -n '/"numbers"/,/]/p' "$work/out" | tr -d ' \n')
[ "$numbers" = '"numbers":["NaN","Infinity","-Infinity",-0,0.0010000000474974513,5]' ] || fail "got $numbers"

# A stream both ways: messages one after another.
call -d '{"commands": [{"number": 1, "create": {"id": 7, "fill": 3}}]} {"commands": [{"number": 2, "fetch": {"id": 7}}]}' \
  "$address" devserver.v1.ComputeService/Execute || fail "Execute"
grep -qE '"done_?[tT]hrough": "2"' "$work/out" || fail "Execute does not say what is done"

# A refusal shows its message and its typed detail.
if call -d '{"name": "add", "inputs": [100, 4711]}' "$address" devserver.v1.ComputeService/Apply; then fail "no refusal"; fi
grep -q 'no tensor 4711' "$work/out" || fail "the refusal does not name the tensor"
grep -q NO_SUCH_TENSOR "$work/out" || fail "the refusal's detail is not shown"
echo "all commands work"
