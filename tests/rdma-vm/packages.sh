# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
# Debian and Ubuntu packages that vm.sh needs, and the verbs tools to run in the VM.

# shellcheck disable=SC2034 # read by whoever sources this file
rdma_vm_packages="qemu-system-x86 busybox-static cpio kmod xz-utils iproute2
    libibverbs-dev ibverbs-providers ibverbs-utils perftest"
