#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The conformance suite over all variants of the fixture plugin: each ABI, one socket and several, with and
# without unpacking, with delays, with calls that block, and with every other behaviour that the ABI allows.
# TARN_TCPX_PLUGIN=/path/lib.so: uses that plugin instead, with its settings.
set -u
build=${TARN_BUILD:-build}
case $build in
/*) ;;
*) build=$PWD/$build ;;
esac
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
ran=0
SIDE_BY_SIDE=3

# Runs several in parallel, because they mostly wait.
conform()
{
    ran=$((ran + 1))
    {
        for what in 'tcpx: ' 'tcpx window: '; do
            timeout -k 5 300 "$build/tests/test_conformance" "$what" || echo "conformance over $*: exit $?"
        done
    } >"$logs/$ran" 2>&1 &
    [ $((ran % SIDE_BY_SIDE)) -ne 0 ] || wait
}

fixture()
{
    TARN_TCPX_PLUGIN=$build/tests/tcpx/libtcpx-fixture-$1.so
    NCCL_SOCKET_NTHREADS=1 NCCL_NSOCKS_PERTHREAD=$2 TCPX_FIXTURE=$3
    export TARN_TCPX_PLUGIN NCCL_SOCKET_NTHREADS NCCL_NSOCKS_PERTHREAD TCPX_FIXTURE
    conform "$@"
}

if [ -n "${TARN_TCPX_PLUGIN:-}" ]; then
    conform "$TARN_TCPX_PLUGIN"
else
    # With ThreadSanitizer, which makes each of them ten times slower, only all behaviours at once.
    if ! ldd "$build/libtarn.so" | grep -q 'libtsan\.so'; then
        fixture v7 1 ''
        fixture v7 4 'seed=2,cut_min=700'
        fixture v7 4 plain=1
        fixture v7 8 delay_ms=2
        fixture v7 4 setup_ms=100
        fixture v7 4 accept_blocks=1,connect_blocks=1
        fixture v7 4 map_unguarded=1
        fixture v7 4 late_table=1
        fixture v7 4 null_requests=3
        fixture v7 4 listen_ms=700,setup_ms=300
        fixture v6 4 accept_blocks=1,connect_blocks=1
        fixture v6 1 ''
        fixture v6 4 ''
        fixture v8 4 ''
    fi
    all=accept_blocks=1,connect_blocks=1,map_unguarded=1,late_table=1,null_requests=3,tell_sizes=1,listen_ms=700
    fixture v7 4 "$all"
    fixture v7 4 "$all,plain=1"
    fixture v8 1 "$all"
    fixture v6 1 "$all"
fi
wait
for log in "$logs"/*; do
    grep -q '^conformance over' "$log" && { cat "$log"; failed=1; }
done
[ -z "${failed:-}" ] || exit 1
echo "$ran ways to be a plugin: all conform"
