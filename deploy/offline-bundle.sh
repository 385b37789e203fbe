#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Fetches the packages that building and testing tarn needs into a folder, for a machine that reaches no package
# archive. It installs nothing. On the other machine: sh deploy/offline-build.sh [DIR].
#   sh deploy/offline-bundle.sh [DIR]      (offline)
# Runs on Debian 12 or Ubuntu 24.04; the other machine has the same or a later libc, and gcc and make.
set -eu
cd "$(dirname "$0")/.."
mkdir -p "${1:-offline}"
cd "${1:-offline}"

want="redis-server redis-tools libhiredis-dev libcmocka-dev libjansson-dev libxxhash-dev uthash-dev
      libncurses-dev libevent-dev libibverbs-dev pkgconf-bin"
# What libibverbs and libsystemd (of redis) need. Only minimal machines lack them.
spare="libnl-3-200 libnl-route-3-200 libcap2 libgcrypt20 libgpg-error0 liblzma5 libzstd1 liblz4-1"

# The libraries that a package depends on, except those that come with a compiler.
libraries()
{
    apt-cache depends --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances "$1" |
        sed -nE -e '/: lib(c6|gcc|stdc)/d' -e 's/^  Depends: ((lib|lua-|ibverbs-)[^<]*)$/\1/p'
}

direct=$(for p in $want; do libraries "$p"; done)
# shellcheck disable=SC2046,SC2086 # word lists
apt-get download $(printf '%s\n' $want $direct $spare | sort -u)
echo "$(find . -name "*.deb" | wc -l) packages in $PWD, $(du -sh . | cut -f 1)"
