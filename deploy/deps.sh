#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what tarn is built from and tested with, on Debian 12 and Ubuntu 24.04. Installs only what
# is missing, so it is quick and needs no root the second time.
#   sh deploy/deps.sh [run|check]    run: build and run (default); check: and what the tests need
set -eu

run="build-essential pkg-config libhiredis-dev libevent-dev libibverbs-dev libcmocka-dev
     libjansson-dev libxxhash-dev uthash-dev libncurses-dev redis-server redis-tools"
check="$run clang universal-ctags mandoc memcached libmemcached-dev procps"

case "${1:-run}" in
run) want=$run ;;
check)
    want=$check
    # libFuzzer's runtime has its compiler's version in its name.
    major=$(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p' | head -n 1)
    ;;
*)
    echo "usage: deps.sh [run|check]" >&2
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

install()
{
    root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

# shellcheck disable=SC2046,SC2086 # word lists
need=$(missing $want)
if [ -n "$need" ]; then
    root apt-get update
    # A package's own start-up script may start a redis or memcached of the system; we start our own.
    # shellcheck disable=SC2086
    install $need
fi
if [ "${1:-run}" = check ]; then
    major=${major:-$(clang --version | sed -n 's/.*version \([0-9]*\).*/\1/p')}
    need=$(missing "libclang-rt-$major-dev")
    # shellcheck disable=SC2086
    [ -z "$need" ] || install $need
fi
echo "all there"
