#!/bin/bash
# Installs the Debian 12 packages that devserverd is built from.
#   deploy/install-deps.sh            what a build and the daemon need
#   deploy/install-deps.sh --tests    and what the tests, sanitizers and linters need
#   deploy/install-deps.sh --list     prints the packages, installs nothing
# Takes a fraction of a second when nothing is missing; needs root otherwise.
set -euo pipefail

build_packages=(
  g++ cmake ninja-build ccache pkg-config
  libgrpc++-dev libgrpc-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc  # the control plane
  libabsl-dev                                                                          # Status, StrFormat, containers
  libdnnl-dev libeigen3-dev librandom123-dev                                           # CPU math, random numbers
  libgoogle-perftools-dev                                                              # malloc
  libcli11-dev libtomlplusplus-dev libspdlog-dev nlohmann-json3-dev libsystemd-dev     # flags, config, logs, JSON, notify
)
test_packages=(
  libgtest-dev libgmock-dev libbenchmark-dev
  clang-19 clang-tidy-19 clang-format-19 libclang-rt-19-dev llvm-19  # TSan, libFuzzer, tidy; llvm-19 has the symbolizer
  python3 python3-grpcio python3-protobuf python3-numpy               # a client that shares no code with ours
  systemd dbus iproute2 procps                                        # the service, run under a real systemd
)

wanted=("${build_packages[@]}")
case "${1:-}" in
  "") ;;
  --tests) wanted+=("${test_packages[@]}") ;;
  --list) printf '%s\n' "${build_packages[@]}" "${test_packages[@]}"; exit 0 ;;
  *) echo "usage: deploy/install-deps.sh [--tests | --list]" >&2; exit 2 ;;
esac

fail() {
  echo "install-deps: $*" >&2
  exit 1
}

command -v dpkg-query > /dev/null || fail "no dpkg-query here: devserverd is built from Debian 12's packages"
installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${wanted[@]}" 2> /dev/null | sed -n 's/^installed //p') || true
missing=()
for package in "${wanted[@]}"; do
  grep -qxF -- "$package" <<< "$installed" || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "install-deps: all ${#wanted[@]} packages are installed"
  exit 0
fi

. /etc/os-release
[ "${VERSION_CODENAME:-}" = bookworm ] ||
  echo "install-deps: this is ${PRETTY_NAME:-not Debian}; devserverd is tested on Debian 12, trying all the same"
[ "$(id -u)" -eq 0 ] || fail "${#missing[@]} packages are missing and installing them needs root. As root:
    apt-get update && apt-get install --no-install-recommends ${missing[*]}"

echo "install-deps: installing ${#missing[@]} packages and what they need: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
install_missing() {
  apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=300 "${missing[@]}"
}
update_lists() {
  echo "install-deps: reading the package lists"
  apt-get update -q -o DPkg::Lock::Timeout=300 ||
    fail "apt-get update failed (its messages are above): check the network and /etc/apt/sources.list"
}
# A bare system has no package lists yet; old lists may name versions that are gone from the mirror.
if ! compgen -G '/var/lib/apt/lists/*_Packages*' > /dev/null; then
  update_lists
  install_missing || fail "apt-get install failed (its messages are above)"
else
  install_missing || { update_lists; install_missing || fail "apt-get install failed (its messages are above)"; }
fi
echo "install-deps: done"
