#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The conformance suite over rdma only; the other transports need no VM.
exec "${TARN_BUILD:-build}/tests/test_conformance" rdma
