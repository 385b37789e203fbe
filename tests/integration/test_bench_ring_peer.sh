#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `tarn-bench ring --peer`: two ranks on this host, with producers that threads play. Every row is measured, and every
# part verified. Figures are not checked: they mean nothing on a machine that runs tests.
. "${0%/*}/cli.sh"
export TARN_BUILD="$build"

# rank1: starts it, and sets rank1 (pid) and address.
rank1()
{
    : >"$dir/rank1"
    "$build/tarn-bench" ring --listen 127.0.0.1:0 >"$dir/rank1" 2>"$dir/rank1.err" &
    rank1=$!
    pids="$rank1 $pids"
    until grep -q '^listening at ' "$dir/rank1"; do
        kill -0 "$rank1" || { cat "$dir/rank1.err"; echo "FAILED: rank 1 does not start"; exit 1; }
        sleep 0.1
    done
    address=$(sed -n 's/^listening at //p' "$dir/rank1")
}
# rank0 ARGUMENT...: one pass of each row that is as short as can be.
rank0() { "$build/tarn-bench" ring "$@" --quick --seconds 0 --json-dir "$dir" >"$dir/out" 2>"$dir/err"; }
# rank1_ends STATUS TEXT
rank1_ends()
{
    got=0
    checks=$((checks + 2))
    wait "$rank1" || got=$?
    pids=
    cat "$dir/rank1" "$dir/rank1.err" >"$dir/rank1.all"
    [ "$got" = "$1" ] || fail "rank 1: exit status $got, want $1: $(cat "$dir/rank1.all")"
    grep -qF -- "$2" "$dir/rank1.all" || fail "rank 1 does not say \"$2\": $(cat "$dir/rank1.all")"
}
# rows NUMBER PATTERN: that many lines of the JSON have it.
rows()
{
    checks=$((checks + 1))
    found=$(grep -c -- "$2" "$dir/ring-peer.json" || :)
    [ "$found" = "$1" ] || fail "$found lines with $2, not $1"
}

for t in tcp shm; do
    rank1
    checks=$((checks + 1))
    rank0 --peer "$address" --transport "$t" || fail "over $t: exit status $?"
    rank1_ends 0 "every part came once"
    rows 10 '"bench": "ring_write"'
    rows 10 "\"transport\": \"$t\""
    rows 10 '"Mops": '
    rows 10 '"verified": '
    rows 0 '"error": '
    [ "$t" = shm ] || rows 8 '"limit_Mops": '
done

# rank0_works: starts it, and waits until it has measured a row. Sets rank0 (pid).
rank0_works()
{
    : >"$dir/out"
    "$build/tarn-bench" ring --peer "$address" --transport tcp --json-dir "$dir" >"$dir/out" 2>"$dir/err" &
    rank0=$!
    pids="$rank0 $pids"
    until grep -q GB/s "$dir/out"; do
        kill -0 "$rank0" || break
        sleep 0.1
    done
}

# Rank 0 ends in the middle: rank 1 fails, and does not wait for ever.
rank1
rank0_works
kill -9 "$rank0"
rank1_ends 1 "something was wrong"

# Rank 1 ends in the middle: so does rank 0.
rank1
rank0_works
kill -9 "$rank1"
checks=$((checks + 1))
pids=$rank0
! wait "$rank0" || fail "rank 0 has succeeded without rank 1"
pids=
says err "tarn-bench: ring: "

# Nobody is there; another group.
checks=$((checks + 2))
! rank0 --peer 127.0.0.1:1 || fail "rank 0 has succeeded with nobody there"
says err "127.0.0.1:1"
! "$build/tarn-bench" shm --peer "$address" >"$dir/out" 2>"$dir/err" || fail "shm takes --peer"
says err "--listen and --peer are for ring, not for shm"

finish
