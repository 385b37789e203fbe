#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `tarn-bench ring` as a program, with producers that threads play: every command is answered and checked, and every
# row says that its figures mean nothing.
set -eu
build=$(cd "${TARN_BUILD:-build}" && pwd)
export TARN_BUILD="$build"
[ -e "$build/cuda-is-standin" ] || { echo "SKIP: standin: tarn-bench ring is for GPUs"; exit 77; }
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
    "$build/tarn-bench" ring --json-dir "$dir" >"$dir/out" 2>"$dir/err" || status=$?
    [ $status = "$1" ] || say "exit status $status, not $1"
}

# rows PATTERN: how many lines of the JSON have it
rows() { grep -c "$1" "$dir/ring.json" || :; }

run 0
[ "$(rows '"bench": ')" = 14 ] || say "$(rows '"bench": ') rows, not 14"
[ "$(rows '"rounds": ')" = 14 ] || say "not every row was measured"
[ "$(rows '"bare_p999_us": ')" = 11 ] || say "not every row with latencies has those of the bare ring"
[ "$(rows '"cuda": ".*STAND-IN.*mean nothing"')" = 14 ] || say "not every row says what it was measured over"
[ "$(rows '"target": ')" = 0 ] || say "there is a target, as if the figures meant something"
[ "$(rows '"error": ')" = 0 ] || say "a row or a contestant failed"

STANDIN_DEVICES=0 run 1
grep -q '^tarn-bench: ring: .*no device' "$dir/err" || say "it does not say that there is no GPU"
