#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks the models exhaustively, and that each broken rule is found. README.md explains.
#   QUICK=1       only the rows marked `quick`
#   ONLY=text     only rows whose name contains the text
#   TRAIL=1       prints the trace of what was found
# Exit status 1: a correct model fails, or a broken rule is not found.
set -u
here=$(cd "$(dirname "$0")" && pwd)
work=${TARN_BUILD:-build}/model
mkdir -p "$work"
work=$(cd "$work" && pwd)
bad=0

if ! command -v spin >/dev/null; then
    echo "skip: spin: not installed: sh deploy/deps.sh check"
    exit 0
fi

figure()
{
    # $1 what stands before or after the number in pan's output
    sed -n "s/$1/\1/p" "$work/out" | head -n 1
}

build()
{
    # $1 model, then -D options. `timeout` as an end of everything is not a deadlock, so pan runs with -E.
    model=$1
    shift
    (cd "$work" && rm -f pan* ./*.trail && spin -a "$@" "$here/$model.pml" >out 2>&1 &&
        ${CC:-gcc} $optimize -w -DSAFETY -DCOLLAPSE -DVECTORSZ=2048 -DMEMLIM=4000 -o pan pan.c >>out 2>&1)
}

trail()
{
    model=$1
    shift
    (cd "$work" && spin -t -p -g "$@" -k "$model.pml.trail" "$here/$model.pml")
}

# Prints one row: what pan did, and whether that is what was expected.
report()
{
    # $1 name, $2 expected
    errors=$(figure '.*errors: \([0-9]*\).*')
    states=$(figure ' *\([0-9.e+]*\) states, stored.*')
    depth=$(figure '.*depth reached \([0-9]*\).*')
    seconds=$(figure 'pan: elapsed time \([0-9.e+-]*\) seconds.*')
    complete=yes
    grep -qE 'Search not completed|out of memory|search depth too small|MEMLIM' "$work/out" && complete=no
    case "$2 ${errors:-none} $complete" in
    "correct 0 yes") result=holds ;;
    "correct 0 no") result='NOT EXHAUSTIVE' ;;
    "correct "*) result=FAILS ;;
    "broken 1 "*) result=found ;;
    *) result='NOT FOUND' ;;
    esac
    case $result in
    holds | found) ;;
    *) bad=1 ;;
    esac
    printf '%-54s %11s %7s %8s  %s\n' "$1" "${states:--}" "${depth:--}" "${seconds:--}" "$result"
}

row()
{
    # $1 correct|broken, $2 quick|full, $3 model, $4 name, then -D options
    expected=$1 when=$2 model=$3 name="$3: $4"
    shift 4
    [ -z "${QUICK:-}" ] || [ "$when" = quick ] || return 0
    case $name in
    *"${ONLY:-}"*) ;;
    *) return 0 ;;
    esac
    optimize=-O2
    [ "$when" = full ] || optimize=-O1 # to compile takes longer than to run
    if build "$model" "$@"; then
        (cd "$work" && ./pan -E -m2000000 >out 2>&1)
    fi
    report "$name" "$expected"
    [ -z "${TRAIL:-}" ] || [ ! -f "$work/$model.pml.trail" ] || trail "$model" "$@"
    case $result in
    holds | found) ;;
    *) tail -n 40 "$work/out" ;;
    esac
}

correct() { row correct "$@"; }
broken() { row broken "$@"; }

printf '%-54s %11s %7s %8s  %s\n' configuration states depth seconds result
. "$here/rows.sh"
rm -rf "$work"
exit $bad
