#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The doctor finds nothing missing.
set -u
. "$(dirname "$0")/given.sh"
exec "$build/tarn" doctor tcpx --timeout-ms 15000
