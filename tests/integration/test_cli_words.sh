#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The programs' sentences name the variable or option to set and the source of a value. --json has the right
# form for errors, pins and large numbers.
. "${0%/*}/cli.sh"

# --- where Redis's address came from ----------------------------------------------------------------

# A port without a listener, because the default port may be in use here.
expect 4 ls --redis redis://127.0.0.1:1
silent_about err "TARN_REDIS"
TARN_REDIS=redis://127.0.0.1:1
export TARN_REDIS
expect 4 ls
says err "tarn ls: redis at redis://127.0.0.1:1: cannot connect"
says err "this address is TARN_REDIS's"
unset TARN_REDIS
if ! redis-cli -p 6379 PING >out 2>err; then
    expect 4 ls
    says err "no address was given: set TARN_REDIS to the one that tarnd has printed"
fi
TARN_REDIS=nonsense
export TARN_REDIS
expect 6 ls
says err "this address is TARN_REDIS's"
expect 6 ls --redis ''
says err "redis: the address is empty: give the one that tarnd has printed"
expect 6 ls --ns 'a b'
silent_about err "TARN_REDIS"
unset TARN_REDIS

# --- secrets and namespaces -------------------------------------------------------------------------

expect 2 ls --secret ''
says err "--secret: is empty: give a secret, or leave it out"
"$build/tarnd" --secret '' >out 2>err && fail "tarnd with an empty secret"
says err "tarnd: --secret: is empty"
start_node node0 --pool cpu0:bytes=16M --secret hidden
TARN_REDIS=$(echo "$ready" | tr ' ' '\n' | sed -n 's/^redis=//p')
export TARN_REDIS
printf 'four' >some
expect 6 put some
says err "node node0 wants a secret and was shown none: set TARN_SECRET or give --secret"
expect 6 put some --secret wrong
says err "wrong secret"
silent_about err "hidden"
silent_about err "environment"
TARN_SECRET=wrong
export TARN_SECRET
expect 6 put some
says err "wrong secret: give the one the node was started with"
says err "; TARN_SECRET is set in the environment"
TARN_SECRET=hidden
export TARN_SECRET
expect 0 put some -q
expect 0 put some --key pinned --pin -q
TARN_NS=other
export TARN_NS
for c in get stat pin ttl; do
    expect 1 $c some
    says err "no such key; TARN_NS=other is set in the environment"
done
expect 1 rm --glob 's*'
says err "no key matches s*; TARN_NS=other is set in the environment"
expect 4 rm some --timeout-ms 600000
says err "no node in the client's namespace"
says err "; TARN_NS=other is set in the environment"
expect 4 ping
says err "no nodes in namespace other: start one"
says err "; TARN_NS=other is set in the environment"
expect 1 stat some --ns third
silent_about err "environment"
unset TARN_NS
expect 1 stat nothing
silent_about err "environment"
TARN_TRANSPORTS=xyz
export TARN_TRANSPORTS
expect 6 get some -o got
says err "name one of shm, cuda_ipc, rdma, tcpx, tcp; TARN_TRANSPORTS=xyz is set in the environment"
expect 0 get some -o got --transports shm
unset TARN_TRANSPORTS

# --- a node's file, and what takes its place --------------------------------------------------------

printf 'heartbeat-ms = 500\nscrub-s = 60\n' >conf
TARN_HEARTBEAT_MS=400 "$build/tarnd" --config conf --print-conf --scrub-s 70 >out 2>err
grep '^heartbeat-ms = 400 .*# from env, over the file$' out >err || fail "--print-conf does not say what was overridden"
grep '^scrub-s = 70 .*# from flag$' out >err || fail "a flag is given for what it is"
TARN_HEARTBEAT_MS=400
export TARN_HEARTBEAT_MS
start_node second --ns second --pool cpu0:bytes=16M --config conf --redis "$TARN_REDIS"
unset TARN_HEARTBEAT_MS
cp second.log out
says out "has taken the place of a setting of the file\" setting=heartbeat-ms variable=TARN_HEARTBEAT_MS"
silent_about out "setting=scrub-s"

# --- pins -------------------------------------------------------------------------------------------

expect 0 ls -l
grep -qE '^some +.* - +node0/cpu0$' out || fail "ls -l: not pinned"
grep -qE '^pinned +.* yes +node0/cpu0$' out || fail "ls -l: pinned"
expect 0 pin some --for-ms 100000
expect 0 ls -l some
grep -qE ' 1m 3?[0-9]s +node0/cpu0$' out || fail "ls -l: pinned for a while"
expect 0 stat pinned
says out "pin      yes"
expect 0 stat some --json
says out '"pinned": true'
grep -qE '"pin_left_ms": [0-9]{5}' out || fail "stat --json: no time that is left"
expect 0 unpin some
expect 0 ls some --json
says out '"pinned": false'
says out '"pin_left_ms": 0'
expect 0 stat pinned --json
says out '"pin_left_ms": null'

# --- JSON -------------------------------------------------------------------------------------------

grep -qE '"version": "[0-9]+"' out || fail "a version is a number that readers round"
expect 1 rm nothing --json
says err '{"error":{"command":"tarn rm","code":"NOT_FOUND","message":"remove key '"'nothing'"': no such key"}}'
expect 2 pt --json
says err '{"error":{"command":"tarn","code":"INVALID","message":"no command'
expect 2 ls --nope --json
says err '{"error":{"command":"tarn ls","code":"INVALID","message":"--nope: no such option'
expect 2 put nofile -j
says err '{"error":{"command":"tarn put"'
expect 0 ls some -- # no JSON is asked for
says out some
expect 1 stat -- --json
says err "tarn stat: "

finish
