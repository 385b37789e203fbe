#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# On a terminal put and get show their progress within one large tensor, which is still one object.
. "${0%/*}/cli.sh"
command -v script >/dev/null || { echo "SKIP: script: no program to make a terminal"; exit 77; }

start_node node0 --pool cpu0:bytes=640M
TARN_REDIS=$(echo "$ready" | tr ' ' '\n' | sed -n 's/^redis=//p')
export TARN_REDIS
bytes=150000000 # three parts
head -c $bytes /dev/zero | tr '\0' a >a
head -c $bytes /dev/zero | tr '\0' b >b

# on_terminal COMMAND: runs it on a terminal; its output goes to out. Transfers are delayed to show progress.
on_terminal()
{
    checks=$((checks + 1))
    TARN_FAULTS='shm:delay=400' TERM=xterm script -qefc "$1" /dev/null >out 2>err </dev/null || fail "$1"
    tr '\r' '\n' <out >lines
}

on_terminal "$build/tests/tarn put a --key k --transports shm"
grep -qE '^put (64|128) MiB of 143.1 MiB \((45|89)%\)' lines || fail "put shows nothing within a tensor"
says out "1 of 1 stored, 143.1 MiB"
on_terminal "$build/tests/tarn get k -o got --transports shm"
grep -qE '^get (64|128) MiB of 143.1 MiB \((45|89)%\)' lines || fail "get shows nothing within a tensor"
same a got
on_terminal "$build/tests/tarn get k -o got --transports shm --quiet"
silent out
on_terminal "$build/tests/tarn put b --key k --replace --transports shm"
expect 0 get k -o got
same b got
TARN_FAULTS='shm:delay=400' TERM=xterm script -qefc "$build/tests/tarn put a --key k --transports shm" /dev/null >out 2>err </dev/null &&
    fail "put takes the place of another without --replace"
says out "use --replace"

# Replaced during a get, between two parts: the get returns a single version.
rm -f got out
TARN_FAULTS='shm:delay=700' TERM=xterm script -qefc "$build/tests/tarn get k -o got --transports shm" /dev/null >out 2>err </dev/null &
reader=$!
n=0
until grep -q '64 MiB of' out 2>/dev/null || [ $n -gt 600 ]; do
    n=$((n + 1))
    sleep 0.05
done
[ $n -le 600 ] || fail "the get shows nothing"
tarn put a --key k --replace -q >out2 2>err2 || fail "put while it is got"
wait $reader || fail "get of what is replaced"
checks=$((checks + 1))
cmp -s got a || cmp -s got b || fail "a get in parts mixes two versions"
grep -q a got || fail "the get was over before the put: nothing was tested"

finish
