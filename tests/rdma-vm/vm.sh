#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a command in a VM with RDMA: Debian's kernel with soft-RoCE (rdma_rxe), under QEMU without KVM. The VM
# uses the host's file system read-only. See README.md.
#   vm.sh [--vms 1|2] [--rails 1|2] [--wire] [--timeout SECONDS] [--out DIR] [--] [COMMAND...]
# Without COMMAND: a shell. Exit status: COMMAND's (with two VMs the higher one); 124 after the timeout;
# 77 with "SKIP: rdma: <why>" if this machine cannot run a VM; 125 if the VM failed.
#   TARN_RDMA_VM_CACHE   folder for the kernel (${XDG_CACHE_HOME:-$HOME/.cache}/tarn/rdma-vm)
#   TARN_RDMA_VM_MEMORY  memory of one VM, in MiB (2048)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cache=${TARN_RDMA_VM_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/tarn/rdma-vm}
memory=${TARN_RDMA_VM_MEMORY:-2048}
vms=1 rails=1 timeout=600 out='' wire=''
root_modules="virtio_pci 9pnet_virtio 9p virtio_net"
rdma_modules="veth crc32_generic rdma_rxe rdma_ucm sch_tbf sch_netem tcp_diag"
vm_pids='' readers='' work=''

usage()
{
    echo "usage: vm.sh [--vms 1|2] [--rails 1|2] [--wire] [--timeout SECONDS] [--out DIR] [--] [COMMAND...]" >&2
    exit 2
}

skip()
{
    echo "SKIP: rdma: $*"
    exit 77
}

# --- the cache: the kernel, and an initramfs with its modules --------------------------------------

needed()
{
    # $1 program, $2 its package
    command -v "$1" >/dev/null || PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null ||
        skip "$1 is not installed: apt-get install $2"
}

programs()
{
    [ "$(uname -m)" = x86_64 ] || skip "the VM is x86_64, this machine is $(uname -m)"
    needed qemu-system-x86_64 qemu-system-x86
    needed busybox busybox-static
    needed cpio cpio
    needed modprobe kmod
    needed rdma iproute2
    needed ip iproute2
    needed flock util-linux
}

download()
{
    package=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p')
    [ -n "$package" ] && (cd "$1" && apt-get download "$package") >"$1/log" 2>&1
}

# Without access to linux-image-amd64, copy the .deb files of a kernel with rdma_rxe to the cache by hand.
fetch_kernel()
{
    set -- "$cache"/*.deb
    [ ! -e "$1" ] || return 0
    needed apt-get apt
    rm -rf "$cache/fetch" && mkdir "$cache/fetch"
    echo "vm.sh: fetching Debian's kernel, once" >&2
    download "$cache/fetch" || { [ "$(id -u)" = 0 ] && apt-get update >/dev/null 2>&1 && download "$cache/fetch"; } ||
        skip "cannot fetch the kernel package linux-image-amd64: $(tail -n 1 "$cache/fetch/log" 2>/dev/null); run apt-get update, or put a kernel's .deb files in $cache"
    mv "$cache"/fetch/*.deb "$cache"
    rm -r "$cache/fetch"
}

# Unpacks the kernel here, which takes half a second; the VM would take three. Linux,
# Documentation/x86/boot.rst says where the compressed kernel is in the file.
bare_kernel()
{
    number()
    {
        od -An -t "u$2" -j "$1" -N "$2" "$kernel" | tr -d ' '
    }
    kernel=$1
    start=$((($(number 497 1) + 1) * 512 + $(number 584 4)))
    tail -c +$((start + 1)) "$kernel" | head -c $(($(number 588 4) - 4)) >"$2.packed"
    xz -dc <"$2.packed" >"$2" 2>/dev/null || zstd -dc <"$2.packed" >"$2" 2>/dev/null || cp "$kernel" "$2"
}

# Copies modules and their dependencies, and lists them in load order.
pick_modules()
{
    # $1 unpacked kernel, $2 its version, $3 where to, $4 name of the list, then the modules
    from=$1 version=$2 to=$3 list=$4
    shift 4
    for m in "$@"; do
        modprobe -d "$from" -S "$version" --show-depends "$m" || echo "missing $m"
    done 2>/dev/null | awk '$1 == "missing" || !seen[$2]++ { print $1, $2 }' >"$from/wanted"
    ! grep -q '^missing' "$from/wanted" || skip "the kernel $version has no module $(sed -n 's/^missing //p' "$from/wanted")"
    while read -r _ f; do
        name=${f##*/}
        case $f in
        *.xz) xz -dc "$f" ;;
        *.zst) zstd -dc "$f" ;;
        *) cat "$f" ;;
        esac >"$to/${name%%.*}.ko"
        echo "${name%%.*}.ko"
    done <"$from/wanted" >"$to/$list"
}

build_base()
{
    tmp=$cache/unpacked
    rm -rf "$tmp" && mkdir "$tmp"
    for deb in "$cache"/*.deb; do
        dpkg -x "$deb" "$tmp"
    done
    [ -d "$tmp/lib/modules" ] || ln -s usr/lib "$tmp/lib"
    version=$(basename "$tmp"/lib/modules/*)
    depmod -b "$tmp" "$version"
    mkdir -p "$tmp/base/bin" "$tmp/base/modules"
    (cd "$tmp/base" && mkdir dev proc sys host old-tmp)
    cp "$(command -v busybox)" "$tmp/base/bin/"
    busybox --list | while read -r applet; do
        [ "$applet" = busybox ] || ln -s busybox "$tmp/base/bin/$applet"
    done
    # shellcheck disable=SC2086 # words
    {
        pick_modules "$tmp" "$version" "$tmp/base/modules" root $root_modules
        pick_modules "$tmp" "$version" "$tmp/base/modules" rdma $rdma_modules
    }
    pack "$tmp/base" >"$tmp/base.cpio"
    bare_kernel "$tmp/boot/vmlinuz-$version" "$tmp/vmlinux"
    mv "$tmp/vmlinux" "$base.vmlinux"
    mv "$tmp/base.cpio" "$base.cpio"
    rm -rf "$tmp"
}

pack()
{
    (cd "$1" && find . | cpio --quiet -o -H newc)
}

prepare()
{
    PATH=$PATH:/usr/sbin:/sbin
    mkdir -p "$cache" || skip "cannot write $cache: set TARN_RDMA_VM_CACHE"
    exec 9>"$cache/lock"
    flock 9
    fetch_kernel
    base=$cache/$( (echo "$root_modules; $rdma_modules"; ls "$cache"/*.deb; cat "$(command -v busybox)") | cksum | tr -d ' ')
    [ -e "$base.cpio" ] || build_base
    exec 9>&-
    mkdir "$work/init"
    install -m 755 "$here/init" "$work/init/init"
    { cat "$base.cpio" && pack "$work/init"; } >"$work/initramfs"
}

# --- one run ---------------------------------------------------------------------------------------

# shellcheck disable=SC2317 # the trap's
clean()
{
    trap - EXIT INT TERM HUP
    for pid in $vm_pids $readers; do
        kill "$pid" 2>/dev/null || true
    done
    wait
    [ -z "$out" ] || { mkdir -p "$out" && cp -R "$work/share/out/." "$out/"; }
    rm -rf "$work"
}

quoted()
{
    for word in "$@"; do
        printf "'%s' " "$(printf %s "$word" | sed "s/'/'\\\\''/g")"
    done
}

# Lists the folders in /tmp that the VM needs. The VM has its own /tmp.
kept()
{
    for d in "$PWD" "$here" "${TARN_BUILD:-}"; do
        case $d in
        /tmp/*) echo "$d" ;;
        esac
    done
}

# Writes the files that the VMs read. VM N adds status.N, boot.N (seconds until COMMAND) and trouble.N.
share()
{
    mkdir -p "$work/share/out"
    printf 'vms=%s rails=%s wire=%s here=%s\n' "$vms" "$rails" "$wire" "$(quoted "$here")" >"$work/share/settings"
    # Without the settings of this script, because tarnd rejects unknown variables.
    (unset TARN_RDMA_VM_CACHE TARN_RDMA_VM_MEMORY && export -p) >"$work/share/environment"
    kept >"$work/share/kept"
    if [ $# = 0 ]; then
        : >"$work/share/shell"
        set -- "${SHELL:-/bin/sh}" -i
    fi
    { printf 'cd %s || exit 125\n' "$(quoted "$PWD")" && quoted "$@"; } >"$work/share/command"
}

# A rail between two VMs is a socket. The first VM listens.
link_arguments()
{
    [ "$vms" = 2 ] || return 0
    server=on
    [ "$1" = 1 ] || server=off
    for r in 0 1; do
        [ $r -lt "$rails" ] || break
        printf '%s ' "-netdev stream,id=rail$r,server=$server,addr.type=unix,addr.path=$work/rail$r"
        printf '%s ' "-device virtio-net-pci,netdev=rail$r,mac=02:00:00:00:0$r:0$1,host_mtu=9000,romfile="
    done
}

# The emulator uses this machine's time-stamp counter. The VM's kernel gets its frequency from here: on a busy
# host it could measure a wrong one, because the emulated clock may stand still during the measurement.
tsc_khz()
{
    ${CC:-cc} -O2 -o "$work/tsc" "$here/tsc.c" && "$work/tsc"
}

# Disables "rep movs" in kernel and libc, because the emulator runs it byte by byte. The other parameters skip
# slow steps of the boot, and checks that fail when the host stalls the VM.
boot()
{
    # $1 number of the VM; its standard input and output are COMMAND's
    # shellcheck disable=SC2046 # words
    exec timeout --foreground -k 5 "$timeout" qemu-system-x86_64 -M pc -accel tcg,thread=multi \
        -cpu max,-erms,-fsrm -smp 2 -m "$memory" -nodefaults -no-user-config -display none -no-reboot \
        -kernel "$base.vmlinux" -initrd "$work/initramfs" \
        -append "console=ttyS0 quiet panic=-1 oops=panic vm=$1 nokaslr mitigations=off no5lvl clearcpuid=rep_good \
tsc=reliable tsc_early_khz=$khz no_timer_check nowatchdog rcupdate.rcu_cpu_stall_suppress=1 rcupdate.rcu_expedited=1 \
rodata=off init_on_alloc=0 cryptomgr.notests random.trust_cpu=on audit=0 apparmor=0" \
        -serial "file:$work/console.$1" -chardev stdio,id=out,signal=off -serial chardev:out \
        -fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap \
        -device virtio-9p-pci,fsdev=root,mount_tag=root \
        -fsdev "local,id=share,path=$work/share,security_model=none" \
        -device virtio-9p-pci,fsdev=share,mount_tag=share \
        $(link_arguments "$1") 2>"$work/qemu.$1"
}

# The emulator makes its output non-blocking, so it gets its own pipe, except for a shell on a terminal.
start()
{
    if [ -e "$work/share/shell" ]; then
        boot "$1" <&3 &
        vm_pids="$vm_pids $!"
        return
    fi
    mkfifo "$work/output.$1"
    case $1 in
    1) cat <"$work/output.$1" & ;;
    *) sed -u "s/^/[vm $1] /" <"$work/output.$1" & ;;
    esac
    readers="$readers $!"
    boot "$1" </dev/null >"$work/output.$1" &
    vm_pids="$vm_pids $!"
}

# VM 1 listens on the sockets of the rails. VM 2 starts when the sockets exist.
start_all()
{
    start 1
    [ "$vms" = 2 ] || return 0
    tries=0
    while [ ! -S "$work/rail$((rails - 1))" ] && [ $tries -lt 100 ]; do
        tries=$((tries + 1))
        sleep 0.05
    done
    start 2
}

# Returns the exit status of one VM.
result()
{
    # $1 number of the VM, $2 the emulator's exit status
    if [ -s "$work/share/status.$1" ]; then
        return "$(cat "$work/share/status.$1")"
    elif [ "$2" = 124 ] || [ "$2" = 137 ]; then
        echo "vm.sh: VM $1 ended after $timeout s, COMMAND was $([ -e "$work/share/boot.$1" ] && echo running || echo not running yet)" >&2
        return 124
    fi
    echo "vm.sh: VM $1 failed, emulator's exit status $2; what it said last:" >&2
    cat "$work/share/trouble.$1" "$work/qemu.$1" 2>/dev/null >&2
    tail -n 30 "$work/console.$1" >&2
    return 125
}

wait_all()
{
    worst=0 n=0
    for pid in $vm_pids; do
        n=$((n + 1)) rc=0
        wait "$pid" || rc=$?
        result $n $rc || rc=$?
        [ $rc -le $worst ] || worst=$rc
    done
    # shellcheck disable=SC2086 # words
    [ -z "$readers" ] || wait $readers || true
}

while [ $# -gt 0 ]; do
    case $1 in
    --vms | --rails | --timeout | --out)
        [ $# -ge 2 ] || usage
        eval "${1#--}=\$2"
        shift 2
        ;;
    --wire)
        wire=1
        shift
        ;;
    --)
        shift
        break
        ;;
    -*) usage ;;
    *) break ;;
    esac
done
case "$vms$rails$wire" in
[12][12] | 1[12]1) ;;
*) usage ;;
esac

programs
work=$(mktemp -d)
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
exec 3<&0
prepare
khz=$(tsc_khz) || skip "no C compiler: apt-get install gcc"
share "$@"
start_all
wait_all
exit "$worst"
