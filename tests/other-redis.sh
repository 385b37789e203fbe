#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of the directory with other servers than the installed one: Redis 6.0 and 8.0, Valkey 8.1, from
# Debian's packages, each with the libraries of its own release. Reports "skipped: redis-versions" where they
# cannot be downloaded. make check-redis SERVERS="valkey-8.1"; REQUIRE=redis-versions makes the skip a failure.
#   other-redis.sh FOLDER TEST...     FOLDER keeps the servers
set -eu
folder=$1
shift
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
here=$(dirname "$0")
arch=$(uname -m)
libraries="libatomic1 libc6 libcap2 libgcc-s1 libgcrypt20 libgpg-error0 libjemalloc2 liblz4-1 liblzf1 liblzma5
    libstdc++6 libsystemd0 libzstd1 zlib1g"

# apt RELEASE COMMAND...: apt-get with the packages of that release alone.
apt()
{
    release=$1
    shift
    apt-get -qq -o Dir::Etc::SourceList="$folder/$release/sources.list" -o Dir::Etc::SourceParts=- \
        -o Dir::State="$folder/$release/state" -o Dir::State::Status=/dev/null \
        -o Dir::Cache="$folder/$release/cache" -o APT::Sandbox::User=root "$@"
}

# fetch RELEASE PACKAGE...: unpacks them into FOLDER/RELEASE/root.
fetch()
{
    release=$1
    shift
    mkdir -p "$folder/$release/state/lists/partial" "$folder/$release/cache/archives/partial" "$folder/$release/deb"
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep '/debian/*$' | head -n 1)
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $release main" \
        >"$folder/$release/sources.list"
    apt "$release" update && (cd "$folder/$release/deb" && apt "$release" download "$@") || return 1
    for package in "$folder/$release/deb"/*.deb; do
        dpkg -x "$package" "$folder/$release/root" || return 1
    done
}

# server NAME RELEASE PROGRAM PACKAGE...: FOLDER/NAME/redis-server runs PROGRAM of the package with its name; the
# other packages are what it needs.
server()
{
    name=$1 release=$2 program=$3
    shift 3
    [ ! -x "$folder/$name/redis-server" ] || return 0
    # shellcheck disable=SC2086 # a list
    fetch "$release" "$program" "$@" $libraries || return 1
    root=$folder/$release/root
    mkdir -p "$folder/$name"
    printf '#!/bin/sh\nexec %s --library-path %s %s "$@"\n' \
        "$(find "$root" -type f -name 'ld-*.so*' | head -n 1)" \
        "$root/lib/$arch-linux-gnu:$root/usr/lib/$arch-linux-gnu" "$root/usr/bin/$program" >"$folder/$name/redis-server"
    chmod +x "$folder/$name/redis-server"
}

failed=0
for name in ${SERVERS:-redis-6.0 redis-8.0 valkey-8.1}; do
    case $name in
    redis-6.0) set_up="server $name bullseye redis-server redis-tools liblua5.1-0 libssl1.1 lua-bitop lua-cjson" ;;
    redis-8.0) set_up="server $name trixie redis-server redis-tools libssl3t64" ;;
    valkey-8.1) set_up="server $name trixie valkey-server valkey-tools libssl3t64" ;;
    *) echo "SERVERS=$name: choose of redis-6.0, redis-8.0, valkey-8.1" >&2; exit 2 ;;
    esac
    if ! $set_up >"$folder/$name.log" 2>&1; then
        echo "skipped: redis-versions: $name cannot be downloaded: $(tail -n 1 "$folder/$name.log")"
        case ",${REQUIRE:-}," in *,redis-versions,*) failed=1 ;; esac
        continue
    fi
    "$folder/$name/redis-server" --version
    PATH="$folder/$name:$PATH" sh "$here/run.sh" -j "${JOBS:-1}" "$@" || failed=1
done
exit $failed
