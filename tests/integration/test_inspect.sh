#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs every command of docs/inspect.md against a live node. Each must print something other than an error,
# and each group of commands must print the text of its comment "shows:". Redis has the users of
# deploy/redis-acl.conf; node, client and reader have no other rights. Redis's log of refusals must stay
# empty, also when Redis is paused or restarted.
set -eu
here=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${TARN_BUILD:-build}" && pwd)
for p in redis-server redis-cli; do
    command -v $p >/dev/null || { echo "SKIP: redis: no $p in PATH"; exit 77; }
done
case $(redis-server --version) in *v=6.0*) echo "SKIP: redis-7: Redis 6.0 has no rights on channels"; exit 77 ;; esac
dir=$(mktemp -d)
node= redis= lender=
end_lender()
{
    [ -z "$lender" ] || { kill "$lender" && wait "$lender" || :; }
    lender=
}
cleanup()
{
    end_lender
    [ -z "$node" ] || { kill "$node" && wait "$node" || :; }
    [ -z "$redis" ] || { kill "$redis" && wait "$redis" || :; }
    rm -rf "$dir"
}
trap cleanup EXIT
unset TARN_REDIS TARN_NS TARN_SECRET TARN_TRANSPORTS

# The file as it is shipped, with its passwords, and a user for this script.
{
    cat "$here/deploy/redis-acl.conf"
    echo 'user test on >test ~* &* +@all'
} >"$dir/redis.conf"
as() { echo "redis://$1@127.0.0.1:$port"; }
admin() { redis-cli --no-auth-warning -u "$(as test:test)" "$@"; }
# Sets redis (pid). Fails if the port is in use.
start_redis()
{
    redis-server "$dir/redis.conf" --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/redis.log" 2>&1 &
    redis=$!
    while kill -0 $redis 2>/dev/null; do
        [ "$(admin PING 2>/dev/null)" != PONG ] || return 0
        sleep 0.05
    done
    wait $redis || :
    redis=
    return 1
}
n=0
until port=$((20000 + ($$ * 7 + n * 1009) % 12000)) && start_redis; do
    n=$((n + 1))
    [ $n -lt 20 ] || { cat "$dir/redis.log"; exit 1; }
done

# start_node ID: sets pid and ready.
start_node()
{
    mkfifo "$dir/$1.ready"
    "$build/tarnd" --id "$1" --pool cpu0:bytes=16M --listen 127.0.0.1:0 --unix "$dir/$1.sock" \
        --redis "$(as tarn-node:CHANGE-ME-NODE)" --heartbeat-ms 200 --redis-timeout-ms 300 --scrub-s 1 \
        >"$dir/$1.ready" 2>"$dir/$1.log" &
    pid=$!
    read -r ready <"$dir/$1.ready" || { cat "$dir/$1.log"; exit 1; }
}
start_node node0
node=$pid
field() { echo "$ready" | tr ' ' '\n' | sed -n "s/^$1=//p"; }
REDIS=$(as tarn-viewer:CHANGE-ME-VIEWER) NODE=$(field unix)
export REDIS NODE
TARN_REDIS=$(as tarn-client:CHANGE-ME-CLIENT)
export TARN_REDIS

head -c 24 /dev/zero >"$dir/w"
"$build/tarn" put "$dir/w" --key model/layer0.w --dtype f32 --shape 2,3 --quiet
"$build/tarn" put "$dir/w" --key other --quiet

# start_lender: sets lender (pid). It lends a window as a client, with a lease named kv.
start_lender()
{
    rm -f "$dir/in" "$dir/lends"
    mkfifo "$dir/in" "$dir/lends"
    "$build/tests/lender" r 4096 0 kv <"$dir/in" >"$dir/lends" &
    lender=$!
    exec 3>"$dir/in"
    read -r _ <"$dir/lends" || { echo "nothing is lent"; exit 1; }
}
start_lender

# Lines "shows<TAB>text" and "run<TAB>command", in order.
awk '/^<!-- shows: / { sub(/^<!-- shows: /, ""); sub(/ -->$/, ""); print "shows\t" $0 }
     /^```/ { inside = ($0 == "```sh"); next }
     inside && NF { print "run\t" $0 }' "$here/docs/inspect.md" >"$dir/steps"
tab=$(printf '\t')
failed=0 runs=0 shows=
: >"$dir/group"
check_group()
{
    [ -z "$shows" ] || grep -qF -- "$shows" "$dir/group" ||
        { echo "nothing shows \"$shows\" in:"; cat "$dir/group"; failed=1; }
    : >"$dir/group"
}
while IFS=$tab read -r what text; do
    if [ "$what" = shows ]; then
        check_group
        shows=$text
        continue
    fi
    runs=$((runs + 1))
    sh -c "$text" >"$dir/out" 2>"$dir/err" </dev/null || [ $? = 124 ] || { echo "failed: $text"; failed=1; }
    cat "$dir/out" >>"$dir/group"
    if [ ! -s "$dir/out" ] || grep -qE '^(ERR|NOPERM|NOAUTH|WRONGTYPE|AUTH|INVALID|\(error\))' "$dir/out"; then
        echo "no answer: $text"
        cat "$dir/out" "$dir/err"
        failed=1
    fi
done <"$dir/steps"
check_group
"$build/tarn" ls --windows >"$dir/out" 2>&1 && grep -qx kv "$dir/out" || { echo "ls --windows"; cat "$dir/out"; failed=1; }
end_lender
exec 3>&-

# --- the rights of node and client ------------------------------------------------------------------

must()
{
    "$@" >"$dir/out" 2>"$dir/err" || { echo "failed: $*"; cat "$dir/out" "$dir/err"; failed=1; }
}
# Repeats a command until it works.
eventually()
{
    tries=0
    until "$@" >"$dir/out" 2>"$dir/err"; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || { echo "never: $*"; cat "$dir/out" "$dir/err"; failed=1; return; }
        sleep 0.1
    done
}
tarn() { "$build/tarn" "$@"; }
must tarn put "$dir/w" --key other --replace
must tarn put "$dir/w" --key short --ttl-ms 1
must tarn get other -o "$dir/back"
must cmp "$dir/w" "$dir/back"
must tarn stat other
must tarn info
must tarn top --once --interval-ms 50
must tarn doctor
must tarn events --for-ms 50
must tarn rm other
must tarn ls --redis "$TARN_REDIS/1"
start_node node1
must tarn put "$dir/w" --key twice --replicas 2
must tarn rm twice
kill "$pid" && wait "$pid" || { echo "node1 did not end well"; failed=1; }
# A node that gave up a script closes that connection before the next script.
must admin CLIENT PAUSE 60000 WRITE
tarn put "$dir/w" --key paused --timeout-ms 5000 >"$dir/out" 2>&1 && { echo "a put while Redis is paused"; failed=1; }
must admin CLIENT UNPAUSE
eventually tarn put "$dir/w" --key paused --replace
# Redis restarts empty, and the node publishes again.
refused() { admin ACL LOG | grep . >"$dir/refused" && { echo "refused:"; cat "$dir/refused"; failed=1; } || :; }
refused
kill "$redis" && wait "$redis" || :
start_redis
eventually tarn get paused -o "$dir/back"
must cmp "$dir/w" "$dir/back"
kill "$node" && wait "$node" || { echo "the node did not end well"; failed=1; }
node=
refused

# A user that only reads cannot write, block Redis, or see other keys.
admin SET other-program 1 >"$dir/out"
for who in tarn-client:CHANGE-ME-CLIENT tarn-viewer:CHANGE-ME-VIEWER; do
    for c in "HSET tarn:default:o:other a b" "DEL tarn:default:o:other" "SET tarn:x 1" "FLUSHALL" "KEYS tarn" \
        "PUBLISH tarn:default:events x" "CLIENT PAUSE 1" "CLIENT KILL ID 1" "CONFIG GET port" \
        "HGETALL other-program" "SUBSCRIBE other"; do
        # shellcheck disable=SC2086 # words of a command
        timeout 5 redis-cli --no-auth-warning -u "$(as $who)" $c >"$dir/out" 2>&1 || :
        grep -q '^NOPERM' "$dir/out" || { echo "${who%%:*} may $c"; failed=1; }
    done
done

echo "$runs commands"
[ $runs -ge 20 ] && [ $failed = 0 ]
