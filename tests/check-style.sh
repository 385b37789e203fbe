#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks the code's style: lengths, layers, banned functions, headers that compile alone, files that are named and
# exist, generated pages that are up to date, man pages and scripts that parse. Prints every finding.
set -u
cd "$(dirname "$0")/.."
build=${TARN_BUILD:-build}
bad=0
say()
{
    bad=$((bad + 1))
    echo "style: $*"
}

code=$(find include base metadata transport server client tests -name '*.[ch]' | sort)

# Format: only clang-format 14, because other versions break lines elsewhere.
if clang-format --version 2>/dev/null | grep -q 'version 14\.'; then
    # shellcheck disable=SC2086
    clang-format --dry-run $code 2>&1 | sed -n 's/^\([^ :]*\):\([0-9]*\):.*/\1/p' | uniq >"$build/style.txt"
    while read -r f; do say "$f is not formatted: clang-format -i $f"; done <"$build/style.txt"
else
    echo "style: the format is not checked, because clang-format is not version 14: pip install clang-format==14.0.6"
fi

# Lengths: at most 700 lines in a file, 850 in a file of tests, 60 in a function.
for f in $code; do
    n=$(wc -l <"$f") most=700
    case $f in tests/*) most=850 ;; esac
    [ "$n" -le $most ] || say "$f has $n lines, the limit is $most"
done
# shellcheck disable=SC2086
ctags --version 2>/dev/null | grep -q Universal &&
    ctags --kinds-C=f --fields=+ne -x --_xformat='%N %F %n %e' $code |
    awk '{ n = $4 - $3 + 1; if (n > 60) print $1 " in " $2 " has " n " lines, the limit is 60" }' >"$build/style.txt"
while read -r line; do say "$line"; done <"$build/style.txt"

# Layers of folders, and no include cycles: tests/check_includes.py.
"${PYTHON:-python3}" tests/check_includes.py >"$build/style.txt" || {
    [ -s "$build/style.txt" ] || say "tests/check_includes.py cannot be run"
    while read -r line; do say "$line"; done <"$build/style.txt"
}
only()
{
    # $1 pattern of a header, $2 the files that may include it (regular expression)
    hits=$(grep -lE "^#include <($1)" $code | grep -vE "$2")
    [ -z "$hits" ] || say "<$1> is included outside its place: $hits"
}
only 'event2?/|event2?\.h' '^server/control/admin\.c$'
only 'infiniband/|rdma/' '^transport/rdma/'
only 'cuda' '^transport/cuda/|^tests/'
only 'hiredis/' '^base/resp|^tests/'
only 'jansson' '^client/(cli|bench)/|^tests/'
only 'curses' '^client/cli/'

# Banned: functions with a safer alternative.
hits=$(printf "%s\n" $code | grep -v "^tests/" | xargs grep -nE "\b(strcpy|strcat|sprintf|vsprintf|gets|strtok|alloca|atoi|atol)\(")
[ -z "$hits" ] || say "banned function: $hits"
# Variables of the environment are read in one place.
hits=$(printf "%s\n" $code | grep -vE "^(tests/|base/env\.c)" | xargs grep -nE "\b(secure_)?getenv\([^)]")
[ -z "$hits" ] || say "the environment is read outside base/env.c: $hits"
# libtarn has no functions that only programs need.
hits=$(nm "$build/libtarn.a" 2>/dev/null | grep -oE ' [TDR] tarn_(faulty_new|options_parse|option_[a-z_]+)$' | tr -d '\n')
[ -z "$hits" ] || say "libtarn.a has what only programs need:$hits"
# The library never prints, aborts or exits.
lib=$(find base metadata transport client -name '*.c' | grep -vE '^client/(cli|bench|python)/' | sort)
hits=$(grep -nE '(^|[^a-z_.>])(printf|fprintf|puts|putchar|perror|abort|exit|_exit|assert)\(' $lib)
[ -z "$hits" ] || say "the library prints or exits: $hits"
# No calls that wait for all work of a device, which includes the application's kernels.
hits=$(grep -nE '\b(cudaDeviceSynchronize|cudaThreadSynchronize|cuCtxSynchronize|cudaMemcpy|cudaMemset|cudaMemcpyPeer)\(' $lib transport/cuda/*.cu $(find server -name '*.c'))
[ -z "$hits" ] || say "a device is synchronised: $hits"
# No thread-local state: functions get what they need as arguments. The only exception is the last error.
hits=$(grep -nE "\b(_Thread_local|__thread|thread_local)\b" $lib $(find base metadata transport client -name "*.h") | grep -v "^base/error\.c:")
[ -z "$hits" ] || say "a variable of a thread: $hits"
# Error sentences are for people: code must decide by error codes.
hits=$(grep -nE '\b(str(n?case)?n?cmp|str(case)?str|memcmp)\([^;]*(tarn_last_error\(\)|\b(why|reason|failure|held|cause)(\.|->)text\b)' \
    $(find base metadata transport server -name '*.c') client/*.c)
[ -z "$hits" ] || say "an error's text decides: $hits"
# Buffers for error sentences must not cut them.
hits=$(grep -nE 'char [^;()]*\<(why|error)\[[0-9]{3}\]|%\.[0-9]+s[^;]*tarn_last_error' $(echo "$code" | grep -vE '^(tests|include)/') | grep -v 'no request')
[ -z "$hits" ] || say "a sentence is cut, for want of TARN_SENTENCE bytes: $hits"
# Tests synchronise on events, not with sleeps.
hits=$(grep -nE '\b(u|nano)?sleep\(' $(find tests -name '*.[ch]') | grep -v 'not synchronisation')
[ -z "$hits" ] || say "a sleep in a test: $hits"
hits=$(grep -nE '\b(TODO|FIXME|XXX|HACK)\b' $code Makefile deploy/*.sh)
[ -z "$hits" ] || say "unfinished: $hits"

# Python: see tests/check_python.py.
"${PYTHON:-python3}" tests/check_python.py >"$build/style.txt" || {
    [ -s "$build/style.txt" ] || say "tests/check_python.py cannot be run"
    while read -r line; do say "$line"; done <"$build/style.txt"
}

# Every header compiles alone, and every file has a licence line. Headers with CUDA's types need its toolkit.
for h in $(find include base metadata transport server client tests -name '*.h' ! -name '*kernels.h' ! -name cuda_runtime.h); do
    python=
    case $h in
    client/python/*)
        python=$("${PYTHON:-python3}" -ISc 'import sysconfig as s; print(s.get_path("include"))')
        [ -e "$python/Python.h" ] || continue
        ;;
    esac
    ${CC:-cc} -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Werror -fsyntax-only -I. -Iinclude \
        ${python:+-isystem "$python"} -x c "$h" ||
        say "$h does not compile alone"
done
# Public ones also as C++, which includes CUDA's.
for h in include/tarn/*.h; do
    ! command -v "${CXX:-c++}" >/dev/null || "${CXX:-c++}" -std=c++11 -Wall -Werror -fsyntax-only -Iinclude -x c++ "$h" ||
        say "$h does not compile as C++"
done
for f in $code transport/cuda/*.cu client/bench/bare/*.cu; do
    head -n 1 "$f" | grep -q 'SPDX-License-Identifier: Apache-2.0' || say "$f has no licence line"
done

# Files that comments name exist: tests/check_comments.py.
"${PYTHON:-python3}" tests/check_comments.py >"$build/style.txt" || {
    [ -s "$build/style.txt" ] || say "tests/check_comments.py cannot be run"
    while read -r line; do say "$line"; done <"$build/style.txt"
}

# Files that pages name exist. Pages of results and generated pages may name missing files.
for f in README.md docs/*.md tests/*/README.md metadata/KEYS.md; do
    for path in $(grep -oE '`[a-z][a-z_]*/[A-Za-z_/.-]+\.(c|h|py|sh|md|cu)`' "$f" | tr -d '`' | grep -v NAME); do
        [ -e "$path" ] || [ -e "include/$path" ] || say "$f names $path, which is not there"
    done
done

pages='README.md CONTRIBUTING.md docs/*.md tests/*/README.md metadata/KEYS.md'
# shellcheck disable=SC2086
for name in $(grep -ohE '\btarn_[a-z0-9_]*[a-z0-9]\b' $pages | sort -u); do
    grep -rqw "$name" include base metadata transport server client tests deploy Makefile || say "a page names $name, which is not there"
done
# The patches in tests/mutants/ apply.
sh tests/mutate.sh --check >"$build/style.txt" || while read -r line; do say "$line"; done <"$build/style.txt"

# libtarn.so exports only public symbols.
hits=$(nm -D --defined-only "$build/libtarn.so" | awk '{ print $3 }' | grep -vE '^(tarn_[a-z0-9_]+(@@?TARN_[0-9.]+)?|TARN_[0-9.]+)$')
[ -z "$hits" ] || say "libtarn exports $hits"
# ... and all of them.
nm -D --defined-only "$build/libtarn.so" >"$build/style.txt"
for name in $(sed -n 's/^ *\(tarn_[a-z0-9_]*\);$/\1/p' client/libtarn.map); do
    grep -qE " $name(@|\$)" "$build/style.txt" || say "libtarn does not export $name: is its header between the visibility pragmas?"
done

# Generated pages are up to date.
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
TARN_BUILD=$build sh docs/generate.sh "$tmp"
for f in options.md errors.md; do
    diff -u "docs/$f" "$tmp/$f" >"$tmp/diff" || { say "docs/$f is out of step, run make docs"; cat "$tmp/diff"; }
done
for p in tarnd tarn; do
    "$build/$p" --man >"$tmp/$p.1"
    if command -v mandoc >/dev/null; then
        mandoc -Tlint -W error "$tmp/$p.1" >"$tmp/lint" || { say "the man page of $p has errors"; cat "$tmp/lint"; }
    fi
done
for f in deploy/*.sh tests/*.sh tests/*/*.sh docs/*.sh .ci/run; do
    sh -n "$f" || say "$f does not parse"
done

[ $bad = 0 ] && echo "style: nothing to say" && echo "1 passed, 0 failed, 0 skipped"
[ $bad = 0 ]
