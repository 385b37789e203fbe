# SPDX-License-Identifier: Apache-2.0
# Sourced by the scripts that test the Python package. Sets PYTHON, build and root and finds the package, or
# ends the script with the reason to skip it. AddressSanitizer's runtime must come first in the process.
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${TARN_BUILD:-$root/build}" && pwd)
PYTHON=${PYTHON:-python3}
export TARN_BUILD="$build" PYTHONPATH="$build/python" PYTHONDONTWRITEBYTECODE=1
unset TARN_REDIS TARN_NS TARN_SECRET TARN_TRANSPORTS TARN_TIMEOUT_MS

skip()
{
    echo "SKIP: $*"
    exit 77
}

command -v redis-server >/dev/null || skip "redis: no redis-server in PATH"
command -v "$PYTHON" >/dev/null || skip "python: there is no $PYTHON: install python3, or name one with PYTHON="
suffix=$("$PYTHON" -ISc 'import sysconfig as s; print(s.get_config_var("EXT_SUFFIX"))')
extension=$build/python/tarn/_tarn$suffix
[ -e "$extension" ] || skip "python: $PYTHON is older than 3.9 or has no Python.h, or make python was not run: install python3-dev"

sanitizer=$(ldd "$extension" | sed -n 's/^[[:space:]]*lib\([atu]*san\)\.so.*/\1/p' | head -n 1)
# preloaded COMMAND...: runs it with the sanitizer's runtime that the extension was built for, and with the
# C++ runtime, which must be loaded first if a library throws (torch). It does not detect leaks, because
# Python frees much of its memory only at its end. The C tests detect leaks.
preloaded()
{
    if [ -n "$sanitizer" ]; then
        runtimes=$(ldd "$extension" | sed -n 's/.* => \(.*lib[atu]*san\.so[^ ]*\) .*/\1/p' | tr '\n' ' ')
        set -- env LD_PRELOAD="${runtimes}libstdc++.so.6" \
            ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" "$@"
    fi
    "$@"
}
