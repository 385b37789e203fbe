#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# make check-rdma: runs the tests that need RDMA in VMs with RDMA. Counts as tests/run.sh does.
#   tests/rdma-vm/check.sh [PART...]    parts: one faults wire hosts unit (all); TARN_BUILD: the build folder
#     one    one VM, both sides on one device: the transport's unit tests, the conformance suite over pools and
#            windows, the tests of windows, writes of kernels played by threads
#     faults one VM: all kinds of memory and sizes, restarts, connects and closes, verified gets
#     wire   one VM with two rails that can be pulled: faults with packets in flight
#     hosts  two VMs: a node in one, clients in the other
#     unit   one VM: deploy/tarnd.service under systemd
#   RDMA_CONNECTS=N, RDMA_SECONDS=N   see tests/faults/test_rdma.c; they raise the time limits
#   REQUIRE=rdma   fails instead of skipping if VMs do not run here
# Prints "N passed, N failed, N skipped" at the end. Exit status 1 if anything failed.
set -u
cd "$(dirname "$0")/../.." || exit 1
TARN_BUILD=$(cd "${TARN_BUILD:-build}" && pwd) || exit 1
export TARN_BUILD
tests=$TARN_BUILD/tests
log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0 failed=0 skipped=0
# Seconds: twice the requested time, for a busy host.
long=$((${RDMA_CONNECTS:-0} / 4 + ${RDMA_SECONDS:-0} * 2))
export TEST_TIMEOUT=$((1200 + long))

# Runs one VM. In it a missing device is an error.
vm()
{
    # $1 seconds, $2 what it is, then options of vm.sh and the command
    seconds=$1 what=$2
    shift 2
    echo "--- $what"
    REQUIRE=rdma sh tests/rdma-vm/vm.sh --timeout "$seconds" "$@" 2>&1 | tr -d '\r' | tee "$log" | sed '/^[0-9]* passed, /d'
    tally
}

# Adds the counts of the run in the VM. A run without counts is a failure.
tally()
{
    if grep -q '^SKIP: ' "$log"; then
        case ",${REQUIRE:-}," in
        *,all,* | *,rdma,*) failed=$((failed + 1)) ;;
        *) skipped=$((skipped + 1)) ;;
        esac
        return
    fi
    # shellcheck disable=SC2046 # numbers
    set -- $(sed -n 's/^\(\[vm 2\] \)\{0,1\}\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\2 \3 \4/p' "$log" |
        awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0, NR }')
    passed=$((passed + $1)) skipped=$((skipped + $3))
    failed=$((failed + $2 + ($4 == 0)))
}

one()
{
    vm 2400 "one VM" -- sh tests/run.sh "$tests/test_transport" "$tests/test_rdma_device" \
        tests/rdma-vm/conformance.sh tests/rdma-vm/windows.sh tests/rdma-vm/writes.sh
}

faults()
{
    vm $((900 + long)) "one VM, faults" -- sh tests/run.sh "$tests/test_rdma" "$tests/test_rdma_sizes"
}

wire()
{
    vm 900 "one VM, two rails over a wire" --wire --rails 2 -- sh tests/run.sh "$tests/test_rdma_wire" \
        "$tests/test_rdma_writers"
}

hosts()
{
    vm 600 "two VMs" --vms 2 --rails 2 -- sh tests/rdma-vm/hosts.sh
}

unit()
{
    vm 900 "one VM, systemd" -- sh tests/run.sh tests/rdma-vm/unit.sh
}

[ $# -gt 0 ] || set -- one faults wire hosts unit
for part in "$@"; do
    case $part in
    one | faults | wire | hosts | unit) $part ;;
    *)
        echo "usage: check.sh [one|faults|wire|hosts|unit]..." >&2
        exit 2
        ;;
    esac
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
