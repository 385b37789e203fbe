#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The completion scripts know each command's options. They run in bash; zsh, if installed, parses its own.
. "${0%/*}/cli.sh"
command -v bash >/dev/null || { echo "SKIP: bash: not installed"; exit 77; }

for p in tarn tarnd; do
    for shell in bash zsh; do
        "$build/$p" --completion $shell >"$p.$shell" 2>err || fail "$p --completion $shell"
        command -v $shell >/dev/null || continue
        checks=$((checks + 1))
        $shell -n "$p.$shell" 2>err || fail "$shell does not take the script for $p"
    done
    : >out
    for wrong in fish ''; do
        checks=$((checks + 1))
        "$build/$p" --completion "$wrong" >out 2>err
        [ $? = 2 ] || fail "$p --completion '$wrong'"
        says err "there are completions for bash and zsh"
    done
done
expect 2 --completion
says err "--completion"

# completes WANT WORD...: checks what bash offers for the last word.
completes()
{
    want=$1
    shift
    checks=$((checks + 1))
    bash -c 'source "$1.bash"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); "_$1"; echo "${COMPREPLY[*]}"' - "$@" >out 2>err
    [ "$(cat out)" = "$want" ] || fail "completion of $*"
    silent err
}
completes "put" tarn pu
completes "unpin" tarn un
completes "--redis --replace --replicas" tarn put --re
completes "--redis" tarn ls --re
completes "--for-ms" tarn pin key --fo
completes "" tarn put some
completes "" tarn nothing --re
completes "drain doctor" tarn help d
completes "--man --markdown" tarn --ma
completes "--redis --redis-timeout-ms" tarnd --redi
completes "--pool" tarnd --id x --poo

# Every option in the help of every command is completed.
for c in $(tarn help | sed -n 's/^  \([a-z]*\) .*/\1/p'); do
    tarn help "$c" | sed -n 's/^ \{2,6\}\(-[a-z], \)\{0,1\}--\([a-z-]*\).*/--\2/p' | sort >want
    bash -c 'source ./tarn.bash; COMP_WORDS=(tarn "$1" --); COMP_CWORD=2; _tarn; printf "%s\n" "${COMPREPLY[@]}"' - "$c" |
        sort >got
    same want got
    checks=$((checks + 1))
    while read -r option; do
        grep -qF -e "$option" tarn.zsh || fail "zsh does not know $c $option"
    done <want
done

finish
