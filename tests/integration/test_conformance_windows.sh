#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The conformance suite over windows, beside test_conformance, which has pools.
exec "${TARN_BUILD:-build}/tests/test_conformance" window
