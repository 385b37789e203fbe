#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Writes the pages that are made from tables in the code: options.md, errors.md.  generate.sh DIR
set -eu
build=${TARN_BUILD:-build}
cd "$(dirname "$0")/.."
{
    echo '# Options'
    echo
    echo 'Made by `make docs` from the tables that the programs parse with.'
    echo
    "$build/tarnd" --markdown
    "$build/tarn" --markdown
} >"$1/options.md"
{
    echo '# Errors'
    echo
    echo 'Made by `make docs` from include/tarn/error.h, which explains the classes.'
    echo
    echo '| name | value | class | meaning |'
    echo '|---|---|---|---|'
    sed -n 's/^    X(\([A-Z_]*\), \(-[0-9]*\), \([A-Z]*\), "\(.*\)").*/| `\1` | \2 | \3 | \4 |/p' include/tarn/error.h
} >"$1/errors.md"
