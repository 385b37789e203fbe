#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the wheel, and the sources with pip, in new virtual environments without a network. They need only
# libc, and they put and get. No verbs library is found, as on most machines.
set -eu
. "$(dirname "$0")/../python.sh"
[ -z "$sanitizer" ] || skip "python-wheel: not with sanitizers: their runtime would have to come first"
"$PYTHON" -c 'import ensurepip, setuptools, wheel, venv' 2>/dev/null ||
    skip "python-wheel: $PYTHON has no venv, setuptools or wheel: install python3-venv python3-setuptools python3-wheel"
packages=$("$PYTHON" -c 'import os, setuptools; print(os.path.dirname(setuptools.__path__[0]))')
unset PYTHONPATH
dir=$(mktemp -d)
node=
trap '[ -z "$node" ] || { kill "$node" && wait "$node"; } || :; rm -rf "$dir"' EXIT
die()
{
    echo "$*"
    cat "$dir"/*.log
    exit 1
}

mkfifo "$dir/ready"
"$build/tarnd" --id node0 --listen 127.0.0.1:0 --unix "$dir/node.sock" --pool cpu0:bytes=64M \
    >"$dir/ready" 2>"$dir/node.log" &
node=$!
read -r ready <"$dir/ready" || die "the node does not start"
redis=$(echo "$ready" | tr ' ' '\n' | sed -n 's/^redis=//p')
mkdir "$dir/no-verbs" && : >"$dir/no-verbs/libibverbs.so.1"

cat >"$dir/use.py" <<'P'
import sys
import tarn

data = bytes(range(256)) * 1000
with tarn.Client(sys.argv[1]) as c:
    c.put(sys.argv[2], data)
    assert bytes(c.get(sys.argv[2], out="bytes")) == data
    assert c.remove(sys.argv[2])
print(tarn.__version__, tarn.lib_version(), tarn.__file__)
P

# uses VENV: puts and gets with only the packages that are installed there.
uses()
{
    (cd / && env -i LD_LIBRARY_PATH="$dir/no-verbs" "$dir/$1/bin/python" "$dir/use.py" "$redis" "key-$1") \
        >"$dir/used" 2>"$dir/used.log" || die "$1: put and get failed"
    grep -q "$dir/$1/" "$dir/used" || die "$1: another tarn was used: $(cat "$dir/used")"
}

make -C "$root" B="$build" PYTHON="$PYTHON" wheel >"$dir/make.log" 2>&1 || die "make wheel failed"
wheel=$(ls -t "$build"/wheel/*.whl | head -n 1)
"$PYTHON" -m venv "$dir/wheel" >"$dir/venv.log" 2>&1 || die "venv failed"
"$dir/wheel/bin/pip" --disable-pip-version-check install --no-index "$wheel" >"$dir/pip.log" 2>&1 ||
    die "the wheel cannot be installed"
uses wheel

# The extension needs only standard system libraries, because it contains libtarn and hiredis.
needs=$(readelf -d "$dir"/wheel/lib/python*/site-packages/tarn/_tarn*.so | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
for n in $needs; do
    case $n in
    libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | ld-linux*) ;;
    *) [ -z "${n##libhiredis*}" ] && [ ! -e "$(${CC:-cc} -print-file-name=libhiredis.a)" ] ||
        die "the extension needs $n" ;;
    esac
done

# Installs the sources as a user of a checkout does, but with the local build tools.
"$PYTHON" -m venv "$dir/sources" >"$dir/venv.log" 2>&1 || die "venv failed"
PYTHONPATH=$packages "$dir/sources/bin/pip" --disable-pip-version-check install --no-index --no-build-isolation \
    "$root/client/python" >"$dir/pip.log" 2>&1 || die "pip install client/python failed"
uses sources
left=$(cd "$root" && git status --porcelain --ignored client/python 2>/dev/null | grep -v __pycache__ || :)
[ -z "$left" ] || echo "note: in client/python: $left"
