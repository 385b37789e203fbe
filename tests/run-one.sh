#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs one test for tests/run.sh, which describes the environment variables: run-one.sh NUMBER NAME
# Prints the report and writes files to RUN_DIR, named by the number: .counts (passed, failed, skipped),
# .failures (lines to show at the end), .seconds (elapsed time, CPU time, name).
set -u
test=$2 name=${2##*/}
mine=$RUN_DIR/$(printf '%05d' "$1")
log=$mine.log out=$mine.report

# True: REQUIRE forbids one of the test's skips. Prints what was skipped.
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

# True: a test was skipped without a reason and REQUIRE is "all".
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

# Lines about a failure that are repeated at the end of the run.
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

# Runs the test and prints its report.
report()
{
    start=$(date +%s)
    run
    rc=$?
    took=$(($(date +%s) - start))
    # Not in a subshell, which would print its own times.
    times >"$mine.times"
    awk -v took=$took -v name="$name" 'NR == 2 {
        split($0, t, /[ms ]+/)
        printf "%d %d %s\n", took, t[1] * 60 + t[2] + t[3] * 60 + t[4] + 0.5, name
    }' "$mine.times" >"$mine.seconds"
    ok=$(count PASSED) bad=$(count FAILED) skip=$(count SKIPPED) whole=1
    # With a filter, it is valid that no test of the program runs.
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
