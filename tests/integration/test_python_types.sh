#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Type-checks the Python package and a program that uses it: mypy --strict, and pyright if installed.
set -eu
. "$(dirname "$0")/../python.sh"
[ -z "$sanitizer" ] || skip "python-types: not with sanitizers: nothing of the library is run"
cd "$root/client/python"
if "$PYTHON" -m mypy --version >/dev/null 2>&1; then
    set -- "$PYTHON" -m mypy
elif command -v mypy >/dev/null; then
    set -- mypy --python-executable "$PYTHON"
else
    skip "mypy: not installed: apt-get install mypy"
fi
"$PYTHON" -c 'import numpy' 2>/dev/null || skip "numpy: not installed for $PYTHON: the types of arrays are its"

failed=0
MYPYPATH=src "$@" --strict --cache-dir "$build/python/mypy" -p tarn || failed=$((failed + 1))
MYPYPATH=src "$@" --strict --cache-dir "$build/python/mypy" tests/typed_use.py || failed=$((failed + 1))
pyright=$(command -v pyright || command -v basedpyright || :)
if [ -n "$pyright" ]; then
    "$pyright" --level error --pythonpath "$(command -v "$PYTHON")" src/tarn tests/typed_use.py ||
        failed=$((failed + 1))
else
    echo "skip: pyright: not installed"
fi
[ $failed = 0 ]
