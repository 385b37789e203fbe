#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The Python package's own tests (client/python/tests), against real nodes.
set -eu
. "$(dirname "$0")/../python.sh"
preloaded "$PYTHON" "$root/tests/unittests.py" "$root/client/python/tests"
