#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `tarn-bench gpu` as a program, over GPUs played in shared memory: every row is measured and verified, and
# says that its figures mean nothing.
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

# run EXPECTED_STATUS
run()
{
    status=0
    "$build/tarn-bench" gpu --json-dir "$dir" >"$dir/out" 2>"$dir/err" || status=$?
    [ $status = "$1" ] || say "exit status $status, not $1"
}

# rows PATTERN: how many lines of the JSON have it
rows() { grep -c "$1" "$dir/gpu.json" || :; }

run 0
[ "$(rows '"bench": ')" = 65 ] || say "$(rows '"bench": ') rows, not 65"
[ "$(rows '"cuda": ".*STAND-IN.*mean nothing"')" = 65 ] || say "not every row says what it was measured over"
[ "$(rows '"rounds": ')" = 64 ] || say "not every row but node_cpu was measured"
[ "$(rows '"note": "other GPU"')" = 18 ] || say "there are two GPUs"
[ "$(rows '"target": ')" = 0 ] || say "there is a target, as if the figures meant something"
[ "$(rows '"error": ')" = 0 ] || say "a row or a contestant failed"
grep -q STAND-IN "$dir/out" || say "the table does not say what it was measured over"

# With one GPU the rest; with none a sentence.
STANDIN_DEVICES=1 run 0
[ "$(rows '"bench": ')" = 47 ] || say "$(rows '"bench": ') rows over one GPU, not 47"
STANDIN_DEVICES=0 run 1
grep -q '^tarn-bench: gpu: .*no device' "$dir/err" || say "it does not say that there is no GPU"
