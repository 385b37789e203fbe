#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs test programs and scripts one after the other and counts.
#   tests/run.sh NAME...     programs, or scripts ending in .sh; TARN_BUILD names the build folder
# Exit status of a test: 0 passed, 77 skipped (its last line "SKIP: <what>: <why>"), else failed.
# Lines of one that passed which begin with "times: " are shown.
# A cmocka program counts each of its tests, anything else counts as one.
#   REQUIRE=rdma,cuda        a skip of <what> among these is a failure ("all": every skip)
#   RETRIES=N                run a failed one again, N times; that it failed first is shown, not hidden (0)
#   TEST_TIMEOUT=SECONDS     for one program (900)
# Ends with "N passed, N failed, N skipped" and exit 1 when anything failed.
set -u
passed=0 failed=0 skipped=0 n=0 flaky=
log=$(mktemp)
trap 'rm -f "$log"' EXIT

required()
{
    what=$(sed -n 's/^SKIP: \([^:]*\):.*/\1/p' "$log" | tail -n 1)
    case ",${REQUIRE:-}," in
    *,all,* | *,"${what:-?}",*) return 0 ;;
    esac
    return 1
}

count()
{
    sed -n "s/^\[  $1 *\] \([0-9]*\) test(s).*/\1/p" "$log" | awk '{ n += $1 } END { print n + 0 }'
}

run()
{
    case $1 in
    *.sh) timeout -k 5 "${TEST_TIMEOUT:-900}" sh "$1" >"$log" 2>&1 ;;
    *) timeout -k 5 "${TEST_TIMEOUT:-900}" "$1" >"$log" 2>&1 ;;
    esac
}

for t in "$@"; do
    n=$((n + 1))
    start=$(date +%s)
    printf '[%d/%d] %s\n' "$n" $# "${t##*/}"
    run "$t"
    rc=$?
    left=${RETRIES:-0}
    while [ $rc != 0 ] && [ $rc != 77 ] && [ "$left" -gt 0 ]; do
        left=$((left - 1)) flaky="$flaky ${t##*/}"
        sed 's/^/    /' "$log"
        echo "    ${t##*/}: failed (exit $rc), once more"
        run "$t"
        rc=$?
    done
    ok=$(count PASSED) bad=$(count FAILED) skip=$(count SKIPPED)
    if [ $rc = 77 ] && required; then
        rc=1
    fi
    case $rc in
    0)
        passed=$((passed + (ok + skip > 0 ? ok : 1)))
        skipped=$((skipped + skip))
        sed -n 's/^skip: /    skipped: /p' "$log" | sort | uniq -c
        sed -n 's/^times: /    /p' "$log"
        ;;
    77)
        skipped=$((skipped + 1))
        sed -n 's/^SKIP: /    skipped: /p' "$log"
        ;;
    *)
        failed=$((failed + (bad > 0 ? bad : 1)))
        passed=$((passed + ok))
        sed 's/^/    /' "$log"
        echo "    ${t##*/}: FAILED (exit $rc)"
        ;;
    esac
    took=$(($(date +%s) - start))
    [ $took -lt 20 ] || echo "    took ${took}s"
done
[ -z "$flaky" ] || echo "needed a second run:$flaky"
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
