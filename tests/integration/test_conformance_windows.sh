#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The conformance suite over windows, beside test_conformance, which has pools. ThreadSanitizer is slow: there without
# faults, and with delays.
test=${TARN_BUILD:-build}/tests/test_conformance
if ldd "$test" | grep -q 'libtsan\.so'; then
    "$test" " window: " || exit
    exec "$test" "window delay"
fi
exec "$test" window
