#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs test programs and scripts, some side by side, and counts.
#   tests/run.sh [-j N] NAME...     programs, or scripts ending in .sh; TARN_BUILD names the build folder
#     -j N                   so many at a time (1); those that is_alone() names run by themselves, after the others
# Exit status of a test: 0 passed, 77 skipped (its last line "SKIP: <what>: <why>"), else failed.
# Lines of one that passed which begin with "times: " are shown.
# A cmocka program counts each of its tests, anything else counts as one.
# A cmocka test that is skipped says "skip: <what>: <why>".
#   TEST_FILTER='put*room'   of programs only the tests with this in their names; none at all is a failure. Scripts run
#                            whole
#   REQUIRE=rdma,cuda        a skip of <what> among these is a failure ("all": every skip)
#   RETRIES=N                run a failed one again, N times; that it failed first is shown, not hidden (0).
#                            Not those that look for races: one failure in many runs is what they are for
#   TEST_TIMEOUT=SECONDS     for one program (900)
# Shows "[n/m] name" and what the test says, in one piece, when it has ended; one at a time, "[n/m] name" when it begins.
# Ends with the last lines of each test that failed, and "N passed, N failed, N skipped" and exit 1 when anything failed.
set -u

usage()
{
    echo "$1: tests/run.sh [-j N] NAME..." >&2
    exit 2
}

jobs=1
if [ "${1:-}" = -j ]; then
    [ $# -ge 2 ] || usage "-j wants a number"
    jobs=$2
    shift 2
fi
case $jobs in
'' | 0 | *[!0-9]*) usage "-j $jobs is no number of tests" ;;
esac

# Others beside these would change what they find out.
is_alone()
{
    case ${1##*/} in
    # These compare times with limits that are part of what is promised.
    test_deadlines | test_distance | test_silent_attach | test_tcpx_setup) return 0 ;;
    # Its node and clients wait for less than they do by themselves, and for each fault: a stall of the host is one.
    test_tcpx_faults) return 0 ;;
    # These measure rates.
    *speed* | test_hits | *bench*.sh) return 0 ;;
    esac
    return 1
}

RUN_DIR=$(mktemp -d)
RUN_TOTAL=$#
export RUN_DIR RUN_TOTAL
trap 'rm -rf "$RUN_DIR"' EXIT
: >"$RUN_DIR/beside"
: >"$RUN_DIR/alone"
for t in "$@"; do
    if is_alone "$t"; then
        echo "$t" >>"$RUN_DIR/alone"
    else
        echo "$t" >>"$RUN_DIR/beside"
    fi
done

# What a file names, N at a time; FIRST is the number of the tests before.
run_all()
{
    # $1 N, $2 FIRST, $3 file
    awk -v n="$2" '{ print ++n; print }' "$3" |
        RUN_JOBS=$1 xargs -r -d '\n' -n 2 -P "$1" sh "${0%/*}/run-one.sh"
}
run_all "$jobs" 0 "$RUN_DIR/beside"
run_all 1 "$(wc -l <"$RUN_DIR/beside")" "$RUN_DIR/alone"

sum()
{
    cat "$RUN_DIR"/*.counts 2>/dev/null | awk -v f="$1" '{ n += $f } END { print n + 0 }'
}
passed=$(sum 1) failed=$(sum 2) skipped=$(sum 3)
lost=$((RUN_TOTAL - $(cat "$RUN_DIR"/*.counts 2>/dev/null | wc -l)))
cat "$RUN_DIR"/*.failures 2>/dev/null
if [ $lost != 0 ]; then
    echo "$lost of $RUN_TOTAL left no result"
    failed=$((failed + lost))
fi
if [ -n "${TEST_FILTER:-}" ] && [ $((passed + failed + skipped)) = 0 ]; then
    echo "no test has \"$TEST_FILTER\" in its name"
    failed=1
fi
flaky=$(cat "$RUN_DIR"/*.flaky 2>/dev/null | tr '\n' ' ')
[ -z "$flaky" ] || echo "needed a second run: ${flaky% }"
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
