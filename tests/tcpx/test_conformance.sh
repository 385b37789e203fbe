#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The conformance suite over the transport, with the plugin below it.
set -u
. "$(dirname "$0")/given.sh"
exec "$build/tests/test_conformance" tcpx
