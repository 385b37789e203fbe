#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs both programs of run_tcpx_test.sh, with server and client on this host.
set -u
. "$(dirname "$0")/given.sh"
script=$(dirname "$0")/run_tcpx_test.sh
out=$(mktemp)
server=
cleanup()
{
    [ -z "$server" ] || { kill "$server" 2>/dev/null && wait "$server"; }
    rm -f "$out"
}
trap cleanup EXIT
for program in connection transfer; do
    sh "$script" $program server 0 >"$out" 2>&1 &
    server=$! port= client=0 served=0
    while [ -z "$port" ] && kill -0 $server 2>/dev/null; do
        port=$(sed -n 's/.*Waiting for the client at port //p' "$out")
    done
    sh "$script" $program 127.0.0.1 "${port:-1}" || client=$?
    wait $server || served=$?
    server=
    cat "$out"
    [ "$client $served" = '0 0' ] || { echo "$program: client $client, server $served"; exit 1; }
done
