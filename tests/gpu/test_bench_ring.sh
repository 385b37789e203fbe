#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `tarn-bench ring` as a program, with producers that threads play: every command is answered and checked, and every
# row says that its figures mean nothing.
group=ring
. "$(dirname "$0")/bench.sh"

measured 14
[ "$(rows '"rounds": ')" = 14 ] || say "not every row was measured"
[ "$(rows '"bare_p999_us": ')" = 11 ] || say "not every row with latencies has those of the bare ring"
without_device
