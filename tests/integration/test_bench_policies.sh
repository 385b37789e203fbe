#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `tarn-bench policies` and the traces that it shares with `tarn-bench replay`: figures of a trace that can be told by
# hand, and what is wrong with traces and options.
. "${0%/*}/cli.sh"
export TARN_BUILD="$build"

# run STATUS ARGUMENT...: runs tarn-bench and checks its status.
run()
{
    want=$1 got=0
    shift
    checks=$((checks + 1))
    "$build/tarn-bench" "$@" >"$dir/out" 2>"$dir/err" </dev/null || got=$?
    [ "$got" = "$want" ] || fail "tarn-bench $*: exit $got, want $want"
}

# A loop of 8 blocks, 200 times. LRU with room for 4 has none when it comes again; who knows the future keeps 4
# (3, while one is put). With room for all only the first round misses.
i=0
while [ $i -lt 1600 ]; do
    echo "{\"timestamp\": $((i * 100)), \"hash_ids\": [$((i % 8))]}"
    i=$((i + 1))
done >loop.jsonl
run 0 policies --trace loop.jsonl --capacity-blocks 4,8 --json out.json
says out "1600 requests, 1600 blocks asked for, 8 different"
checks=$((checks + 1))
awk '$1 == 4 && $2 == "0.0000" && $3 > 0.1 && $5 >= 0.42 { four = 1 }
     $1 == 8 && $2 == "0.9950" && $3 == "0.9950" && $5 == "0.9950" { eight = 1 }
     END { exit !(four && eight) }' out || fail "other figures"
says out "best of these sizes: --eviction "
says out "8 blocks have 100 %"
checks=$((checks + 1))
grep -q '"belady": 0.995' out.json || fail "out.json: $(cat out.json)"
run 0 policies --trace loop.jsonl --requests 8 --capacity-blocks 8
says out "8 requests, 8 blocks asked for, 8 different"
run 0 policies --trace loop.jsonl
says out "           1  "
run 0 policies --help
says out "--capacity-blocks LIST"

for command in policies replay; do
    run 1 $command
    says err "give --trace FILE"
    run 1 $command --trace nowhere
    says err "--trace nowhere: No such file or directory"
    echo '{"timestamp": 0, "hash_ids": [1, 2]}' >bad.jsonl
    echo 'nonsense' >>bad.jsonl
    run 1 $command --trace bad.jsonl
    says err "bad.jsonl: request 2 is no JSON"
    echo '{"timestamp": 0}' >bad.jsonl
    run 1 $command --trace bad.jsonl
    says err 'bad.jsonl: request 1 has no list "hash_ids"'
    run 2 $command loop.jsonl
    says err 'what is "loop.jsonl"?'
done
: >empty.jsonl
run 1 policies --trace empty.jsonl
says err "no request has a block"
for list in '' 0 x 1,,2 1,x -1 4294967295 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17; do
    run 1 policies --trace loop.jsonl --capacity-blocks "$list"
    says err "--capacity-blocks"
done

finish
