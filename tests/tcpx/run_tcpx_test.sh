#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Sends a message from one host's GPU to another host's GPU with the network plugin, or only connects:
#   run_tcpx_test.sh transfer|connection server [PORT]      on one host
#   run_tcpx_test.sh transfer|connection HOST [PORT]        on the other: the address of the first
# Sets the variables that the plugin for TCPX needs on A3 machines; keeps those that are set already.
# TARN_TCPX_PLUGIN names the plugin, TARN_TCPX_UNPACK_IMPL the way to unpack, TARN_BUILD the build folder
# (build). TCPX_TEST_MEMORY=host uses no GPU, for plugins without GPU support. TCPX_TEST_TIMEOUT_MS (60000)
# limits waits.
# Exit status: 0 passed, 1 failed, 2 usage.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=${TARN_BUILD:-$here/../../build}
usage()
{
    sed -n 's/^#   \(run_tcpx_test.sh\)/usage: \1/p' "$0" >&2
    exit 2
}
case ${1:-} in
transfer) program=test_tcpx_transfer ;;
connection) program=test_connection ;;
*) usage ;;
esac
[ $# -ge 2 ] && [ $# -le 3 ] || usage
program=$build/tests/tcpx/$program
[ -x "$program" ] || { echo "run_tcpx_test.sh: there is no $program: run make tests, or set TARN_BUILD" >&2; exit 2; }

# default NAME VALUE: sets the variable unless it is set.
default()
{
    eval "[ -n \"\${$1:-}\" ]" || export "$1=$2"
}
# here INTERFACE...: prints those that exist on this host, joined by commas.
here()
{
    found=
    for i in "$@"; do
        [ ! -e "/sys/class/net/$i" ] || found=$found${found:+,}$i
    done
    echo "$found"
}
control=$(here eth0)
data=$(here eth1 eth2 eth3 eth4)
[ -z "$control" ] || default NCCL_SOCKET_IFNAME "$control"
[ -z "$control" ] || default NCCL_GPUDIRECTTCPX_CTRL_DEV "$control"
[ -z "$data" ] || default NCCL_GPUDIRECTTCPX_SOCKET_IFNAME "$data"
default NCCL_TCPX_RXMEM_IMPORT_USE_GPU_PCI_CLIENT 1
default NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX /run/tcpx
default NCCL_DYNAMIC_CHUNK_SIZE 524288
default NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS 50000
default NCCL_GPUDIRECTTCPX_FORCE_ACK 0
for lib in /usr/local/tcpx/lib64 /var/lib/tcpx/lib64 /usr/local/nvidia/lib64; do
    [ ! -d "$lib" ] || export "LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$lib"
done
env | grep '^\(NCCL_\|TARN_TCPX_\|LD_LIBRARY_PATH=\)' | sort | sed 's/^/[ENV] /'

if [ "$2" = server ]; then
    set -- server ${3:+"$3"}
else
    set -- client "$2" ${3:+"$3"}
fi
exec "$program" "$@"
