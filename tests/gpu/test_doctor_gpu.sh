#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tarn doctor gpu-driven, over the GPUs of this machine or played ones: each GPU reads memory that is registered
# read-only. Played ones also miss each thing in turn.
. "${0%/*}/../integration/cli.sh"
unset STANDIN_VISIBLE STANDIN_PEERS STANDIN_FAIL STANDIN_CUDA

tarn doctor gpu-driven >"$dir/out" 2>"$dir/err"
grep -q '^GPU 0 ' "$dir/out" || { echo "SKIP: gpu: $(sed -n 's/^GPU  *missing *//p' "$dir/out")"; exit 77; }
says out "GPU 0 reads CPU pools"
says out "works: a kernel has read some"
silent_about out "GPU 0 reads CPU pools: "

if [ -e "$build/cuda-is-standin" ]; then
    expect 0 doctor gpu-driven
    says out "Stand-in 1, PCI unknown"
    says out "GPU 1 reads CPU pools"
    silent_about out "GPU 1 reaches GPUs: "
    says out "all that is needed is there"
    export STANDIN_PEERS=0
    expect 0 doctor gpu-driven
    says out "none, not 1"
    says out "GPU 1 reaches GPUs: without peer access tables say NOT_REACHABLE"
    unset STANDIN_PEERS
    for what in pin gather; do
        export STANDIN_FAIL="$what:*"
        expect 6 doctor gpu-driven
        says out "GPU 0 reads CPU pools: a CPU pool is registered with CUDA read-only"
        says err "2 things that tarn needs are missing"
    done
    unset STANDIN_FAIL
    export STANDIN_CUDA=12010
    expect 6 doctor gpu-driven
    says out "12.1"
    says out "CUDA of the driver: use a newer driver"
    says out "CUDA of this build: install a newer CUDA toolkit"
fi

finish
