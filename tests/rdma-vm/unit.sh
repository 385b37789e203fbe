#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# deploy/tarnd.service under a real systemd, in a VM with RDMA and huge pages. Checks that the service starts
# from settings that only root may read, moves bytes over every transport, restarts when it is killed or
# drained, and stops cleanly.
#   vm.sh --timeout 600 -- sh tests/rdma-vm/unit.sh
# systemd is process 1 of a PID namespace. The host's folders are read-only here, so writable folders are
# mounted over them.
set -eu
here=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${TARN_BUILD:-$here/build}" && pwd)
failed=0

# Repeats a command until it works, for at most two minutes.
until_true()
{
    tries=0
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 400 ] || return 1
        sleep 0.3
    done
}

says()
{
    # $1 what it is, then a command
    what=$1
    shift
    if "$@" >/tmp/said 2>&1; then
        echo "ok: $what"
    else
        echo "FAILED: $what: $*"
        cat /tmp/said
        failed=1
    fi
}

# --- around systemd ---------------------------------------------------------------------------------

prepare()
{
    mkdir -p /run/etc
    cp -a /etc/. /run/etc/
    mount --bind /run/etc /etc
    for d in /usr/local/bin /var/tmp /var/lib /var/log /var/cache; do
        mount -t tmpfs fresh "$d"
    done
    cp "$build/tarnd" "$build/tarn" /usr/local/bin/
    echo 0123456789abcdef0123456789abcdef >/etc/machine-id
    rm -rf /etc/systemd/system
    mkdir -p /etc/systemd/system/tarnd.service.d /var/lib/systemd
    cp "$here/deploy/tarnd.service" /etc/systemd/system/
    # This script reads the ready line from here.
    printf '[Service]\nStandardOutput=append:/run/tarnd.out\nStandardError=append:/run/tarnd.log\n' \
        >/etc/systemd/system/tarnd.service.d/output.conf
    # These units take minutes in the emulator.
    for u in sysusers journal-flush tmpfiles-setup tmpfiles-setup-dev binfmt update-utmp; do
        ln -s /dev/null "/etc/systemd/system/systemd-$u.service"
    done
    printf 'id = node0\npool = cpu0:bytes=32M\npool = huge0:bytes=16M,huge=1\n' >/etc/tarnd.conf
    chmod 600 /etc/tarnd.conf
    echo 8 >/proc/sys/vm/nr_hugepages
    mount -t cgroup2 cgroup /sys/fs/cgroup || :
}

outside()
{
    [ -x /lib/systemd/systemd ] || { echo "SKIP: systemd: it is not installed" && exit 77; }
    prepare
    # Shared, because another process mounts a service's credentials.
    export container=other
    unshare --pid --mount --fork --mount-proc sh -c \
        'echo ready >/run/begun; mount --make-rshared /; exec /lib/systemd/systemd --system --unit=basic.target --show-status=no' \
        >/run/systemd.log 2>&1 &
    until_true pgrep -P $! && one=$(pgrep -P $!)
    until_true nsenter -t "$one" -p -m -r -w test -S /run/systemd/private || cat /run/systemd.log
    nsenter -t "$one" -p -m -r -w env TARN_BUILD="$build" sh "$here/tests/rdma-vm/unit.sh" inside
}

# --- beside systemd ---------------------------------------------------------------------------------

started()
{
    # $1 how many times
    [ "$(grep -c '^tarnd ready' /run/tarnd.out)" = "$1" ]
}

restarts()
{
    until_true started $(($1 + 1)) && [ "$(systemctl show -p NRestarts --value tarnd)" = "$1" ]
}

main_process()
{
    systemctl show -p MainPID --value tarnd
}

moves()
{
    # $1 key, $2 transport, then options of put
    key=$1 transport=$2
    shift 2
    tarn put /run/data --key "$key" --transports "$transport" "$@" && tarn get "$key" --transports "$transport" -o /run/back &&
        cmp /run/data /run/back
}

has_no_rights()
{
    grep -q '^CapEff:[[:space:]]*0*$' "/proc/$(main_process)/status" && grep -q '^Seccomp:[[:space:]]*2' "/proc/$(main_process)/status"
}

nobody_is_refused()
{
    ! setpriv --reuid 65534 --regid 65534 --clear-groups redis-cli -s /run/tarn/node.sock PING
}

ends_in_order()
{
    systemctl stop tarnd && [ "$(systemctl show -p ExecMainStatus --value tarnd)" = 0 ] &&
        ! grep -q 'redis-server has ended' /run/tarnd.log
}

inside()
{
    says "systemctl start" timeout 120 systemctl start tarnd
    says "it is ready" until_true started 1
    says "without rights, behind a filter of system calls" has_no_rights
    TARN_REDIS=$(sed -n 's/^tarnd ready.* redis=\([^ ]*\).*/\1/p' /run/tarnd.out)
    export TARN_REDIS
    head -c 300000 /dev/urandom >/run/data
    for t in shm tcp rdma; do
        says "put and get by $t" moves "k-$t" "$t" --place node0/cpu0
    done
    says "put and get in huge pages" moves huge shm --place node0/huge0
    says "they are huge pages" grep -qE '^HugePages_Free: +0$' /proc/meminfo
    says "another user may not open the socket" nobody_is_refused
    says "root may drain it" redis-cli -s /run/tarn/node.sock DRAIN
    says "it comes back" restarts 1
    says "kill -9" kill -9 "$(main_process)"
    says "it comes back" restarts 2
    says "systemctl stop" ends_in_order
    [ $failed = 0 ] || { cat /run/tarnd.log && return 1; }
}

"${1:-outside}"
