#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of windows over rdma only. The other transports need no VM.
exec "${TARN_BUILD:-build}/tests/test_window" rdma
