#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tarn ls --windows: names of leases that other processes lend, as they are in Redis, without their tokens.
. "${0%/*}/cli.sh"

start_redis redis
TARN_REDIS=unix://$dir/redis.sock
export TARN_REDIS
redis() { redis-cli -s "$dir/redis.sock" "$@"; }
start_node node0 --pool cpu0:bytes=16M --heartbeat-ms 500
start_node node1 --pool cpu0:bytes=16M --heartbeat-ms 500 --ns other

# lend ARGUMENT...: starts a lender (pid in lender) with its input at descriptor 3.
lend()
{
    rm -f in lends
    mkfifo in lends
    "$build/tests/lender" "$@" <in >lends &
    lender=$!
    pids="$lender $pids"
    exec 3>in 4<lends
    read -r word <&4 && [ "$word" = ready ] || { echo "FAILED: lender $*"; exit 1; }
}
# No token of any entry is in the output.
no_token()
{
    checks=$((checks + 1))
    for key in $(redis --scan --pattern 'tarn:*:w:*'); do
        token=$(redis GET "$key" | cut -d' ' -f14)
        [ -z "$token" ] || ! grep -qE "$(echo "$token" | cut -c1-32)|$(echo "$token" | cut -c33-64)" out err ||
            fail "the token of $key is shown"
    done
}
is()
{
    checks=$((checks + 1))
    [ "$(cat out)" = "$1" ] || fail "want \"$1\""
}
# eventually_none NAME: waits until there is no such key in Redis.
eventually_none()
{
    tries=0
    while [ "$(redis EXISTS "$1")" = 1 ]; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || { fail "$1 stays"; return; }
        sleep 0.1
    done
}

# --- none ---------------------------------------------------------------------------------------------

expect 0 ls --windows
silent out
expect 0 ls --windows -l
is "0 names"
expect 0 ls --windows --json
says out '"windows": []'

# --- one, for writing; keys are not names, nor names keys ------------------------------------------------

head -c 8 /dev/zero >value
expect 0 put value --key a-key --quiet
lend rw 8192 0 kv
expect 0 ls --windows
is kv
no_token
expect 0 ls -w -l
says out "NAME"
checks=$((checks + 1))
grep -qE '^kv +8 KiB +cpu +rw +[0-9.]+ m?s +here +[0-9a-f]{16} at 127\.0\.0\.1:[0-9]+$' out || fail "the row of kv"
says out "1 name"
no_token
expect 0 ls --windows --json
for text in '"name": "kv"' '"bytes": 8192' '"kind": "cpu"' '"access": "rw"' '"same_host": true' '"ttl_ms": ' \
    "\"lender\": \"$(redis GET tarn:default:w:kv | cut -d' ' -f7)\"" \
    "\"address\": \"$(redis GET tarn:default:w:kv | cut -d' ' -f4)\"" \
    "\"unix_path\": \"$(redis GET tarn:default:w:kv | cut -d' ' -f5)\""; do
    says out "$text"
done
no_token
expect 0 ls
is a-key
# Another namespace has none.
expect 0 ls --windows --ns other
silent out

# A name ends with its lease.
echo recall >&3
read -r word <&4
checks=$((checks + 1))
[ "$word" = recalled ] || fail "recall: $word"
expect 0 ls --windows
silent out
exec 3>&- 4<&-
wait "$lender"

# --- many, with a time; globs --------------------------------------------------------------------------

# shellcheck disable=SC2046 # a list of words
lend r 4096 3600000 $(seq -f 'n%02.0f' 20 -1 1) other
expect 0 ls --windows
is "$(seq -f 'n%02.0f' 1 20; echo other)"
expect 0 ls --windows 'n0*' --long
says out "n09"
says out "9 names"
silent_about out other
silent_about out n10
no_token
expect 0 ls --windows 'x*'
silent out
exec 3>&- 4<&-
wait "$lender"

# --- expiry: the node takes the name away while the lender lives ------------------------------------------

lend r 4096 1000 short
eventually_none tarn:default:w:short
expect 0 ls --windows short
silent out
exec 3>&- 4<&-
wait "$lender"

# --- what is no descriptor, one of another host, one that was altered --------------------------------------

redis SET tarn:default:w:word 'hunter2-password' >/dev/null
redis SET tarn:default:w:altered "tarn-window 1 default 10.0.0.1:1 - host 1 0 0 2 3 cpu r hunter2-password 0" >/dev/null
redis HSET tarn:default:w:hash hunter2-password x >/dev/null
redis SET 'tarn:default:w:no name' x >/dev/null
expect 0 ls --windows -l
for name in altered hash word; do
    checks=$((checks + 1))
    grep -qE "^$name +\? +\? +\?" out || fail "the row of $name"
done
says out "3 names"
silent_about out hunter2
expect 0 ls --windows --json
for member in bytes kind access same_host lender address unix_path; do
    says out "\"$member\": null"
done
silent_about out hunter2
silent err

# --- wrong uses ---------------------------------------------------------------------------------------

expect 2 ls --windows a b
says err 'too many arguments ("b")'
expect 2 ls --window
says err "did you mean --windows?"
expect 4 ls --windows --redis redis://127.0.0.1:1
says err "redis at redis://127.0.0.1:1"
expect 0 ls --help
says out "--windows"
tarn --man >out
says out "windows"
finish
