#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tarn doctor tcpx with the fixture plugin and its faults, invalid plugins, and a missing file. Each failure
# has its own row and remedy, and no plugin can end the doctor.
set -u
build=$(cd "${TARN_BUILD:-build}" && pwd)
plugins=$build/tests/tcpx
for v in $(env | sed -n 's/^\(NCCL_[A-Z_]*\|TARN_TCPX_[A-Z_]*\|TCPX_FIXTURE[A-Z_]*\)=.*/\1/p'); do
    unset "$v"
done
dir=$(mktemp -d)
redis=
cleanup()
{
    [ -z "$redis" ] || { kill "$redis" && wait "$redis"; }
    rm -rf "$dir"
}
trap cleanup EXIT
cd "$dir" || exit 1

failed=0 checks=0
# doctor STATUS PLUGIN [NAME=VALUE...] [OPTION...]: output goes to out (without colours) and err.
doctor()
{
    want=$1 plugin=$2 got=0 settings=
    shift 2
    while [ $# -gt 0 ] && [ "${1#--}" = "$1" ]; do
        settings="$settings $1"
        shift
    done
    case $plugin in
    */*) ;;
    ?*) plugin=$plugins/libtcpx-$plugin.so ;;
    esac
    what="$plugin$settings $*"
    checks=$((checks + 1))
    # shellcheck disable=SC2086
    env $settings "$build/tarn" doctor tcpx --tcpx-plugin "$plugin" "$@" >out 2>err || got=$?
    [ "$got" = "$want" ] || fail "exit $got, want $want"
}
fail()
{
    failed=$((failed + 1))
    echo "FAILED: $what: $*"
    sed 's/^/    /' out err
}
says()
{
    checks=$((checks + 1))
    tr -s ' ' <out | grep -qF -- "$1" || fail "nothing says \"$1\""
}
silent_about()
{
    checks=$((checks + 1))
    ! grep -qF -- "$1" out || fail "something says \"$1\""
}

# --- what works ---------------------------------------------------------------------------------------

for v in 6 7 8; do
    doctor 0 fixture-v$v
    says "plugin ok NCCL's ABI 6, 7 or 8 $plugins/libtcpx-fixture-v$v.so"
    says "plugin's ABI ok all calls in its table version $v"
    says "plugin starts ok init, devices 1 device"
    says "200000 Mbit/s, /sys/devices/pci0000:00/0000:00:01.0, takes memory of"
    says 'connection ok listen, connect, accept eth1: listen '
    grep -qE 'connect [0-9.]+ ms in [0-9]+ calls?, accept [0-9.]+ ms in [0-9]+ calls?$' out || fail "no times"
    says 'registration ok aligned to 4 KiB, DMA buffers 4096 bytes of'
    says 'unpacking ok kernel, d2d or host kernel'
    says 'all that is needed is there'
done
# The needs of TCPX are checked only with its plugin (version 7).
for row in 'NCCL_DYNAMIC_CHUNK_SIZE ok' "kernel's device memory TCP" '525, for CUDA 12' /run/tcpx; do
    doctor 0 fixture-v7
    says "$row"
    doctor 0 fixture-v8
    silent_about "$row"
done
doctor 0 fixture-v7
says 'not set: tarn sets it to 524288'
doctor 0 fixture-v7 TCPX_FIXTURE=devices=4 NCCL_NSOCKS_PERTHREAD=2 TARN_TCPX_UNPACK_IMPL=host
says '4 devices'
says 'device eth4 ok'
says 'GPUs behind different ones do not connect and go by tcp'
says 'sockets of a thread 2'
says 'unpacking ok kernel, d2d or host host'
doctor 0 fixture-v7 --json
says '"remedy"'
says '"ok": true'

# --- no plugin ----------------------------------------------------------------------------------------

doctor 6 /nowhere/libtcpx.so
says 'plugin missing'
says '/nowhere/libtcpx.so: no such file'
says 'plugin: name a library that is there: TARN_TCPX_PLUGIN=/path/lib.so, or tarnd --tcpx-plugin'
silent_about "plugin's ABI"
silent_about 'listen, connect, accept'
printf '%064d\n' 0 >text.so
doctor 6 "$dir/text.so"
says 'cannot be loaded'
doctor 6 bad-1
says 'has none of ncclNetPlugin_v7, _v8 and _v6'
says 'plugin: install a version of it that has ABI 6, 7 or 8'
doctor 6 bad-2
says 'isend is NULL in its table of version 7'
doctor 6 bad-3 FAKE_CUDA_INIT=100
says "plugin's ABI ok"
says 'cuInit gave 100'
says 'plugin starts: see nvidia-smi: the driver must run before the plugin does'
doctor 6 bad-3
says 'plugin starts: name interfaces that are there and up: NCCL_GPUDIRECTTCPX_SOCKET_IFNAME'

# --- a plugin that does not start ---------------------------------------------------------------------

doctor 6 fixture-v7 TCPX_FIXTURE=init=2
says 'init gave 2'
doctor 6 fixture-v7 TCPX_FIXTURE=init_exit=1
says 'the plugin ended the process with status 1 while starting it (init, devices); it wrote: tcpx fixture: fatal: no driver'
says 'plugin starts: it does so when CUDA does not start'
silent_about 'registration'
doctor 6 fixture-v7 TCPX_FIXTURE=init_hang=1 --timeout-ms 2000
says 'the plugin did not return from starting it (init, devices) in time'
doctor 6 fixture-v7 TCPX_FIXTURE=no_such_option=1
says 'the plugin crashed (Segmentation fault) while starting it'
doctor 6 fixture-v7 TCPX_FIXTURE=devices=0 NCCL_GPUDIRECTTCPX_SOCKET_IFNAME=nosuch0,lo
says 'no device (devices gave 0)'
says 'nosuch0,lo: there is no interface "nosuch0"'

# --- one that fails later -----------------------------------------------------------------------------

doctor 6 fixture-v7 TCPX_FIXTURE=accept_error=3
says 'plugin starts ok'
says 'connection missing'
says 'accept gave 3'
says '; it said: level=warn at=tcpx_plugin msg="accept: no bounce memory of the GPU"'
silent_about 'the connection is given up'
says 'connection: start RxDM'
says 'registration missing aligned to 4 KiB, DMA buffers not reached'
says '/run/tcpx'
doctor 6 fixture-v7 TCPX_FIXTURE=setup_ms=600000 --timeout-ms 2000
says 'the plugin did not return from connecting with another process in time; seen: listen '
says 'calls without a connection, accept'
doctor 6 fixture-v8 TCPX_FIXTURE=setup_ms=600000,accept_blocks=1 --timeout-ms 1000
says 'accept 1 call and no return from the last'
says 'connection: its devices must reach themselves, and it must accept and connect in processes of one host'
silent_about RxDM
silent_about GPUDIRECTTCPX
for f in accept_error=3 devices=0; do
    doctor 6 fixture-v8 TCPX_FIXTURE=$f
    silent_about RxDM
    silent_about GPUDIRECTTCPX
done
doctor 0 fixture-v8 TCPX_FIXTURE=accept_blocks=1,connect_blocks=1
says 'in 1 call, accept '
says 'in 1 call, which does not return before the peer connects'
doctor 6 fixture-v7 TCPX_FIXTURE=setup_ms=400 TARN_TCPX_STALL_MS=300
says 'connection: clients give a connection up after 350 ms: set TARN_TCPX_STALL_MS to 8'
says 'registration ok'
doctor 6 fixture-v7 TCPX_FIXTURE=reg_error=1
says 'connection ok'
says 'registration missing'
says 'regMr gave 3'
says 'it said: level=warn at=tcpx_plugin msg="no DMA buffer of that memory"'
says 'registration: the address is aligned, so this is no matter of alignment: the DMA buffer is missing'
doctor 0 fixture-v7 TCPX_FIXTURE=pci=0
says 'device eth1 optional for GPU memory 200000 Mbit/s, no PCI path'
says 'device eth1: it is no PCI device'

# --- settings -----------------------------------------------------------------------------------------

doctor 6 fixture-v7 NCCL_DYNAMIC_CHUNK_SIZE=0
says '$NCCL_DYNAMIC_CHUNK_SIZE missing'
says 'NCCL_DYNAMIC_CHUNK_SIZE=0: not in 4096..1073741824'
silent_about 'plugin starts'
doctor 6 fixture-v7 NCCL_NSOCKS_PERTHREAD=9 NCCL_GPUDIRECTTCPX_FORCE_ACK=yes
says '$NCCL_NSOCKS_PERTHREAD missing'
says '$NCCL_GPUDIRECTTCPX_FORCE_ACK missing'
doctor 6 fixture-v7 TARN_TCPX_UNPACK_IMPL=quick
says 'unpacking missing'
says 'TARN_TCPX_UNPACK_IMPL=quick: there is no such way to unpack: name d2d, host or kernel'
doctor 6 fixture-v7 TARN_TCPX_STALL_MS=3s
says '$TARN_TCPX_STALL_MS missing'
says 'TARN_TCPX_STALL_MS=3s: not in 100..60000'
silent_about unpacking
what='another word' got=0
"$build/tarn" doctor tcpy >out 2>err || got=$?
[ $got = 2 ] || fail "exit $got, want 2"

# --- RxDM's sockets: none, stale, alive ---------------------------------------------------------------

mkdir run
prefix=NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX=$dir/run
doctor 0 fixture-v7 "$prefix"
says "$dir/run/get_gpu_fd_ optional"
says "$dir/run/rx_rule_manager optional flow steering none"
doctor 6 fixture-v7 "$prefix" TCPX_FIXTURE=accept_error=3
says "$dir/run/get_gpu_fd_ missing bounce memory of each GPU none"
says "get_gpu_fd_: RxDM makes it: start its container"
if command -v redis-server >/dev/null; then
    # Any listener is enough.
    redis-server --port 0 --unixsocket "$dir/run/get_gpu_fd_0000:04:00.0" --save '' --appendonly no >redis.log &
    redis=$!
    while [ ! -S "$dir/run/get_gpu_fd_0000:04:00.0" ] && kill -0 $redis; do
        :
    done
    ln -s "get_gpu_fd_0000:04:00.0" run/get_gpu_metadata_0000:04:00.0
    ln -s "get_gpu_fd_0000:04:00.0" run/rx_rule_manager
    doctor 0 fixture-v7 "$prefix"
    says "$dir/run/get_gpu_fd_ ok bounce memory of each GPU 1, all answer"
    says "$dir/run/get_gpu_metadata_ ok its size 1, all answer"
    says "$dir/run/rx_rule_manager ok flow steering 1, all answer"
    kill -KILL $redis
    wait $redis 2>/dev/null
    redis=
    doctor 6 fixture-v7 "$prefix" TCPX_FIXTURE=reg_error=1
    says "$dir/run/get_gpu_fd_ missing bounce memory of each GPU 1, of which 0 answer: Connection refused"
    says 'left over from a RxDM that has ended: start it again'
fi

echo "$checks checks, $failed failed"
[ $failed = 0 ]
