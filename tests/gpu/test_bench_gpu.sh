#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `tarn-bench gpu` as a program, over GPUs played in shared memory: every row is measured and verified, and
# says that its figures mean nothing.
group=gpu
. "$(dirname "$0")/bench.sh"

measured 65
[ "$(rows '"rounds": ')" = 64 ] || say "not every row but node_cpu was measured"
[ "$(rows '"note": "other GPU"')" = 18 ] || say "there are two GPUs"
grep -q STAND-IN "$dir/out" || say "the table does not say what it was measured over"

export STANDIN_DEVICES=1
measured 47
without_device
