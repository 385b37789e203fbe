#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The Python package's own tests (client/python/tests), against real nodes. Those of the examples are in
# test_python_examples.sh.
set -eu
. "$(dirname "$0")/../python.sh"
files=$(ls "$root"/client/python/tests/test_*.py | grep -v /test_examples.py)
# shellcheck disable=SC2086 # a list of words
preloaded "$PYTHON" "$root/tests/unittests.py" $files
