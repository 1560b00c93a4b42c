#!/bin/bash
# Builds devserverd and runs every test. Debian 12, as root (for packages). Quick when there is nothing to build.
#   tests/run.sh               the optimised build with asserts: all tests
#   tests/run.sh tsan dev      the presets named: dev, asan, tsan, tidy, fuzz
#   tests/run.sh --all         all of them
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/steps.sh

presets=("$@")
[ $# -gt 0 ] || presets=(dev)
[ "$*" != --all ] || presets=(tsan asan fuzz tidy dev)  # dev last: its figures are the ones to read
for preset in "${presets[@]}"; do
  case $preset in
    dev | asan | tsan | tidy | fuzz) ;;
    *) echo "tests/run.sh: no preset '$preset'; usage: tests/run.sh [--all | dev | asan | tsan | tidy | fuzz ...]" >&2; exit 2 ;;
  esac
done

folder_of() {
  [ "$1" = dev ] && echo build || echo "build-$1"
}
configure() {
  # Ninja runs CMake again by itself when a CMake file has changed.
  [ -f "$(folder_of "$1")/build.ninja" ] || cmake --preset "$1"
}

steps_begin tests $((1 + 3 * ${#presets[@]}))
step "installing packages" "Mend what apt says above, then run tests/run.sh again." deploy/install-deps.sh --tests
closing=
for preset in "${presets[@]}"; do
  step "$preset: configuring" "rm -r $(folder_of "$preset") and another run start afresh." configure "$preset"
  step "$preset: building" "" cmake --build --preset "$preset"
  if [ "$preset" = tidy ]; then
    STEPS_COUNT=$((STEPS_COUNT - 1))  # Its build is its test.
    continue
  fi
  step "$preset: testing" "One test again: ctest --test-dir $(folder_of "$preset") --output-on-failure -R NAME" \
    ctest --preset "$preset"
  closing=$(grep -E 'tests passed' "$STEP_LOG")
  echo "    $closing"
  sed -n '/The following tests did not run/,/^$/s/^/    /p' "$STEP_LOG"
done
echo "tests: logs in $STEPS_LOGS, programs in $PWD/build/bin"
echo "$closing"
