#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `tarn-bench rows` as a program, over GPUs played in shared memory: every row is measured and verified, and
# says that its figures mean nothing.
group=rows
. "$(dirname "$0")/bench.sh"

measured 12
[ "$(rows '"rounds": ')" = 12 ] || say "not every row was measured"

export STANDIN_DEVICES=1
measured 8
without_device
