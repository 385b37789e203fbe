#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `tarn-bench peer --transport cuda_ipc` as a program, over GPUs played in shared memory: every row is measured and
# verified. Its figures mean nothing.
group=peer options='--transport cuda_ipc'
. "$(dirname "$0")/bench.sh"

run 0
[ "$(rows '"bench": "cuda_ipc_')" = 60 ] || say "$(rows '"bench": ') rows, not 60"
[ "$(rows '"note": "other GPU')" = 30 ] || say "there are two GPUs"
[ "$(rows '"rounds": ')" = 60 ] || say "not every row was measured"
[ "$(rows '"target": ')" = 0 ] || say "there is a target, as if the figures meant something"
[ "$(rows '"error": ')" = 0 ] || say "a row or a contestant failed"

STANDIN_DEVICES=1 run 0
[ "$(rows '"bench": ')" = 30 ] || say "$(rows '"bench": ') rows over one GPU, not 30"
