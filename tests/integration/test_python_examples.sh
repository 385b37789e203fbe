#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the examples of the Python package, small and on the CPU, with torch if installed, else with NumPy.
set -eu
. "$(dirname "$0")/../python.sh"
[ -z "$sanitizer" ] || skip "python-examples: not with sanitizers: they are programs of several processes, and slow"
"$PYTHON" -c 'import numpy' 2>/dev/null || skip "python-examples: $PYTHON has no NumPy: install python3-numpy"
"$PYTHON" "$root/tests/unittests.py" "$root/client/python/tests/test_examples.py"
