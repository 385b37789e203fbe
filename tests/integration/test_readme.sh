#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The examples of README.md work unchanged: the shell lines of "Use it", and the C example with its compiler
# line. It skips lines that install, and the node gets a smaller pool and free ports.
# client/python/tests/test_docs.py runs the Python lines.
here=$(cd "${0%/*}/../.." && pwd)
readme=$here/README.md
. "${0%/*}/cli.sh"
ldd "$build/libtarn.so" | grep -q 'lib[atu]*san\.so' && { echo "SKIP: readme: not with sanitizers"; exit 77; }
for p in "${CC:=cc}" pkg-config; do
    command -v "${p%% *}" >/dev/null || { echo "SKIP: readme: no $p in PATH"; exit 77; }
done

# code LANGUAGE: prints the code block of that language.
code() { awk -v fence='```'"$1" '/^```/ { inside = ($0 == fence); next } inside' "$readme"; }
# run COMMAND...: it must succeed. Its output goes to out and err.
run()
{
    checks=$((checks + 1))
    "$@" >"$dir/out" 2>"$dir/err" </dev/null || fail "$*: exit $?"
}
# prints TEXT: checks that the standard output of the last run was exactly TEXT.
prints()
{
    printf '%s\n' "$1" >"$dir/wanted"
    checks=$((checks + 1))
    cmp -s "$dir/wanted" "$dir/out" || fail "the output is not \"$1\""
}
: >out 2>err
PATH=$build:$PATH

# --- the shell lines --------------------------------------------------------------------------------

sed -n '/^## Use it/,/^[^ ]*Without/s/^    //p' "$readme" >lines
sed -n 's/^tarnd \([^#&]*\)&.*/\1/p' lines | sed 's/bytes=1G/bytes=64M/' >node_arguments
checks=$((checks + 1))
[ "$(wc -l <node_arguments)" = 1 ] || fail "no line, or more than one, starts a node"
# shellcheck disable=SC2046 # words of a command
start_node readme $(cat node_arguments)
TARN_REDIS=$(echo "$ready" | tr ' ' '\n' | sed -n 's/^redis=//p')
export TARN_REDIS

shown=$(sed -n 's/^export TARN_REDIS=\([^ ]*\).*/\1/p' lines)
pattern=$(echo "$shown" | sed 's/PASSWORD/[^:@]*/; s/PORT/[0-9]*/')
checks=$((checks + 1))
echo "$TARN_REDIS" | grep -qx "$pattern" || fail "the node prints $TARN_REDIS, README shows $shown"

cp "$readme" README.md
sed -n '/^tarn /p' lines | sed 's/ *#.*//' | tr ';' '\n' >commands
checks=$((checks + 1))
[ "$(wc -l <commands)" -ge 5 ] || fail "fewer than 5 commands"
while read -r line; do
    run sh -c "$line"
    cat out >>printed
done <commands
same README.md copy.md
cp printed out
says out prefix/42

# --- C ----------------------------------------------------------------------------------------------

# Simulates an installed tarn, so that README's compiler line works unchanged.
mkdir -p usr pkgconfig
ln -s "$here/include" usr/include
ln -s "$build" usr/lib
sed "s|@PREFIX@|$dir/usr|; s|@VERSION@|0|; s|@LIBS_CUDA@||" "$here/client/tarn.pc.in" >pkgconfig/tarn.pc
export PKG_CONFIG_PATH="$dir/pkgconfig" LD_LIBRARY_PATH="$build"
code c >example.c
line=$(sed -n 's/.*`cc \(example\.c [^`]*\)`.*/\1/p' "$readme")
run sh -c "$CC ${line:-is not there}"
run ./a.out
prints "some bytes"
run tarn ls
says out prefix/43
TARN_REDIS=redis://127.0.0.1:1 ./a.out >out 2>err && fail "the example ends well without Redis"
says out "redis at redis://127.0.0.1:1"

finish
