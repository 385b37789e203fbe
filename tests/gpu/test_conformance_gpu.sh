#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The conformance suite over memory of GPUs, at nodes and at clients; and of tcpx once more over a plugin that does all
# that the ABI allows. The parts run side by side, because they mostly wait.
test=${TARN_BUILD:-build}/tests/test_conformance
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
parts=0

# conform WORD...: runs the tests whose names have all the words.
conform()
{
    parts=$((parts + 1))
    {
        "$test" "$@" >"$logs/$parts" 2>&1
        echo $? >"$logs/$parts.status"
    } &
}

for transport in shm tcp rdma cuda_ipc tcpx; do
    conform "$transport " gpu
done
TCPX_FIXTURE=gpu=1,pages=4096,cut_min=2048,accept_blocks=1,connect_blocks=1,map_unguarded=1,late_table=1
TCPX_FIXTURE=$TCPX_FIXTURE,null_requests=3,tell_sizes=1,listen_ms=700
export TCPX_FIXTURE
for memory in 'gpu-pool gpu' 'gpu-pool host' 'cpu-pool gpu'; do
    conform "tcpx $memory-memory: "
done
wait
# Without GPUs no part has a test, and each says why (77).
result=77
for status in "$logs"/*.status; do
    case $(cat "$status") in
    0) [ $result != 77 ] || result=0 ;;
    77) ;;
    *) result=1 ;;
    esac
    [ $result = 77 ] || grep -v '^SKIP: ' "${status%.status}"
done
[ $result != 77 ] || cat "$logs/1"
exit $result
