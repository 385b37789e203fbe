#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `tarn-bench peer` as a program: every row is measured and verified. Figures are not checked: they mean nothing
# on a machine that runs tests.
. "${0%/*}/cli.sh"
export TARN_BUILD="$build"

# bench ARGUMENT...: one pass of each row that is as short as can be.
bench() { "$build/tarn-bench" "$@" --quick --seconds 0 --json-dir "$dir" >"$dir/out" 2>"$dir/err"; }
# rows NUMBER PATTERN: that many lines of the JSON have it.
rows()
{
    checks=$((checks + 1))
    found=$(grep -c -- "$2" "$dir/peer.json" || :)
    [ "$found" = "$1" ] || fail "$found lines with $2, not $1"
}

for t in shm tcp; do
    checks=$((checks + 1))
    bench peer --transport "$t" || fail "over $t: exit status $?"
    rows 30 "\"bench\": \"${t}_"
    rows 30 '"rounds": '
    rows 6 '"note": "both ways"'
    rows 4 '"post_us": '
    rows 21 '"lender_cpu_ms_per_GB": '
    rows 2 '"half_us": '
    rows 1 '"note": "first connect"'
    rows 0 '"error": '
    rows 1 '"cpu": '
done

# A name that is no transport.
checks=$((checks + 1))
! bench peer --transport carrier-pigeon || fail "an unknown transport is accepted"
says err 'no windows over "carrier-pigeon": give shm, tcp, rdma or cuda_ipc'

# The other process ends: a sentence, and no hanging.
"$build/tarn-bench" peer --json-dir "$dir" >"$dir/out" 2>"$dir/err" &
bench=$!
pids="$bench $pids"
other=
until grep -q GB/s "$dir/out"; do
    kill -0 "$bench" || break
    sleep 0.1
done
for p in $(cat "/proc/$bench/task/$bench/children"); do
    [ "$(cat "/proc/$p/comm")" != bench-lender ] || other=$p
done
checks=$((checks + 2))
kill -9 "$other" || fail "there is no other process"
! wait "$bench" || fail "a benchmark whose other process was killed has succeeded"
says out "the other process (pid $other) has ended"

finish
