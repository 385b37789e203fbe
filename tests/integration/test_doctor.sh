#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tarn doctor does what a client does. It fails and names the remedy without Redis, with a Redis that cannot
# be the directory, without a node, without a GPU if asked about those, and with a wrong secret. It puts and gets in each pool. It leaves no
# objects and evicts none.
. "${0%/*}/cli.sh"

# --- no Redis, and others than one alone --------------------------------------------------------------

# An address without a listener, because something may listen at the default one.
expect 6 doctor --redis "unix://$dir/none.sock"
says out "something needed is missing"
says out "Redis: start redis-server, or tarnd without --redis"

# --- what kernels need that read the store by themselves: no Redis, and here no GPU ------------------------

export CUDA_VISIBLE_DEVICES= STANDIN_VISIBLE=
expect 6 doctor gpu-driven
for row in kernel "NVIDIA driver" "CUDA of the driver" "CUDA of this build" OFED "GPU: see the sentence"; do
    says out "$row"
done
silent_about out Redis
expect 6 doctor gpu-driven --json
says out '"name": "GPU"'
says out '"state": "missing"'
expect 2 doctor gpu-drive
says err "give tcpx or gpu-driven"
expect 2 doctor gpu-driven tcpx
unset CUDA_VISIBLE_DEVICES STANDIN_VISIBLE

chmod 0755 "$dir"
start_redis main --unixsocketperm 777
start_redis cluster --cluster-enabled yes --cluster-config-file "$dir/nodes.conf" --port 0
expect 6 doctor --redis "unix://$dir/cluster.sock"
says out "Redis mode: tarn's scripts touch keys of several hash slots: give a Redis with cluster-enabled no"

: >"$dir/sentinel.conf"
redis-server "$dir/sentinel.conf" --sentinel --port 0 --unixsocket "$dir/sentinel.sock" >"$dir/sentinel.log" 2>&1 &
pids="$! $pids"
until redis-cli -s "$dir/sentinel.sock" PING >/dev/null 2>&1; do
    kill -0 "$!" 2>/dev/null || { cat "$dir/sentinel.log"; echo "FAILED: no sentinel"; exit 1; }
done
expect 6 doctor --redis "unix://$dir/sentinel.sock"
says out "Redis mode: it is a Sentinel, which has no data: give the address"

start_redis replica --replicaof 127.0.0.1 1
expect 6 doctor --redis "unix://$dir/replica.sock"
says out "replica of 127.0.0.1:1"
says out "Give the address of the primary: redis://127.0.0.1:1"

# --- nodes ---------------------------------------------------------------------------------------------

export TARN_REDIS="unix://$dir/main.sock"
expect 6 doctor
says out "clock of Redis"
says out "nodes: start tarnd with the same --redis and --ns"

start_node node0 --pool cpu0:bytes=16M --pool small:bytes=1M
expect 0 doctor
for row in "node node0" "clock of node node0" "node0/cpu0 by shm" "node0/small by shm" "node0/cpu0 by tcp"; do
    says out "$row"
done
says out " ms, get "
says out "all that is needed is there"
expect 0 doctor --transports tcp
silent_about out "by shm"
expect 0 ls
silent out
expect 0 doctor --json
says out '"node0/cpu0 by tcp"'

# tcpx is tried only if it is named. Only its row has the transport's own remedy.
export TARN_TCPX_PLUGIN="$build/tests/tcpx/libtcpx-fixture-v7.so"
expect 0 doctor
says out "not tried, since a plugin may end the process: name it, --transports tcpx"
start_node node2 --pool cpu0:bytes=16M
expect 0 doctor --transports tcpx,tcp
says out "node2/cpu0 by tcpx"
TCPX_FIXTURE=setup_ms=600000 TARN_TCPX_STALL_MS=100
export TCPX_FIXTURE TARN_TCPX_STALL_MS
expect 6 doctor --transports tcpx,tcp
says out "node2/cpu0 by tcpx: run \`tarn doctor tcpx\` here and on the node's host"
silent_about out "by tcp: "
unset TARN_TCPX_PLUGIN TCPX_FIXTURE TARN_TCPX_STALL_MS

# Nothing is evicted: the pool is full of evictable objects, and all of them remain.
head -c 65536 /dev/zero >"$dir/block"
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do
    tarn put "$dir/block" --key "fill$i" --place node0/small -q || fail "put $i"
done
expect 0 doctor
says out "node0/small by tcp: see \`tarn info\`"
says out "not tried: nearly full"
checks=$((checks + 1))
[ "$(tarn ls 'fill*' | wc -l)" = 16 ] || fail "not 16 objects: $(tarn ls 'fill*')"

# --- secrets ---------------------------------------------------------------------------------------------

start_node node1 --pool cpu0:bytes=16M --secret right
expect 6 doctor
says out "node node1: show the secret that tarnd was started with: TARN_SECRET=..., or --secret; omit it if the node generated its own"
says out "node0/cpu0 by tcp"
silent_about out "node1/cpu0 by tcp"
expect 6 doctor --secret wrong
says out "node node1: show the secret"
expect 0 doctor --secret right
says out "node1/cpu0 by tcp"

finish
