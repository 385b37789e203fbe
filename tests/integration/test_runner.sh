#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tests/run.sh itself, with tests one at a time and in parallel. A skip of a required test fails. Tests are
# not retried. No result is lost. Tests that measure run alone. Reports stay in one piece.
set -u
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0
# Unsets the variables of the run that this test belongs to.
unset TEST_FILTER REQUIRE

# fake NAME OUTPUT STATUS: makes a test with this output and exit status.
fake()
{
    printf '#!/bin/sh\ncat <<E\n%s\nE\nexit %s\n' "$2" "$3" >"$dir/$1.sh"
}

# expect NAME WHAT REQUIRE STATUS TEXT: run.sh ends with STATUS and prints TEXT.
expect()
{
    for jobs in 1 2; do
        rm -f "$dir/again"
        out=$(REQUIRE=$3 sh tests/run.sh -j $jobs "$dir/$1.sh" 2>&1)
        rc=$?
        if [ $rc != "$4" ] || ! echo "$out" | grep -qF -- "$5"; then
            printf '%s\n' "$out"
            wrong "$2 (-j $jobs): exit $rc, wanted $4 and \"$5\""
        fi
    done
}

wrong()
{
    echo "FAILED: $1"
    failed=1
}

cmocka='[==========] Running 3 test(s).
skip: rdma: no device
[  SKIPPED ] moves
[  PASSED  ] 2 test(s).
[  SKIPPED ] 1 test(s), listed below:'
mute='[  PASSED  ] 2 test(s).
[  SKIPPED ] 1 test(s), listed below:'

fake test_some "$cmocka" 0
expect test_some "a skip among others" "" 0 "2 passed, 0 failed, 1 skipped"
expect test_some "a skip of something else" gpu 0 "2 passed, 0 failed, 1 skipped"
expect test_some "a required skip of a cmocka test" rdma 1 "required, and skipped: rdma"
expect test_some "all are required" all 1 "required, and skipped: rdma"

fake test_mute "$mute" 0
expect test_mute "a skip without a word" "" 0 "2 passed, 0 failed, 1 skipped"
expect test_mute "a required skip without a word" all 1 "without a word"

fake test_whole "SKIP: redis: none here" 77
expect test_whole "a whole program" "" 0 "0 passed, 0 failed, 1 skipped"
expect test_whole "a required whole program" gpu,redis 1 "1 failed"
expect test_whole "all are required" all 1 "1 failed"

# Fails the first time.
flaky='[ -e DIR/again ] && exit 0
touch DIR/again
exit 1'
echo "$flaky" | sed "s,DIR,$dir,g" >"$dir/test_flaky.sh"
expect test_flaky "what failed is not tried again" "" 1 "0 passed, 1 failed"

# The reason is shown after the test and again at the end.
fake test_bad "the reason" 1
for jobs in 1 3; do
    sh tests/run.sh -j $jobs "$dir/test_bad.sh" "$dir/test_some.sh" >"$dir/out" 2>&1
    if [ "$(grep -c 'the reason' "$dir/out")" != 2 ] || ! tail -n 3 "$dir/out" | grep -q -e '--- test_bad.sh'; then
        cat "$dir/out"
        wrong "a failed test is not named at the end (-j $jobs)"
    fi
done

# Each test waits until the other has begun, and prints lines before and after. Both fail, so that run.sh
# shows their output.
meets='echo ME begins
touch DIR/ME.here
i=0
while [ ! -e DIR/OTHER.here ] && [ $i -lt 500 ]; do i=$((i + 1)); sleep 0.02; done
echo ME ends
[ -e DIR/OTHER.here ] && echo ME met OTHER
[ ! -e DIR/alone.here ] || echo ME met alone
exit 1'
# A test that measures rates is first in the list but runs last, after the others have ended.
alone='[ -e DIR/a.here ] && [ -e DIR/b.here ] && touch DIR/alone.here'
echo "$meets" | sed "s,DIR,$dir,g; s,ME,a,g; s,OTHER,b,g" >"$dir/test_a.sh"
echo "$meets" | sed "s,DIR,$dir,g; s,ME,b,g; s,OTHER,a,g" >"$dir/test_b.sh"
echo "$alone" | sed "s,DIR,$dir,g" >"$dir/test_speed.sh"
sh tests/run.sh -j 3 "$dir/test_speed.sh" "$dir/test_a.sh" "$dir/test_b.sh" >"$dir/out" 2>&1
said()
{
    grep -qxF -- "$1" "$dir/out" || { cat "$dir/out" && wrong "no line \"$1\""; }
}
said "    a met b"
said "    b met a"
said "[3/3] test_speed.sh"
said "1 passed, 2 failed, 0 skipped"
! grep -q "met alone" "$dir/out" || wrong "what measures ran beside others"
for me in a b; do
    grep -A 2 "^\[[12]/3\] test_$me.sh" "$dir/out" | tail -n 2 >"$dir/report"
    printf '    %s begins\n    %s ends\n' $me $me | cmp -s - "$dir/report" || wrong "the report of $me is not in one piece"
done

# A filter applies only to programs. A run without a match fails.
for jobs in 1 2; do
    printf '#!/bin/sh\necho "[  PASSED  ] 0 test(s)."\n' >"$dir/test_none"
    chmod +x "$dir/test_none"
    TEST_FILTER=put sh tests/run.sh -j $jobs "$dir/test_none" >"$dir/out" 2>&1 && wrong "a filter that fits nothing"
    said 'no test has "put" in its name'
done

# A test whose runner was killed has no result, which counts as a failure.
printf 'kill -9 "$(ps -o ppid= -p $PPID | tr -d " ")"\n' >"$dir/test_lost.sh"
sh tests/run.sh -j 2 "$dir/test_lost.sh" >"$dir/out" 2>&1 && wrong "a lost test is counted as passed"
said "1 of 1 left no result"

[ $failed = 0 ]
