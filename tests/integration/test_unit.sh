#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The systemd unit: systemd accepts all its settings and rates its exposure at 3.0 or less.
set -eu
unit=$(cd "$(dirname "$0")/../.." && pwd)/deploy/tarnd.service
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

fail()
{
    echo "$*"
    cat "$dir/out"
    exit 1
}

version=$(systemd-analyze --version 2>/dev/null | sed -n '1s/^systemd \([0-9]*\).*/\1/p')
if [ "${version:-0}" -lt 250 ]; then
    echo "SKIP: systemd: no systemd-analyze of version 250 or later in PATH"
    exit 77
fi
systemd-analyze security --offline=true --threshold=30 --no-pager "$unit" >"$dir/out" 2>&1 || fail "more than 3.0:"
tail -n 1 "$dir/out"

# Uses another program, because tarnd may not be installed here.
sed 's,^ExecStart=/[^ ]*,ExecStart=/bin/true,' "$unit" >"$dir/tarnd.service"
systemd-analyze verify --man=no "$dir/tarnd.service" >"$dir/out" 2>&1 || fail "systemd-analyze verify:"
! grep -F "$dir/tarnd.service" "$dir/out" || fail "systemd-analyze verify:"
# RDMA, GPUs and huge pages need these settings.
for need in LimitMEMLOCK=infinity 'DeviceAllow=char-infiniband* rw' 'DeviceAllow=/dev/infiniband/rdma_cm rw' \
    'DeviceAllow=char-nvidia* rw'; do
    grep -qxF "$need" "$unit" || fail "the unit has no $need"
done
! grep -E '^(PrivateDevices|PrivateNetwork|MemoryDenyWriteExecute)=y' "$unit" || fail "the unit takes too much away"
