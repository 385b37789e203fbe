#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `tarn-bench put` as a program: every row is measured and verified. Figures are not checked: they mean nothing
# on a machine that runs tests.
. "${0%/*}/cli.sh"
export TARN_BUILD="$build"

# rows NUMBER PATTERN: that many lines of the JSON have it.
rows()
{
    checks=$((checks + 1))
    found=$(grep -c -- "$2" "$dir/put.json" || :)
    [ "$found" = "$1" ] || fail "$found lines with $2, not $1"
}

checks=$((checks + 1))
"$build/tarn-bench" put --quick --seconds 0 --json-dir "$dir" >"$dir/out" 2>"$dir/err" || fail "exit status $?"
rows 12 '"bench": "shm_put"'
rows 11 '"p50_of_redis": '
rows 2 '"bench": "put_cpu"'
rows 2 '"node_us": [0-9]*[1-9]'
rows 2 '"directory_us": [0-9]*[1-9]'
rows 0 '"error": '

finish
