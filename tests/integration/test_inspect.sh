#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs every command of docs/inspect.md against a live node: each must print something that is no
# error, and each group of commands what its comment "shows:" promises.
set -eu
here=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${TARN_BUILD:-build}" && pwd)
for p in redis-server redis-cli; do
    command -v $p >/dev/null || { echo "SKIP: redis: no $p in PATH"; exit 77; }
done
dir=$(mktemp -d)
node=
cleanup()
{
    [ -z "$node" ] || { kill "$node" && wait "$node" || :; }
    rm -rf "$dir"
}
trap cleanup EXIT
unset TARN_REDIS TARN_NS TARN_SECRET TARN_TRANSPORTS

mkfifo "$dir/ready"
"$build/tarnd" --id node0 --pool cpu0:bytes=16M --listen 127.0.0.1:0 --unix "$dir/node0.sock" \
    >"$dir/ready" 2>"$dir/node0.log" &
node=$!
read -r ready <"$dir/ready" || { cat "$dir/node0.log"; exit 1; }
field() { echo "$ready" | tr ' ' '\n' | sed -n "s/^$1=//p"; }
REDIS=$(field redis) CONTROL=$(field control | sed 's/.*://')
export REDIS CONTROL

head -c 24 /dev/zero >"$dir/w"
"$build/tarn" put "$dir/w" --redis "$REDIS" --key model/layer0.w --dtype f32 --shape 2,3 --quiet
"$build/tarn" put "$dir/w" --redis "$REDIS" --key other --quiet

# Lines "shows<TAB>text" and "run<TAB>command", in order.
awk '/^<!-- shows: / { sub(/^<!-- shows: /, ""); sub(/ -->$/, ""); print "shows\t" $0 }
     /^```/ { inside = ($0 == "```sh"); next }
     inside && NF { print "run\t" $0 }' "$here/docs/inspect.md" >"$dir/steps"
tab=$(printf '\t')
failed=0 runs=0 shows=
: >"$dir/group"
check_group()
{
    [ -z "$shows" ] || grep -qF -- "$shows" "$dir/group" ||
        { echo "nothing shows \"$shows\" in:"; cat "$dir/group"; failed=1; }
    : >"$dir/group"
}
while IFS=$tab read -r what text; do
    if [ "$what" = shows ]; then
        check_group
        shows=$text
        continue
    fi
    runs=$((runs + 1))
    sh -c "$text" >"$dir/out" 2>"$dir/err" </dev/null || [ $? = 124 ] || { echo "failed: $text"; failed=1; }
    cat "$dir/out" >>"$dir/group"
    if [ ! -s "$dir/out" ] || grep -qE '^(ERR|NOAUTH|WRONGTYPE|AUTH|INVALID|\(error\))' "$dir/out"; then
        echo "no answer: $text"
        cat "$dir/out" "$dir/err"
        failed=1
    fi
done <"$dir/steps"
check_group
echo "$runs commands"
[ $runs -ge 20 ] && [ $failed = 0 ]
