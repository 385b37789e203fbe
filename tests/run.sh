#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs test programs and scripts, some side by side, and counts.
#   tests/run.sh [-j N] NAME...     programs, or scripts ending in .sh; TARN_BUILD names the build folder
#     -j N                   so many at a time (1); what measures times after the others, what measures rates by itself
# Exit status of a test: 0 passed, 77 skipped (its last line "SKIP: <what>: <why>"), else failed.
# Lines of one that passed which begin with "times: " are shown.
# A cmocka program counts each of its tests, anything else counts as one.
# A cmocka test that is skipped says "skip: <what>: <why>".
#   TEST_FILTER='put*room'   of programs only the tests with this in their names; none at all is a failure. Scripts run
#                            whole
#   REQUIRE=rdma,cuda        a skip of <what> among these is a failure ("all": every skip)
#   TEST_TIMEOUT=SECONDS     for one program (900)
#   TEST_SECONDS=FILE        gets "SECONDS COMPUTED NAME" of each test: how long it took, and computed for
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

# When it runs: "first" what takes longest, so that nothing waits for it at the end; then the others; "quiet" and "alone"
# when those have ended, as others beside them would change what they find out.
when()
{
    case ${1##*/} in
    # These compare times with limits that are part of what is promised. They wait most of the time: side by side.
    test_deadlines | test_distance | test_silent_attach) echo quiet ;;
    # Its node and clients wait for less than they do by themselves, and for each fault: a stall of the host is one.
    test_tcpx_faults) echo quiet ;;
    # These measure rates.
    *speed* | test_hits | *bench*.sh) echo alone ;;
    test_python.sh | test_python_wheel.sh | test_one_value | test_tcpx_setup | test_conformance) echo first ;;
    test_reading_leases | test_tcpx_plugins.sh | test_rdma_link | test_wrong_uses.sh) echo first ;;
    *) echo others ;;
    esac
}

began=$(date +%s)
RUN_DIR=$(mktemp -d)
RUN_TOTAL=$#
export RUN_DIR RUN_TOTAL
trap 'rm -rf "$RUN_DIR"' EXIT
for t in "$@"; do
    echo "$t" >>"$RUN_DIR/$(when "$t")"
done

# What a file names, N at a time.
begun=0
run_all()
{
    # $1 N, $2 file
    [ -e "$2" ] || return 0
    awk -v n=$begun '{ print ++n; print }' "$2" |
        RUN_JOBS=$1 xargs -r -d '\n' -n 2 -P "$1" sh "${0%/*}/run-one.sh"
    begun=$((begun + $(wc -l <"$2")))
}
cat "$RUN_DIR/first" "$RUN_DIR/others" >"$RUN_DIR/beside" 2>/dev/null
run_all "$jobs" "$RUN_DIR/beside"
run_all "$jobs" "$RUN_DIR/quiet"
run_all 1 "$RUN_DIR/alone"

sum()
{
    cat "$RUN_DIR"/*.counts 2>/dev/null | awk -v f="$1" '{ n += $f } END { print n + 0 }'
}
# Where the time went.
slowest()
{
    sort -rn "$RUN_DIR"/*.seconds >"$RUN_DIR/seconds"
    [ -z "${TEST_SECONDS:-}" ] || cp "$RUN_DIR/seconds" "$TEST_SECONDS"
    awk -v began="$began" -v now="$(date +%s)" '{ c += $2 } NR <= 6 { slow = slow sprintf(", %s %d (%d)", $3, $1, $2) }
        END { printf "%d s, computed for %d s. Longest (and computed for): %s\n", now - began, c, substr(slow, 3) }' "$RUN_DIR/seconds"
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
[ "$RUN_TOTAL" -lt 10 ] || slowest
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
