#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the conformance suite over the tcpx transport with the given plugin. ONLY=plain: without faults.
# ONLY=drop and so on: with these faults.
set -u
. "$(dirname "$0")/given.sh"
case ${ONLY:-} in
'') ways=tcpx ;;
plain) ways='tcpx: ' ;;
*) ways="tcpx $ONLY" ;;
esac
exec "$build/tests/test_conformance" "$ways"
