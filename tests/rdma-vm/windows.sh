#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of windows over rdma only. The other transports need no VM.
status=0
for t in test_window test_window_told test_forward; do
    "${TARN_BUILD:-build}/tests/$t" rdma || status=1
done
exit $status
