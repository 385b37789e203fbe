#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A Redis without a password. If other users of the host can reach it, a node without a secret warns.
# Otherwise the node makes a secret, which clients find in Redis.
. "${0%/*}/cli.sh"

# redis NAME OPTION...: starts Redis on a Unix socket in its own folder, with mode 0755.
redis()
{
    folder=$1
    shift
    mkdir "$dir/$folder"
    chmod 0755 "$dir/$folder"
    start_redis "$folder/redis" "$@"
}
# node NAME open|guarded: starts a node with that Redis and checks its warning and secret.
node()
{
    : >"$dir/out" # of no command
    start_node "$1" --redis "unix://$dir/$1/redis.sock" --pool cpu0:bytes=1M
    cp "$dir/$1.log" "$dir/err"
    made=$(redis-cli -s "$dir/$1/redis.sock" HGET "tarn:default:node:$1" secret | wc -c)
    checks=$((checks + 1))
    if [ "$2" = open ]; then
        says err "every user of this host, and whoever reaches Redis, may read"
        [ "$made" -le 1 ] || fail "$1: a secret is made that every user can read"
    else
        silent_about err "every user of this host"
        [ "$made" -gt 32 ] || fail "$1: no secret is made"
        TARN_REDIS="unix://$dir/$1/redis.sock" expect 0 put "$dir/$1.log" --key k -f raw
    fi
}

chmod 0755 "$dir"
redis everybody --unixsocketperm 777
node everybody open
redis group --unixsocketperm 770
node group open
redis own --unixsocketperm 700
node own guarded
redis folder --unixsocketperm 777
chmod 0700 "$dir/folder"
node folder guarded
# A private socket as above, and also a port that any process can connect to.
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
redis port --port "$port" --bind 127.0.0.1 --unixsocketperm 700
node port open

finish
