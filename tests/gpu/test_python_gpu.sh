#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What of the Python package's tests is about GPUs: those of this machine, or played ones.
set -eu
. "$(dirname "$0")/../python.sh"
UNITTESTS="cuda Cuda CUDA gpu Gpu GPU" preloaded "$PYTHON" "$root/tests/unittests.py" "$root"/client/python/tests/test_*.py
