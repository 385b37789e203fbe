#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tests/run.sh itself: what is required and skipped fails, a race is never tried twice, nothing is counted away.
set -u
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0

# A test of that name: its output, its exit status.
fake()
{
    printf '#!/bin/sh\ncat <<E\n%s\nE\nexit %s\n' "$2" "$3" >"$dir/$1.sh"
}

# expect NAME WHAT REQUIRE RETRIES STATUS TEXT: how run.sh ends, and a text that is in its output.
expect()
{
    out=$(REQUIRE=$3 RETRIES=$4 sh tests/run.sh "$dir/$1.sh" 2>&1)
    rc=$?
    if [ $rc != "$5" ] || ! echo "$out" | grep -qF -- "$6"; then
        printf '%s\nFAILED: %s: exit %s, wanted %s and "%s"\n' "$out" "$2" $rc "$5" "$6"
        failed=1
    fi
}

cmocka='[==========] Running 3 test(s).
skip: rdma: no device
[  SKIPPED ] moves
[  PASSED  ] 2 test(s).
[  SKIPPED ] 1 test(s), listed below:'
mute='[  PASSED  ] 2 test(s).
[  SKIPPED ] 1 test(s), listed below:'

fake test_some "$cmocka" 0
expect test_some "a skip among others" "" 0 0 "2 passed, 0 failed, 1 skipped"
expect test_some "a skip of something else" gpu 0 0 "2 passed, 0 failed, 1 skipped"
expect test_some "a required skip of a cmocka test" rdma 0 1 "required, and skipped: rdma"
expect test_some "all are required" all 0 1 "required, and skipped: rdma"

fake test_mute "$mute" 0
expect test_mute "a skip without a word" "" 0 0 "2 passed, 0 failed, 1 skipped"
expect test_mute "a required skip without a word" all 0 1 "without a word"

fake test_whole "SKIP: redis: none here" 77
expect test_whole "a whole program" "" 0 0 "0 passed, 0 failed, 1 skipped"
expect test_whole "a required whole program" gpu,redis 0 1 "1 failed"
expect test_whole "all are required" all 0 1 "1 failed"

# Fails the first time.
flaky='[ -e DIR/again ] && exit 0
touch DIR/again
exit 1'
for name in test_steady test_some_races; do
    echo "$flaky" | sed "s,DIR,$dir,g" >"$dir/$name.sh"
    rm -f "$dir/again"
    case $name in
    *races) expect $name "a race is tried once" "" 3 1 "0 passed, 1 failed" ;;
    *) expect $name "others are tried again, and named" "" 3 0 "needed a second run: test_steady.sh" ;;
    esac
done
rm -f "$dir/again"
expect test_steady "without RETRIES nothing is" "" 0 1 "0 passed, 1 failed"

[ $failed = 0 ]
