#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Random messages through the plugin, both ends in one process, by its calls and nothing of the transport.
set -u
. "$(dirname "$0")/given.sh"
exec "$build/tests/test_tcpx_messages" random_messages_pass_the_given_plugin
