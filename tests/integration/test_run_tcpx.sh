#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tests/tcpx/run_tcpx_test.sh over the fixture plugin. Both programs run as two processes on this host and
# print all lines in order. Each failure that the fixture can cause ends with a sentence and status 1 at both
# ends.
set -u
build=$(cd "${TARN_BUILD:-build}" && pwd)
script=$(cd "$(dirname "$0")/../tcpx" && pwd)/run_tcpx_test.sh
for v in $(env | sed -n 's/^\(NCCL_[A-Z_]*\|TARN_TCPX_[A-Z_]*\|TCPX_[A-Z_]*\)=.*/\1/p'); do
    unset "$v"
done
export TARN_BUILD="$build"
dir=$(mktemp -d)
server=
cleanup()
{
    [ -z "$server" ] || { kill "$server" 2>/dev/null && wait "$server"; }
    rm -rf "$dir"
}
trap cleanup EXIT
cd "$dir" || exit 1

failed=0 checks=0
fail()
{
    failed=$((failed + 1))
    echo "FAILED: $what: $*"
    sed 's/^/    server: /' server.out
    sed 's/^/    client: /' client.out
}
# The fixture uses a GPU only with this option.
gpu=
"$build/tarn" doctor tcpx --tcpx-plugin "$build/tests/tcpx/libtcpx-fixture-v7.so" >doctor.out
! grep -q 'bytes of GPU 0' doctor.out || gpu=gpu=1,pages=4096,
fixture() { echo "$build/tests/tcpx/libtcpx-fixture-$1.so"; }

# pair STATUS PROGRAM PLUGIN SERVER'S_FAULTS CLIENT'S_FAULTS [HOST]: both ends must end with STATUS.
pair()
{
    want=$1 program=$2 plugin=$(fixture "$3") host=${6:-127.0.0.1} got=0 served=0
    what="$2 $3 server:$4 client:$5"
    checks=$((checks + 1))
    : >server.out >client.out
    TARN_TCPX_PLUGIN=$plugin TCPX_FIXTURE=$gpu$4 sh "$script" "$program" server 0 >server.out 2>&1 &
    server=$!
    port=
    while [ -z "$port" ] && kill -0 $server 2>/dev/null; do
        port=$(sed -n 's/.*Waiting for the client at port //p' server.out)
    done
    TARN_TCPX_PLUGIN=$plugin TCPX_FIXTURE=$gpu$5 sh "$script" "${calls:-$program}" "$host" "${port:-1}" >client.out 2>&1 || got=$?
    wait $server || served=$?
    server=
    [ "$got $served" = "$want $want" ] || fail "client $got, server $served, want $want"
}
# says FILE TEXT...: the texts occur in this order; other lines may be between them.
says()
{
    checks=$((checks + 1))
    file=$1
    shift
    printf '%s\n' "$@" >wanted
    awk 'NR == FNR { want[++n] = $0; next } at < n && index($0, want[at + 1]) { at++ } END { exit at < n }' \
        wanted "$file" || fail "$file does not say, in this order: $*"
}

# --- what works: the lines of the flow ----------------------------------------------------------------

for way in d2d host kernel; do
    case $way in
    d2d) words='device unpack (D2D copies)' ;;
    host) words='unpack by way of the host' ;;
    kernel) words='device unpack (kernel)' ;;
    esac
    export TARN_TCPX_UNPACK_IMPL=$way
    pair 0 transfer v7 cut_max=5 ''
    says server.out '=== TCPX GPU-to-GPU transfer test ===' 'Running in SERVER mode' 'Listening on device 0' \
        'Connection accepted; recv_comm=0x' 'Registered server receive buffer ptr=0x' \
        'Header: tag=42, bytes=23' 'Waiting for client data, expected bytes=23' 'Request metadata: frag_count=' \
        'descriptor[0] src_off=' 'descriptor[4] src_off=' "Launching $words, total_bytes=23" \
        'Device unpack completed successfully' '48 65 6c 6c 6f 20' 'Received data matches expected payload' \
        '✓ Test PASSED'
    says server.out ', bytes=4096'
    says client.out '=== TCPX GPU-to-GPU transfer test ===' 'Running in CLIENT mode' \
        'Connecting to server at 127.0.0.1' 'Connection established; send_comm=0x' \
        'Registered client send buffer ptr=0x' 'Sending 23 bytes' '✓ Test PASSED'
done
unset TARN_TCPX_UNPACK_IMPL
says client.out '[ENV] NCCL_DYNAMIC_CHUNK_SIZE=524288' '[ENV] NCCL_GPUDIRECTTCPX_FORCE_ACK=0' \
    '[ENV] NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX=/run/tcpx' '[ENV] NCCL_TCPX_RXMEM_IMPORT_USE_GPU_PCI_CLIENT=1'
pair 0 transfer v7 cut_max=23,cut_min=23 ''
says server.out 'Request metadata: frag_count=1' 'len=23 dst_off=0'
NCCL_NSOCKS_PERTHREAD=8 pair 0 transfer v7 setup_ms=50,delay_ms=50 setup_ms=50
# The receiver is done long before the sender asks for the first time.
pair 0 transfer v7 '' isend_ms=500
for v in v6 v8; do
    pair 0 transfer $v '' ''
    says server.out 'Received data matches expected payload'
done
pair 0 transfer v7 plain=1 plain=1
says server.out 'The plugin has placed the bytes itself' 'Received data matches expected payload'
pair 0 connection v7 '' ''
says server.out '=== TCPX connection test ===' 'Connection accepted' '✓ Test PASSED'
says client.out 'Connection established' '✓ Test PASSED'
[ ! -e /proc/net/if_inet6 ] || ! grep -q '^0*1 ' /proc/net/if_inet6 || pair 0 connection v7 '' '' ::1

# --- failures, each with its own text -----------------------------------------------------------------

export TCPX_TEST_TIMEOUT_MS=20000
# No leak detection: an unfinished accept or connect is never freed (transport/tcpx/plugin/tcpx_plugin.h).
export ASAN_OPTIONS="${ASAN_OPTIONS:-}:detect_leaks=0"
# broken SERVER'S_FAULTS CLIENT'S_FAULTS SERVER_SAYS CLIENT_SAYS
broken()
{
    pair 1 transfer v7 "$1" "$2"
    says server.out "$3"
    says client.out "$4"
    [ "$(grep -c PASSED server.out client.out | sed 's/.*://' | tr -d '\n')" = 00 ] || fail "something has passed"
}
closed='bootstrap connection: the peer has closed it'
wrong='[ERROR] server: it did not get what was sent'
broken bad_bytes=1 '' '[ERROR] payload mismatch: all zeros: the sender has closed early' "$wrong"
broken bad_bytes=1 isend_ms=500 '[ERROR] payload mismatch: ' "$wrong"
broken bad_dst=1 '' '[ERROR] metadata: ' "$wrong"
broken bad_sum=1 '' '[ERROR] metadata: ' "$wrong"
broken bad_count=1 '' '[ERROR] metadata: ' "$wrong"
broken recv_error=1 '' 'test gave 3 (internal error)' "$wrong"
broken '' send_close=1 'test gave 2 (system error): the peer has closed the connection' '[ERROR] test (send): '
# The delay keeps the server from answering before the client's plugin returns its error.
broken delay_ms=1000 send_error=1 '[ERROR] ' 'test gave 3'
# Programs may notice the end of the plugin's connection before the end of their own.
broken recv_exit=1 '' 'tcpx fixture: exit' 'the peer has closed '
broken '' send_exit=1 'test (receive): ' 'tcpx fixture: exit'
broken reg_error=1 '' 'regMr gave 3 (internal error): the address is aligned, so no DMA buffer' "$closed"
broken accept_error=3 '' 'accept gave 3 (internal error): its own lines in the log say why; does RxDM run' ''

calls=transfer
pair 1 connection v7 '' ''
says server.out 'the peer is not this program, or at another step of it'
says client.out 'the peer is not this program, or at another step of it'
calls=

# Only deadlines end these; the plugin does not.
export TCPX_TEST_TIMEOUT_MS=3000
broken recv_hang=1 '' 'test (receive): ' ''
NCCL_NSOCKS_PERTHREAD=1 broken '' helper_error=1 'test (receive): ' ''
broken setup_ms=600000 '' 'accept: ' ''
broken init=3 '' 'init gave 3' 'cannot connect'

# --- settings and arguments ---------------------------------------------------------------------------

# alone STATUS TEXT ARGUMENT...
alone()
{
    want=$1 got=0 text=$2
    shift 2
    what="$*"
    checks=$((checks + 1))
    : >server.out
    sh "$script" "$@" >client.out 2>&1 || got=$?
    [ "$got" = "$want" ] || fail "exit $got, want $want"
    says client.out "$text"
}
alone 2 'usage: run_tcpx_test.sh transfer|connection server'
alone 2 'usage: ' transfer
alone 2 'usage: ' nothing server
TARN_BUILD=$dir alone 2 'run make tests' transfer server
TARN_TCPX_PLUGIN=/nowhere/lib.so alone 1 '/nowhere/lib.so: no such file' transfer server 0
export TARN_TCPX_PLUGIN="$(fixture v7)"
TARN_TCPX_UNPACK_IMPL=quick alone 1 'TARN_TCPX_UNPACK_IMPL=quick: there is no such way' transfer server 0
NCCL_DYNAMIC_CHUNK_SIZE=0 alone 1 'NCCL_DYNAMIC_CHUNK_SIZE=0: not in' transfer server 0
TCPX_TEST_TIMEOUT_MS=200 alone 1 'no client came' connection server 0
TCPX_TEST_TIMEOUT_MS=200 alone 1 'cannot connect' connection 127.0.0.1 1
alone 1 'port: it is none' connection server many

echo "$checks checks, $failed failed"
[ $failed = 0 ]
