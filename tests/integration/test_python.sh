#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the Python package's own tests (client/python/tests) against real nodes. test_python_examples.sh tests
# the examples.
set -eu
. "$(dirname "$0")/../python.sh"
files=$(ls "$root"/client/python/tests/test_*.py | grep -v /test_examples.py)
# shellcheck disable=SC2086 # a list of words
preloaded "$PYTHON" "$root/tests/unittests.py" $files
