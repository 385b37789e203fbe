#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the packages that tarn needs, on Debian 12 and Ubuntu 24.04. It installs only missing ones, so the second
# run is quick and needs no root.
#   sh deploy/deps.sh [run|check]    run: to build and run (default); check: also to test
#   sh deploy/deps.sh [run|check] --list    only lists the missing packages
set -eu

run="build-essential pkg-config libhiredis-dev libevent-dev libibverbs-dev libcmocka-dev
     libjansson-dev libxxhash-dev uthash-dev libncurses-dev redis-server redis-tools"
# shellcheck source=tests/rdma-vm/packages.sh
. "$(dirname "$0")/../tests/rdma-vm/packages.sh"
check="$run clang clang-format universal-ctags mandoc memcached libmemcached-dev procps spin $rdma_vm_packages
       mypy python3-dev python3-numpy python3-venv python3-setuptools python3-wheel"

case "${1:-run} ${2:-}" in
"run " | "run --list") want=$run ;;
"check " | "check --list") want=$check ;;
*)
    echo "usage: deps.sh [run|check] [--list]" >&2
    exit 2
    ;;
esac

if ! command -v apt-get >/dev/null; then
    echo "deps.sh: no apt-get here; install the equivalents of: $want" >&2
    exit 1
fi

missing()
{
    for p in "$@"; do
        dpkg-query -W -f '${Status}\n' "$p" 2>/dev/null | grep -q 'ok installed' || printf '%s ' "$p"
    done
}

root()
{
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        echo "deps.sh: these packages are missing and neither root nor sudo is at hand: $need" >&2
        exit 1
    fi
}

# Another apt may be at work, as on a machine that was just started: it is waited for.
update()
{
    tries=0
    until root apt-get update; do
        tries=$((tries + 1))
        [ $tries -lt 30 ] || return 1
        sleep 5
    done
}

install()
{
    root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y \
        --no-install-recommends "$@"
}

# libFuzzer's runtime, which has its compiler's version in its name.
fuzzer()
{
    [ "${1:-run}" = check ] || return 0
    apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/libclang-rt-\1-dev/p' | head -n 1
}

# shellcheck disable=SC2046,SC2086 # word lists
need=$(missing $want $(fuzzer "${1:-run}"))
if [ "${2:-}" = --list ]; then
    echo "$need"
    exit
fi
if [ -n "$need" ]; then
    update
    # What clang depends on may be known only now.
    # shellcheck disable=SC2046,SC2086
    need=$(missing $want $(fuzzer "${1:-run}"))
    # A package's own start-up script may start a redis or memcached of the system; we start our own.
    # shellcheck disable=SC2086
    install $need
fi
echo "all there"
