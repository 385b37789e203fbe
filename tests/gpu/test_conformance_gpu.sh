#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The conformance suite over memory of GPUs, at nodes and at clients; and of tcpx once more over a plugin that does all
# that the ABI allows. The parts run side by side, because they mostly wait.
test=${TARN_BUILD:-build}/tests/test_conformance
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# conform NAME FILTER: runs the tests whose names match. A part without tests (exit 77) is allowed, but not the first.
conform()
{
    (
        "$test" "$2"
        echo $? >"$logs/$1.status"
    ) >"$logs/$1" 2>&1 &
}

conform all gpu
TCPX_FIXTURE=gpu=1,pages=4096,cut_min=2048,accept_blocks=1,connect_blocks=1,map_unguarded=1,late_table=1
TCPX_FIXTURE=$TCPX_FIXTURE,null_requests=3,tell_sizes=1,listen_ms=700
export TCPX_FIXTURE
conform tcpx-1 'tcpx gpu-pool gpu-memory: '
conform tcpx-2 'tcpx gpu-pool host-memory: '
conform tcpx-3 'tcpx cpu-pool gpu-memory: '
wait
cat "$logs/all" "$logs"/tcpx-?
status=$(cat "$logs/all.status")
[ "$status" = 0 ] || exit "$status"
for part in 1 2 3; do
    case $(cat "$logs/tcpx-$part.status") in
    0 | 77) ;;
    *) exit 1 ;;
    esac
done
