#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The conformance suite over the transport, with the plugin below it. ONLY=plain: without faults; ONLY=drop, and so on:
# with these.
set -u
. "$(dirname "$0")/given.sh"
case ${ONLY:-} in
'') ways=tcpx ;;
plain) ways='tcpx: ' ;;
*) ways="tcpx $ONLY" ;;
esac
exec "$build/tests/test_conformance" "$ways"
