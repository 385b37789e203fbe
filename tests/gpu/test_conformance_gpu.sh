#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The conformance suite over memory of GPUs, at nodes and at clients; and of tcpx once more over a plugin that does all
# that the ABI allows.
test=${TARN_BUILD:-build}/tests/test_conformance
"$test" gpu || exit
TCPX_FIXTURE=gpu=1,pages=4096,cut_min=2048,accept_blocks=1,connect_blocks=1,map_unguarded=1,late_table=1
TCPX_FIXTURE=$TCPX_FIXTURE,null_requests=3,tell_sizes=1,listen_ms=700
export TCPX_FIXTURE
for memory in 'gpu-pool gpu' 'gpu-pool host' 'cpu-pool gpu'; do
    "$test" "tcpx $memory-memory: "
    case $? in
    0 | 77) ;;
    *) exit 1 ;;
    esac
done
