#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `tarn-bench ring --peer` over rdma, with producers that threads play: every part is verified. In one VM both ranks run
# in it. Of two VMs the first is rank 1, the second rank 0. Rows go to $OUT/ring-peer.json.
#   BENCH_SECONDS=S   the longest time for a row (0)
set -u
bench=$TARN_BUILD/tarn-bench
export TARN_SECRET=between-hosts

rank1()
{
    "$bench" ring --listen "$ADDR:7701" --devices rxe0 | tee "$OUT/rank1"
    grep -q '^done: ' "$OUT/rank1"
}
rank0()
{
    # shellcheck disable=SC2086 # words
    "$bench" ring --listen "$ADDR:0" --peer "$1:7701" --transport rdma --devices rxe0 --quick \
        --seconds "${BENCH_SECONDS:-0}" --json-dir "$OUT"
}
await()
{
    until grep -q '^listening at ' "$OUT/rank1" 2>/dev/null; do
        sleep 0.1
    done
}

status=0
if [ "$VMS" = 2 ] && [ "$VM" = 1 ]; then
    rank1 || status=1
elif [ "$VMS" = 2 ]; then
    await
    rank0 "$PEER" || status=1
else
    rank1 >/dev/null &
    rank1=$!
    await
    rank0 "$ADDR" || status=1
    wait $rank1 || status=1
fi
exit $status
