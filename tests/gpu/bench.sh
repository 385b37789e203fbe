# SPDX-License-Identifier: Apache-2.0
# What tests of `tarn-bench GROUP [OPTION...]` over played GPUs share. Sourced with $group set, and $options if there
# are any; sets $build and $dir.
set -eu
build=$(cd "${TARN_BUILD:-build}" && pwd)
export TARN_BUILD="$build"
[ -e "$build/cuda-is-standin" ] || { echo "SKIP: standin: tarn-bench $group is for GPUs"; exit 77; }
command -v redis-server >/dev/null || { echo "SKIP: redis: no redis-server in PATH"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

say()
{
    cat "$dir/out" "$dir/err"
    echo "$*"
    exit 1
}

# run EXPECTED_STATUS
run()
{
    status=0
    "$build/tarn-bench" "$group" ${options:-} --json-dir "$dir" >"$dir/out" 2>"$dir/err" || status=$?
    [ $status = "$1" ] || say "exit status $status, not $1"
}

# rows PATTERN: how many lines of the JSON have it
rows() { grep -c -- "$1" "$dir/$group.json" || :; }

# measured N: so many rows were, without failures, targets, or figures that seem to mean something
measured()
{
    run 0
    [ "$(rows '"bench": ')" = "$1" ] || say "$(rows '"bench": ') rows, not $1"
    [ "$(rows '"cuda": ".*STAND-IN.*mean nothing"')" = "$1" ] || say "not every row says what it was measured over"
    [ "$(rows '"target": ')" = 0 ] || say "there is a target, as if the figures meant something"
    [ "$(rows '"error": ')" = 0 ] || say "a row or a contestant failed"
}

# Without a device there is a sentence.
without_device()
{
    STANDIN_DEVICES=0 run 1
    grep -q "^tarn-bench: $group: .*no device" "$dir/err" || say "it does not say that there is no GPU"
}
