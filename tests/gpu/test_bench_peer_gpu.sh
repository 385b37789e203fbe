#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `tarn-bench peer --transport cuda_ipc` as a program, over GPUs played in shared memory: every row is measured and
# verified. Its figures mean nothing.
set -eu
build=$(cd "${TARN_BUILD:-build}" && pwd)
export TARN_BUILD="$build"
[ -e "$build/cuda-is-standin" ] || { echo "SKIP: standin: make bench-gpu is for GPUs"; exit 77; }
command -v redis-server >/dev/null || { echo "SKIP: redis: no redis-server in PATH"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

say()
{
    cat "$dir/out" "$dir/err"
    echo "$*"
    exit 1
}

# rows PATTERN: how many lines of the JSON have it
rows() { grep -c -- "$1" "$dir/peer.json" || :; }
run() { "$build/tarn-bench" peer --transport cuda_ipc --json-dir "$dir" >"$dir/out" 2>"$dir/err"; }

run || say "exit status $?"
[ "$(rows '"bench": "cuda_ipc_')" = 60 ] || say "$(rows '"bench": ') rows, not 60"
[ "$(rows '"note": "other GPU')" = 30 ] || say "there are two GPUs"
[ "$(rows '"rounds": ')" = 60 ] || say "not every row was measured"
[ "$(rows '"target": ')" = 0 ] || say "there is a target, as if the figures meant something"
[ "$(rows '"error": ')" = 0 ] || say "a row or a contestant failed"

STANDIN_DEVICES=1 run || say "exit status $? with one GPU"
[ "$(rows '"bench": ')" = 30 ] || say "$(rows '"bench": ') rows over one GPU, not 30"
