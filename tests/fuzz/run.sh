#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs every fuzzer of BUILD for SECONDS on a copy of its seeds.  run.sh BUILD SECONDS
set -u
build=$1 seconds=$2 ok=0 bad=0
here=$(dirname "$0")
for f in "$build"/fuzz/fuzz_*; do
    [ -x "$f" ] || continue
    name=${f##*/}
    case $name in *.d | *.o) continue ;; esac
    corpus=$build/corpus/$name
    mkdir -p "$corpus" "$build/crashes"
    [ ! -d "$here/seeds/$name" ] || cp "$here/seeds/$name"/* "$corpus/"
    echo "$name: ${seconds}s"
    if "$f" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 \
        -artifact_prefix="$build/crashes/$name-" "$corpus" >"$build/$name.log" 2>&1; then
        ok=$((ok + 1))
        sed -n 's/^stat::number_of_executed_units: */    runs: /p' "$build/$name.log"
    else
        bad=$((bad + 1))
        tail -n 30 "$build/$name.log" | sed 's/^/    /'
    fi
done
echo "$ok passed, $bad failed, 0 skipped"
[ $bad = 0 ] && [ $ok -gt 0 ]
