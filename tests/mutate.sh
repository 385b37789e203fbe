#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# make mutate: applies patches that each break one rule, and expects a test to fail for each patch.
#   tests/mutate.sh [-j N] [--check] [PATCH...]     without PATCH: all of tests/mutants/
#     -j N      runs N patches at a time (1)
#     --check   only checks that every patch is complete and applies
# A patch is a `git diff` that begins with these lines:
#   # what: one sentence, the rule that is broken
#   # tests: test_a test_b.sh      programs and scripts of tests/ that must notice it
#   # build: CUDA=standin          arguments of make (optional; CUDA=none)
#   # needs: vm                    run the tests in a VM with RDMA (optional; skipped if VMs do not work)
# Each patch runs in its own copy of the tree with its own build folder. First its tests must pass without it.
#   MUTATE_SECONDS=180   time limit for all tests of one patch; a late failure counts as unnoticed
#   MAKE, CC             as for the Makefile; uses ccache if it is installed
# Prints a line for each patch, then "N noticed, N unnoticed". Exit status 1 unless every patch was noticed.
set -u
cd "$(dirname "$0")/.." || exit 1
top=$PWD
jobs=1 check= limit=${MUTATE_SECONDS:-180}

header()
{
    # $1 patch, $2 name of the line
    sed -n "s/^# $2: *//p" "$1" | head -n 1
}

script_of()
{
    find tests -name "$1" | head -n 1
}

source_of()
{
    case $1 in
    *.sh) script_of "$1" ;;
    *) find tests -name "$1.c" | head -n 1 ;;
    esac
}

# Prints what is wrong with the patch; nothing if it is valid.
complaint()
{
    [ -r "$1" ] || { echo "cannot be read"; return; }
    [ -n "$(header "$1" what)" ] || { echo "has no line '# what:'"; return; }
    [ -n "$(header "$1" tests)" ] || { echo "has no line '# tests:'"; return; }
    for t in $(header "$1" tests); do
        [ -n "$(source_of "$t")" ] || { echo "names $t, which is not in tests/"; return; }
    done
    patch -p1 -s -f --dry-run <"$1" >/dev/null 2>&1 || echo "does not apply"
}

# --- one copy of the tree ---------------------------------------------------------------------------

# A build folder for each kind of build.
folder_of()
{
    echo "build$(header "$1" build | sed 's/[^A-Za-z0-9]/-/g')"
}

build()
{
    # $1 patch, then names of tests; in the folder of the copy
    patch=$1 targets=
    shift
    b=$(folder_of "$patch")
    for t in "$@"; do
        case $t in
        *.sh) targets="$targets all tests" ;;
        *) targets="$targets $b/tests/$t" ;;
        esac
    done
    # shellcheck disable=SC2046,SC2086 # lists of words
    "${MAKE:-make}" -j2 B="$b" CC="$cc" CUDA=none $(header "$patch" build) \
        "$b/tarnd" "$b/tarn" plugins $targets >build.log 2>&1
}

# Runs one test, at most $3 seconds, output in test.log.
run_test()
{
    # $1 build folder, $2 test
    case $2 in
    *.sh) set -- "$1" "$2" "$3" sh "$(script_of "$2")" ;;
    *) set -- "$1" "$2" "$3" "$1/tests/$2" ;;
    esac
    b=$1 t=$2 seconds=$3
    shift 3
    if [ "$vm" = vm ]; then
        set -- sh tests/rdma-vm/vm.sh --timeout "$seconds" -- "$@"
    fi
    REQUIRE=$([ "$vm" = vm ] && echo rdma) TARN_BUILD=$PWD/$b timeout -k 5 "$seconds" "$@" >test.log 2>&1
}

# Prints the name of the test that failed, if the log has it.
failure()
{
    f=$(tr -d '\r' <test.log | sed -n 's/^\[  FAILED  \] \([a-z_0-9A-Z]*\)$/\1/p' | head -n 1)
    echo "${f:+: $f}"
}

one()
{
    # $1 patch; the tree with everything built unpatched is $base
    name=$(basename "$1" .patch)
    start=$(date +%s)
    if [ "$(header "$1" needs)" = vm ] && [ -e "$tmp/no-vm" ]; then
        echo "$name: skipped, no VM can be started here" | tee -a "$tmp/said"
        return
    fi
    work=$(mktemp -d "$tmp/$name.XXXXXX")
    cp -a "$base/." "$work" && cd "$work" || exit 1
    vm=$(header "$1" needs)
    said=$(judge "$1")
    cd "$top" && rm -rf "$work"
    printf '%s: %s (%d s)\n' "$name" "$said" $(($(date +%s) - start)) | tee -a "$tmp/said"
}

judge()
{
    patch -p1 -s -f <"$1" >/dev/null 2>&1 || { echo "UNNOTICED, does not apply"; return; }
    # shellcheck disable=SC2046 # a list of words
    build "$1" $(header "$1" tests) || { echo "UNNOTICED, does not build: $(grep -m 1 'error' build.log)"; return; }
    for t in $(header "$1" tests); do
        ! grep -qx "$t" "$tmp/broken" || { echo "UNNOTICED, $t fails unpatched, too"; return; }
    done
    until=$(($(date +%s) + limit))
    for t in $(header "$1" tests); do
        left=$((until - $(date +%s)))
        [ $left -gt 0 ] || break
        run_test "$(folder_of "$1")" "$t" $left
        rc=$?
        [ "$(date +%s)" -lt $until ] || break
        case $rc in
        0 | 77) ;;
        *) echo "noticed by $t$(failure)"; return ;;
        esac
    done
    [ "$(date +%s)" -lt $until ] || { echo "UNNOTICED within $limit s: $(header "$1" what)"; return; }
    echo "UNNOTICED: $(header "$1" what)"
}

# --- all of it --------------------------------------------------------------------------------------

copy_tree()
{
    mkdir -p "$base"
    if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git ls-files -z --cached --others --exclude-standard
    else
        find . -name 'build*' -prune -o -type f -print0
    fi | tar --null --ignore-failed-read -T - -cf - 2>/dev/null | tar -xf - -C "$base"
}

# Builds what the patches need and runs each test once without a patch. A test that fails here proves nothing.
check_unpatched()
{
    cd "$base" || exit 1
    ran=' '
    for p in "$@"; do
        # shellcheck disable=SC2046 # a list of words
        build "$p" $(header "$p" tests) || { echo "the unpatched tree does not build:"; cat build.log; exit 1; }
        vm=$(header "$p" needs)
        for t in $(header "$p" tests); do
            case $ran in *" $(folder_of "$p")/$t "*) continue ;; esac
            ran="$ran$(folder_of "$p")/$t "
            run_test "$(folder_of "$p")" "$t" "$limit"
            case $? in
            0) ;;
            77) echo "unpatched $t: $(tail -n 1 test.log)" && [ "$vm" = vm ] && : >"$tmp/no-vm" ;;
            *) sed 's/^/    /' test.log; echo "unpatched $t fails$(failure)"; echo "$t" >>"$tmp/broken" ;;
            esac
        done
    done
    cd "$top" || exit 1
}

# Called by `-j`: runs one patch in the folders of the outer run.
if [ "${1:-}" = --one ]; then
    tmp=$MUTATE_TMP base=$MUTATE_TMP/base cc=$MUTATE_CC
    one "$2"
    exit 0
fi

while [ $# -gt 0 ]; do
    case $1 in
    -j) jobs=$2 && shift 2 ;;
    --check) check=1 && shift ;;
    -*) sed -n '3,16s/^# //p' "tests/${0##*/}" && exit 2 ;;
    *) break ;;
    esac
done
[ $# -gt 0 ] || set -- tests/mutants/*.patch
[ -e "$1" ] || { echo "$1: no such patch" && exit 1; }

bad=0
for p in "$@"; do
    why=$(complaint "$p")
    [ -z "$why" ] || { bad=$((bad + 1)) && echo "$p $why"; }
done
[ $bad = 0 ] || exit 1
[ -z "$check" ] || exit 0

list=
for p in "$@"; do
    case $p in /*) list="$list $p" ;; *) list="$list $top/$p" ;; esac
done

tmp=$(mktemp -d) base=$tmp/base
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' INT TERM
cc=${CC:-cc}
case $cc in *ccache*) ;; *) command -v ccache >/dev/null && cc="ccache $cc" ;; esac
export MUTATE_TMP="$tmp" MUTATE_CC="$cc" CCACHE_NOHASHDIR=1
: >"$tmp/said"
: >"$tmp/broken"
copy_tree
# shellcheck disable=SC2086 # a list of words
(check_unpatched $list) || exit 1
# shellcheck disable=SC2086 # a list of words
printf '%s\n' $list | xargs -P "$jobs" -I '{}' sh tests/mutate.sh --one '{}'
unnoticed=$(grep -c ': UNNOTICED' "$tmp/said")
noticed=$(grep -c ': noticed' "$tmp/said")
skipped=$(grep -c ': skipped' "$tmp/said")
echo "$noticed noticed, $unnoticed unnoticed$([ $skipped = 0 ] || echo ", $skipped skipped")"
[ "$unnoticed" = 0 ]
