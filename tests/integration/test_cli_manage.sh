#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The tarn commands that manage tensors (rm, pin, unpin, touch, ttl) and nodes (ping, drain, config), with
# good and bad inputs; and what a node logs.
. "${0%/*}/cli.sh"

start_node node0 --pool cpu0:bytes=8M
TARN_REDIS=$(echo "$ready" | tr ' ' '\n' | sed -n 's/^redis=//p')
export TARN_REDIS
node0=$node
control=$(echo "$ready" | tr ' ' '\n' | sed -n 's/^control=//p')
head -c 100000 /dev/urandom >some
for k in kv/1 kv/2 kv/3 model/a 'odd*key'; do
    tarn put some --key "$k" -q || fail "put $k"
done

# --- keys one by one, and by a glob -----------------------------------------------------------------

for c in rm pin unpin touch ttl; do
    expect 2 $c
    says err "tarn $c: KEY is missing"
    expect 2 $c kv/1 --glob 'kv/*'
    says err "do not go together"
    expect 2 $c --glob ''
    says err "matches no key"
    expect 1 $c --glob 'nothing/*'
    says err "tarn $c: no key matches nothing/*"
    expect 2 $c 'a b'
    says err "write a%20b"
    expect 1 $c kv/9
    says err "no such key"
    expect 4 $c kv/1 --redis redis://127.0.0.1:1
done
expect 2 pin kv/1 --for-ms soon
says err "--for-ms"
expect 0 pin kv/1
says out "1 of 1 pinned"
expect 1 pin kv/1 kv/9 kv/2
says err "tarn pin: PIN key 'kv/9': no such key"
says out "2 of 3 pinned"
expect 0 pin --glob 'kv/*' --json
says out '"pinned": 3'
says out '"key": "kv/3"'
expect 0 unpin --glob 'kv/*' -q
silent out
expect 0 touch kv/1 kv/2
says out "2 of 2 touched"
expect 1 touch kv/1 kv/9
says err "tarn touch: kv/9: no such key"
says out "1 of 2 touched"

expect 0 ttl kv/1
says out "never"
expect 0 put some --key short --ttl-ms 60000 -q
expect 0 ttl short
checks=$((checks + 1))
grep -qE '^short +(59\.[0-9]|60\.0) s$' out || fail "the time left of 60 s"
expect 0 ttl --glob 's*' --json
says out '"ttl_ms": 60000'
expect 1 ttl kv/1 60
says err "60: no such key: a ttl is set when a tensor is put, \`tarn put --ttl-ms MS --replace\`"
expect 0 ttl kv/1 --json
says out '"left_ms": null'

# Eviction keeps pinned objects and removes others.
expect 0 pin model/a --for-ms 3600000
expect 0 unpin model/a
expect 0 pin kv/1
i=0
while tarn stat kv/2 >out 2>err && [ $i -lt 400 ]; do
    i=$((i + 1))
    tarn put some --key "fill/$i" -q || fail "put fill/$i"
done
[ $i -lt 400 ] || fail "nothing is evicted"
expect 0 stat kv/1
expect 0 rm --glob 'fill/*'
expect 0 ls 'fill/*'
silent out
tarn put some --key 'odd*key' --replace -q
# A backslash escapes a glob's special characters.
expect 0 rm --glob 'odd\*key'
says out "1 of 1 removed"

# --- nodes ------------------------------------------------------------------------------------------

start_node node1 --pool cpu0:bytes=8M --redis "$TARN_REDIS"
node1=$node
expect 0 ping
says out "node0"
says out " ms"
expect 0 ping node1 --json
says out '"status": "OK"'
silent_about out '"node0"'
expect 1 ping nod1
says err "no living node nod1: did you mean node"
expect 4 ping --ns empty
says err "no nodes in namespace empty"

expect 2 config
says err "NODE is missing"
expect 0 config node0
says out "eviction"
expect 0 config node0 'evict*'
says out "adaptive"
silent_about out "heartbeat"
expect 2 config node0 'nothing*'
says err "no such setting"
expect 0 config node0 log-level --json
says out '"log-level": "info"'
expect 0 config node0 log-level=debug
says out "node0: log-level=debug"
expect 0 config node0 log-level
says out "debug"
expect 6 config node0 log-level=loud
says err "CONFIG SET log-level loud: no such level: use error, warn, info or debug"
expect 2 config node0 heartbeat-ms=5
says err "heartbeat-ms cannot be changed while the node runs"
for wrong in nothing=5 =5; do
    expect 2 config node0 $wrong
    says err "is no setting of a node: CONFIG GET * lists them"
done
expect 0 config node0 log-level=error
tarn put some --key again -q && tarn rm again -q
expect 1 config node9
says err "no living node node9"

# On its host a node's user and root need no secret for config; others are not shown one.
start_node own --pool cpu0:bytes=8M --redis "$TARN_REDIS" --secret users --admin-secret boss --ns own --heartbeat-ms 20000
own=$node
expect 0 config own log-level --ns own
says out "info"
expect 0 config own log-level=debug --ns own --secret wrong
expect 2 config own heartbeat-ms=5 --ns own
says err "own: "
says err "heartbeat-ms cannot be changed while the node runs"
expect 6 ping --ns own
# drain does not end another node whose socket is at the path in the record.
redis-cli --no-auth-warning -u "$TARN_REDIS" HSET tarn:own:node:own unix "$dir/node1.sock" >/dev/null
expect 6 drain own --ns own
expect 0 ping node1
redis-cli --no-auth-warning -u "$TARN_REDIS" HSET tarn:own:node:own unix "$dir/own.sock" >/dev/null
expect 0 drain own --ns own
wait "$own" || fail "a drained node ends with $?"

# Over TCP an administrator needs a secret.
start_node admin --pool cpu0:bytes=8M --redis "$TARN_REDIS" --secret users --admin-secret boss --ns admin
mv admin.sock hidden.sock
expect 0 ping --ns admin --secret users
expect 6 config admin log-level --ns admin --secret users
says err "admin"
expect 6 config admin log-level --ns admin --admin-secret wrong
expect 0 config admin log-level --ns admin --admin-secret boss
says out "info"
TARN_ADMIN_SECRET=boss
export TARN_ADMIN_SECRET
expect 0 drain admin --ns admin --secret users
unset TARN_ADMIN_SECRET
wait "$node" || fail "a drained node ends with $?"

expect 2 drain
says err "NODE is missing"
expect 1 drain node7
expect 0 drain node1
says out "1 of 1 draining"
wait "$node1" || fail "a drained node ends with $?"
pids=$node0
until ! tarn ping node1 >out 2>err; do :; done
says err "no living node node1"

# A key is not called missing while the directory still has the record of its dead node.
start_node dead --pool cpu0:bytes=8M --redis "$TARN_REDIS" --ns dead --heartbeat-ms 20000
tarn put some --key lost --ns dead -q
kill -9 "$node"
wait "$node" 2>/dev/null
pids=$node0
expect 4 touch lost --ns dead
says err "tarn touch: lost: "
says err "cannot connect"
silent_about err "no such key"
says out "0 of 1 touched"

# --- what a node logs -------------------------------------------------------------------------------

cp node0.log out
says out "msg=\"log level was set\" level=debug"
silent_about out "level=error at=control"
checks=$((checks + 1))
! grep -qvE '^time=[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\.[0-9]{3}Z level=[a-z]+ at=' out || fail "a line without time"
says out "msg=\"node is ready\" version=$(tarn version | cut -d' ' -f2) id=node0 ns=default pid=$node0 control=$control "
says out 'pools="cpu0 8 MiB"'

TARN_SECRET=right
export TARN_SECRET
start_node shy --pool cpu0:bytes=8M --redis "$TARN_REDIS" --ns shy
expect 0 put some --key x --ns shy -q
TARN_SECRET=wrong
expect 6 put some --key y --ns shy
expect 6 ping --ns shy
cp shy.log out
says out "level=warn at=control msg=\"refused\" peer=unix:uid=$(id -u),pid="
says out 'command=HELLO left_out=0 cause="node shy: wrong secret'
silent_about out "right"

finish
