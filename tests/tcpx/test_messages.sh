#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Sends random messages with calls of the plugin, without the transport, both ends in one process.
set -u
. "$(dirname "$0")/given.sh"
exec "$build/tests/test_tcpx_messages" random_messages_pass_the_given_plugin
