#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The RDMA benchmark in the VM: `tarn-bench rdma` against perftest on one device, then `tarn-bench rails` with
# two rails of 80 Mbit/s each, then `tarn-bench ring --peer` between two VMs. Writes rows to
# $TARN_BUILD/bench/rdma.json, rails.json and ring-peer.json. Takes about eight minutes.
#   BENCH_QUICK=1   fewer rounds
set -eu
here=$(cd "$(dirname "$0")" && pwd)
export TARN_BUILD="${TARN_BUILD:-$here/../../build}"
mkdir -p "$TARN_BUILD/bench"
TARN_BUILD=$(cd "$TARN_BUILD" && pwd)
rc=0
# shellcheck disable=SC2016 # expanded in the VM
sh "$here/vm.sh" --timeout 320 --out "$TARN_BUILD/bench" -- sh -c '
    "$TARN_BUILD/tarn-bench" rdma --devices rxe0 ${BENCH_QUICK:+--quick} --seconds 6 --json-dir "$OUT"' || rc=$?
# shellcheck disable=SC2016
sh "$here/vm.sh" --wire --rails 2 --timeout 300 --out "$TARN_BUILD/bench" -- sh -c '
    for r in 0 1; do sh "$0/rail.sh" limit $r 80; sh "$0/rail.sh" limit $r 80 far; done
    "$TARN_BUILD/tarn-bench" rails --quick --devices rxe0,rxe1 --node-devices far0,far1 --json-dir "$OUT"' \
    "$here" || rc=$?
sh "$here/vm.sh" --vms 2 --timeout 600 --out "$TARN_BUILD/bench" -- sh "$here/writes.sh" || rc=$?
exit $rc
