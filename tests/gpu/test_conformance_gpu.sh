#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The conformance suite over memory of GPUs, at nodes and at clients.
exec "${TARN_BUILD:-build}/tests/test_conformance" gpu
