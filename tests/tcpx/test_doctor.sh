#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tarn doctor finds nothing missing with the given plugin.
set -u
. "$(dirname "$0")/given.sh"
exec "$build/tarn" doctor tcpx --timeout-ms 15000
