#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds and tests with the packages that deploy/offline-bundle.sh fetched, as a user, without installing them:
# missing packages are unpacked into $B-offline, and the environment points there.
#   sh deploy/offline-build.sh [DIR [TARGET...]]      (offline check-gpu)
#   B=, CUDA=, REQUIRE=, BENCH_ARGS= and the like are passed to make
set -eu
cd "$(dirname "$0")/.."
packages=$(cd "${1:-offline}" && pwd)
[ $# = 0 ] || shift
export B="${B:-build}"
mkdir -p "$B-offline"
root=$(cd "$B-offline" && pwd)
arch=$(${CC:-cc} -print-multiarch)

unpack()
{
    for p in "$@"; do
        for f in "$packages"/$p; do
            [ -e "$f" ] || continue
            echo "  UNPACK ${f##*/}"
            dpkg -x "$f" "$root"
        done
    done
}

# header FILE PACKAGE...: unpacks those unless the compiler finds the header.
header()
{
    name=$1
    shift
    printf '#include <%s>\n' "$name" | ${CC:-cc} -E -x c - >/dev/null 2>&1 || unpack "$@"
}

prepend()
{
    eval "old=\${$1:-}"
    export "$1=$2${old:+:$old}"
}

prepend PATH "$root/usr/bin:$root/usr/sbin"
prepend C_INCLUDE_PATH "$root/usr/include:$root/usr/include/$arch"
prepend LIBRARY_PATH "$root/usr/lib/$arch:$root/lib/$arch"
prepend LD_LIBRARY_PATH "$root/usr/lib/$arch:$root/lib/$arch"
prepend PKG_CONFIG_PATH "$root/usr/lib/$arch/pkgconfig:$root/usr/share/pkgconfig"

header hiredis/hiredis.h 'libhiredis*'
header cmocka.h 'libcmocka*'
header jansson.h 'libjansson*'
header xxhash.h 'libxxhash*'
header uthash.h 'uthash-dev*'
header ncurses.h 'libncurses*' 'libtinfo*'
header event2/event.h 'libevent*'
header infiniband/verbs.h 'libibverbs*' 'ibverbs-providers*' 'libnl-*'
if ! command -v pkg-config >/dev/null; then
    unpack 'pkgconf-bin*' 'libpkgconf*'
    ln -sf pkgconf "$root/usr/bin/pkg-config"
fi
command -v redis-server >/dev/null || unpack 'redis-*' 'libatomic1*' 'libjemalloc2*' 'liblzf1*' 'liblua*' 'lua-*'
# Only if redis-server lacks libraries: otherwise these would replace the ones that other programs here are linked with.
if ldd "$(command -v redis-server)" | grep -q 'not found'; then
    unpack 'libssl*' 'libsystemd0*' 'libcap2*' 'libgcrypt20*' 'libgpg-error0*' 'liblzma5*' 'libzstd1*' 'liblz4*'
fi

make -j"$(nproc)" all tests
make -k "${@:-check-gpu}"
