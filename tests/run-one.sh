#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs one test for tests/run.sh, which says what of the environment counts: run-one.sh NUMBER NAME
# Prints its report and leaves in RUN_DIR, by the number: .counts (passed, failed, skipped), .failures (lines to be shown
# at the end), .seconds (how long it took, what it computed for, its name).
set -u
test=$2 name=${2##*/}
mine=$RUN_DIR/$(printf '%05d' "$1")
log=$mine.log out=$mine.report

# Something was skipped that must not be; its names are printed.
required()
{
    sed -n 's/^\(SKIP\|skip\): \([^:]*\):.*/\2/p' "$log" | sort -u | {
        found=1
        while read -r what; do
            case ",${REQUIRE:-}," in
            *,all,* | *,"$what",*) echo "    required, and skipped: $what" && found=0 ;;
            esac
        done
        return $found
    }
}

# A test that was skipped without a word can only be required by "all".
mute()
{
    case ",${REQUIRE:-}," in
    *,all,*) [ "$(count SKIPPED)" -gt "$(grep -c '^skip: ' "$log")" ] && echo "    required, and skipped without a word" ;;
    *) return 1 ;;
    esac
}

count()
{
    sed -n "s/^\[  $1 *\] \([0-9]*\) test(s).*/\1/p" "$log" | awk '{ n += $1 } END { print n + 0 }'
}

# What to look at first: whoever sees only the end of a long run sees this.
failed_lines()
{
    echo "--- $name"
    { grep -E -B2 '^\[  (ERROR|FAILED) |error: Failure' "$log" || cat "$log"; } | tail -n 12
}

run()
{
    case $test in
    *.sh) timeout -k 5 "${TEST_TIMEOUT:-900}" sh "$test" >"$log" 2>&1 ;;
    *) timeout -k 5 "${TEST_TIMEOUT:-900}" "$test" >"$log" 2>&1 ;;
    esac
}

# The test and what is said of it.
report()
{
    start=$(date +%s)
    run
    rc=$?
    took=$(($(date +%s) - start))
    # Of a subshell it would be another's times.
    times >"$mine.times"
    awk -v took=$took -v name="$name" 'NR == 2 {
        split($0, t, /[ms ]+/)
        printf "%d %d %s\n", took, t[1] * 60 + t[2] + t[3] * 60 + t[4] + 0.5, name
    }' "$mine.times" >"$mine.seconds"
    ok=$(count PASSED) bad=$(count FAILED) skip=$(count SKIPPED) whole=1
    # With a filter, none may have been meant.
    case ${TEST_FILTER:+filtered}$test in
    filtered*.sh) echo "    runs whole: TEST_FILTER is for programs" ;;
    filtered*) whole=0 ;;
    esac
    if [ $rc = 0 ] || [ $rc = 77 ]; then
        if required || mute; then
            rc=1
        fi
    fi
    case $rc in
    0)
        counts="$((ok + skip > 0 ? ok : whole)) 0 $skip"
        sed -n 's/^skip: /    skipped: /p' "$log" | sort | uniq -c
        sed -n 's/^times: /    /p' "$log"
        ;;
    77)
        counts="0 0 1"
        sed -n 's/^SKIP: /    skipped: /p' "$log"
        ;;
    *)
        counts="$ok $((bad > 0 ? bad : 1)) 0"
        sed 's/^/    /' "$log"
        echo "    $name: FAILED (exit $rc)"
        failed_lines >"$mine.failures"
        ;;
    esac
    [ $took -lt 10 ] || echo "    took ${took}s"
    echo "$counts" >"$mine.counts"
}

if [ "$RUN_JOBS" = 1 ]; then
    echo "[$1/$RUN_TOTAL] $name"
    report
else
    { echo "[$1/$RUN_TOTAL] $name" && report; } >"$out"
    flock "$RUN_DIR/lock" cat "$out"
fi
