# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# Sourced by tests of the tarn command. Changes to a new empty folder, $dir.
set -u
build=$(cd "${TARN_BUILD:-build}" && pwd)
command -v redis-server >/dev/null || { echo "SKIP: redis: no redis-server in PATH"; exit 77; }
unset TARN_REDIS TARN_NS TARN_SECRET TARN_TRANSPORTS TARN_TIMEOUT_MS NO_COLOR
dir=$(mktemp -d)
pids=
cleanup()
{
    for p in $pids; do
        kill "$p" 2>/dev/null && wait "$p"
    done
    rm -rf "$dir"
}
trap cleanup EXIT
cd "$dir" || exit 1

failed=0 checks=0
fail()
{
    failed=$((failed + 1))
    echo "FAILED: $*"
    sed 's/^/    out: /' "$dir/out"
    sed 's/^/    err: /' "$dir/err"
}
tarn() { "$build/tarn" "$@"; }
# expect STATUS ARGUMENT...: runs tarn and checks its status. Its output goes to the files out and err.
expect()
{
    want=$1 got=0
    shift
    checks=$((checks + 1))
    tarn "$@" >"$dir/out" 2>"$dir/err" </dev/null || got=$?
    [ "$got" = "$want" ] || fail "tarn $*: exit $got, want $want"
}
# says FILE TEXT: checks that the last run wrote TEXT to FILE.
says()
{
    checks=$((checks + 1))
    grep -qF -- "$2" "$dir/$1" || fail "nothing says \"$2\""
}
silent()
{
    checks=$((checks + 1))
    [ ! -s "$dir/$1" ] || fail "$1 is not empty"
}
silent_about()
{
    checks=$((checks + 1))
    ! grep -qF -- "$2" "$dir/$1" || fail "something says \"$2\""
}
same()
{
    checks=$((checks + 1))
    cmp "$1" "$2" || fail "$1 and $2 differ"
}
# start_node ID ARGUMENT...: sets node (pid) and ready. Redis has more time to answer than by default.
start_node()
{
    id=$1
    shift
    mkfifo "$dir/$id.ready"
    "$build/tarnd" --id "$id" --listen 127.0.0.1:0 --unix "$dir/$id.sock" --redis-timeout-ms 20000 "$@" \
        >"$dir/$id.ready" 2>"$dir/$id.log" &
    node=$!
    pids="$node $pids"
    if ! read -r ready <"$dir/$id.ready"; then
        cat "$dir/$id.log"
        echo "FAILED: $id does not start"
        exit 1
    fi
}
# start_redis NAME [OPTION...]: listens on the Unix socket NAME.sock in $dir; on a port only with an option.
start_redis()
{
    name=$1
    shift
    redis-server --port 0 --unixsocket "$dir/$name.sock" --save '' --appendonly no "$@" >"$dir/$name.log" 2>&1 &
    pids="$! $pids"
    until redis-cli -s "$dir/$name.sock" PING >/dev/null 2>&1; do
        kill -0 "$!" 2>/dev/null || { cat "$dir/$name.log"; echo "FAILED: redis-server $name"; exit 1; }
    done
}
# Prints the number of checks. Returns the exit status of the test.
finish()
{
    echo "$checks checks"
    [ $failed = 0 ]
}
