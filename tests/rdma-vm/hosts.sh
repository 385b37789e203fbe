#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs in both of two VMs. The first VM runs Redis and a node, and obeys orders. The second runs
# tests/faults/test_rdma_hosts.c, which gives the orders:
#   $OUT/order   "N kill", "N start", "N stop", "N cont" or "N end"; $OUT/answer becomes N when it is done
set -u
listen=$ADDR
[ "$VM" = 1 ] || listen=$PEER
export TARN_REDIS="redis://$listen:6379" TARN_SECRET=between-hosts

start()
{
    "$TARN_BUILD/tarnd" --id node0 --listen "$listen:7700" --pool cpu0:bytes=64M --heartbeat-ms 3000 \
        >"$OUT/ready" 2>>"$OUT/node.log" &
    node=$!
    until grep -q '^tarnd ready' "$OUT/ready"; do
        kill -0 $node || { cat "$OUT/node.log"; exit 1; }
        sleep 0.1
    done
}

obey()
{
    case $1 in
    start) start ;;
    kill)
        kill -9 $node
        wait $node
        ;;
    stop) kill -STOP $node ;;
    cont) kill -CONT $node ;;
    esac 2>/dev/null
}

if [ "$VM" != 1 ]; then
    sh tests/run.sh "$TARN_BUILD/tests/test_rdma_hosts"
    status=$?
    echo "0 end" >"$OUT/order.new" && mv "$OUT/order.new" "$OUT/order"
    [ $status = 0 ] || cat "$OUT/node.log"
    exit $status
fi

redis-server --bind "$listen" --port 6379 --protected-mode no --save '' --appendonly no --dir /tmp >/tmp/redis.log &
redis=$!
until redis-cli -h "$listen" ping 2>/dev/null | grep -q PONG; do
    kill -0 $redis || { cat /tmp/redis.log; exit 1; }
    sleep 0.1
done
start
echo 0 >"$OUT/answer"
last=0
while :; do
    read -r n what 2>/dev/null <"$OUT/order" || n=$last
    if [ "${what:-}" = end ]; then
        break
    elif [ "$n" != "$last" ]; then
        obey "$what"
        last=$n
        echo "$n" >"$OUT/answer.new" && mv "$OUT/answer.new" "$OUT/answer"
    fi
    sleep 0.1
done
kill $node $redis
wait
