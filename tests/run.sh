#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs test programs and scripts, several at a time, and counts the results.
#   tests/run.sh [-j N] NAME...     programs, or scripts ending in .sh; TARN_BUILD names the build folder
#     -j N                   runs N at a time (1); tests that measure times run after the others, tests that
#                            measure rates run alone
# Exit status of a test: 0 passed, 77 skipped (last line "SKIP: <what>: <why>"), otherwise failed.
# Of a passed test, lines that begin with "times: " are shown.
# Each test of a cmocka program counts; any other program or script counts as one test.
# A skipped cmocka test prints "skip: <what>: <why>".
#   TEST_FILTER='put*room'   programs run only the tests with this in their names; fails if no test matches.
#                            Scripts run whole
#   REQUIRE=rdma,cuda        a skip with one of these as <what> is a failure ("all": every skip)
#   TEST_TIMEOUT=SECONDS     for one program (900)
#   TEST_SECONDS=FILE        gets "SECONDS COMPUTED NAME" of each test: elapsed time and CPU time
# When a test ends, shows "[n/m] name" and its output in one piece. With one at a time, shows "[n/m] name"
# when it begins. At the end shows the last lines of each failed test and "N passed, N failed, N skipped".
# Exit status 1 if anything failed.
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

# When a test runs. "first": the longest tests, so that the run does not wait for them at the end. Then the
# others. Then "quiet" and "alone": other tests would change their results.
when()
{
    case ${1##*/} in
    # These compare times with promised limits. They mostly wait, so they can run together.
    test_deadlines | test_distance | test_silent_attach) echo quiet ;;
    # Its node and clients have short timeouts, so a stall of the host looks like a fault.
    test_tcpx_faults) echo quiet ;;
    # These measure rates.
    *speed* | test_hits | test_tcpx_unpack | *bench*.sh) echo alone ;;
    test_python.sh | test_python_wheel.sh | test_one_value | test_tcpx_setup | test_conformance*) echo first ;;
    test_one_value_losses | test_reading_leases | test_idle_leases) echo first ;;
    test_tcpx_plugins.sh | test_rdma_link | test_wrong_uses.sh) echo first ;;
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

# Runs the tests that a file names, N at a time.
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
# Prints the slowest tests.
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
