#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs missing packages, builds with both compilers, and runs every test.
#   REQUIRE=a,b   skips whose reason begins with one of these names count as failures
#   QUICK=1       omits the sanitizer and fuzz runs
set -eu
cd "$(dirname "$0")/.."
. deploy/ui.sh

# deps.sh installs packages for this Python; `python3` may be another.
export PYTHON="${PYTHON:-/usr/bin/python3}"

jobs=$(nproc 2>/dev/null || echo 2)
# Tests at a time: most of them wait most of their time. More would compare times with a busy host's.
most=$((jobs < 3 ? jobs * 3 : 8))
export JOBS=$most

say "${ui_bold}tarn: build and test${ui_off}"
rm -f "$LOG_DIR"/*.log
packages check
# Built first: what a build writes delays tests, whose nodes beat every 100 ms. VMs have no disk here to wait for.
step "Build (gcc)" make -j"$jobs" WERROR=1 CC=gcc all tests python
# Only for its warnings, which do not depend on optimization.
step "Build (clang)" make -j"$jobs" WERROR=1 CC=clang CFLAGS="-O0 -g" B=build-clang all python
step "Build (stand-in)" make -j"$jobs" standin
step "Tests" env REQUIRE="${REQUIRE:+$REQUIRE,}python,python-wheel" make check-tests

# The VMs' tests watch deadlines: beside them only what yields to them.
# Short; the long runs are in tests/rdma-vm/README.md.
begin "RDMA, in VMs" env RDMA_CONNECTS="${RDMA_CONNECTS:-20}" RDMA_SECONDS="${RDMA_SECONDS:-5}" \
    REQUIRE="${REQUIRE:+$REQUIRE,}rdma" make check-rdma
step "Style and documents" nice -n 19 make check-style
step "Models" nice -n 19 make check-model QUICK=1
[ -n "${QUICK:-}" ] || step "Build (sanitizers)" nice -n 19 make sanitized
finish
# The soaks wait most of their time. They are short; a run that counts takes an hour:
# make soak SECONDS=3600 SEED= TRANSPORT= COPIES=.
begin "Random faults, checked histories" make soak SECONDS="${SOAK_SECONDS:-30}" TRANSPORT=shm COPIES=2
begin "Random faults, over the stand-in" make soak B=build-standin CUDA=standin SECONDS="${SOAK_SECONDS:-30}" \
    TRANSPORT=cuda_ipc COPIES=2
begin "Directory in other servers" make check-redis JOBS=2 SERVERS="redis-6.0 valkey-8.1"
step "GPU pools, over a stand-in" make check-standin
step "A network plugin by its path" env REQUIRE="${REQUIRE:+$REQUIRE,}tcpx-plugin" \
    make check-tcpx TARN_TCPX_PLUGIN=build/tests/tcpx/libtcpx-fixture-v6.so
finish

if [ -z "${QUICK:-}" ]; then
    # Short; longer ones: make fuzz FUZZ_SECONDS=600. The tests beside it wait most of their time.
    begin "Fuzzing" nice -n 19 make fuzz FUZZ_SECONDS="${FUZZ_SECONDS:-10}"
    # Sanitized tests compute most of their time.
    step "Address, undefined" make check-asan JOBS=$((jobs + 1))
    step "Threads" make check-tsan JOBS=$((jobs + 1))
    finish
fi
# The suites' counts again, for a reader of only the end.
cat build/log/*.log | awk '/^[0-9]+ passed, [0-9]+ failed/ { p += $1; f += $3; s += $5 }
    END { printf "%d passed, %d failed, %d skipped\n", p, f, s }'
say "${ui_green}All checks passed.${ui_off}"
