#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs test programs and scripts one after the other and counts.
#   tests/run.sh NAME...     programs, or scripts ending in .sh; TARN_BUILD names the build folder
# Exit status of a test: 0 passed, 77 skipped (its last line "SKIP: <what>: <why>"), else failed.
# Lines of one that passed which begin with "times: " are shown.
# A cmocka program counts each of its tests, anything else counts as one.
# A cmocka test that is skipped says "skip: <what>: <why>".
#   REQUIRE=rdma,cuda        a skip of <what> among these is a failure ("all": every skip)
#   RETRIES=N                run a failed one again, N times; that it failed first is shown, not hidden (0).
#                            Not those that look for races: one failure in many runs is what they are for
#   TEST_TIMEOUT=SECONDS     for one program (900)
# Ends with "N passed, N failed, N skipped" and exit 1 when anything failed.
set -u
passed=0 failed=0 skipped=0 n=0 flaky=
log=$(mktemp)
trap 'rm -f "$log"' EXIT

is_race()
{
    case $1 in
    test_rdma_join) return 1 ;; # compares times with those of a kernel that is played
    *race* | *history* | *soak*) return 0 ;;
    test_cancel | test_conformance | test_evict | test_puts_under_failure | test_rdma* | test_sessions) return 0 ;;
    test_store* | test_transport) return 0 ;;
    esac
    return 1
}

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
    if is_race "${t##*/}"; then
        left=0
    fi
    while [ $rc != 0 ] && [ $rc != 77 ] && [ "$left" -gt 0 ]; do
        left=$((left - 1)) flaky="$flaky ${t##*/}"
        sed 's/^/    /' "$log"
        echo "    ${t##*/}: failed (exit $rc), once more"
        run "$t"
        rc=$?
    done
    ok=$(count PASSED) bad=$(count FAILED) skip=$(count SKIPPED)
    if [ $rc = 0 ] || [ $rc = 77 ]; then
        if required || mute; then
            rc=1
        fi
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
