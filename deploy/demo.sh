#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs missing packages, builds, and shows the main job: it starts two storage nodes and a directory, stores
# real tensors, reads them back by shared memory and by TCP with every byte compared, shows the directory with
# redis-cli, and replays prefix-cache requests.
#   TRACE=FILE    requests to replay (default: ../shared/data/conversation_trace.jsonl if it exists,
#                 else generated requests)
#   MINUTES=N     how much of the trace (3)
set -eu
cd "$(dirname "$0")/.."
. deploy/ui.sh

packages run
# Two demos that start at once build one after the other.
step "Build" flock build/log/lock make -j"$(nproc 2>/dev/null || echo 2)" all

export TARN_BUILD=build
tarn=build/tarn
dir=$(mktemp -d)
pids=
cleanup()
{
    for p in $pids; do kill "$p" 2>/dev/null || true; done
    for p in $pids; do wait "$p" 2>/dev/null || true; done
    rm -rf "$dir"
}
trap cleanup EXIT

# start_node ID [options]: starts a node, waits for its ready line, which sets $redis.
start_node()
{
    id=$1
    shift
    build/tarnd --id "$id" --listen 127.0.0.1:0 --unix "$dir/$id.sock" "$@" >"$dir/$id.out" 2>"$dir/$id.log" &
    pids="$! $pids"
    n=0
    while ! grep -q '^tarnd ready' "$dir/$id.out"; do
        n=$((n + 1))
        if [ $n -gt 100 ] || ! kill -0 "${pids%% *}" 2>/dev/null; then
            cat "$dir/$id.log"
            exit 1
        fi
        sleep 0.1
    done
    redis=$(sed -n 's/^tarnd ready.* redis=\([^ ]*\).*/\1/p' "$dir/$id.out")
    say "  $(cat "$dir/$id.out" | grep '^tarnd ready')"
}

say
say "${ui_bold}Two storage nodes and their directory${ui_off}"
start_node node0 --pool cpu0:bytes=512M --heartbeat-ms 200
TARN_REDIS=$redis
export TARN_REDIS
start_node node1 --pool cpu0:bytes=512M --heartbeat-ms 200

# A .safetensors file: the header's length (8 bytes, little-endian), the header, the tensors' bytes.
# $1 file, then name:dtype:shape:bytes ...
make_safetensors()
{
    file=$1 header='{' offset=0
    shift
    for t in "$@"; do
        name=${t%%:*} rest=${t#*:}
        dtype=${rest%%:*} rest=${rest#*:}
        shape=${rest%%:*} bytes=${rest#*:}
        [ "$header" = '{' ] || header="$header,"
        header="$header\"$name\":{\"dtype\":\"$dtype\",\"shape\":[$shape],\"data_offsets\":[$offset,$((offset + bytes))]}"
        offset=$((offset + bytes))
    done
    header="$header}"
    n=${#header}
    # shellcheck disable=SC2059 # the format is the bytes
    printf "\\$(printf %03o $((n % 256)))\\$(printf %03o $((n / 256 % 256)))\\000\\000\\000\\000\\000\\000" >"$file"
    printf '%s' "$header" >>"$file"
    head -c "$offset" /dev/urandom >>"$file"
    data_start=$((8 + n))
}

# Reads every tensor of a file back by one transport and compares it byte by byte.
compare()
{
    file=$1 transport=$2 offset=$data_start count=0
    shift 2
    for t in "$@"; do
        name=${t%%:*} bytes=${t##*:}
        $tarn get "$name" --transports "$transport" --format raw -o "$dir/back" --quiet
        tail -c "+$((offset + 1))" "$file" | head -c "$bytes" | cmp - "$dir/back" || {
            say "${ui_red}$name is not what was stored.${ui_off}"
            exit 1
        }
        offset=$((offset + bytes)) count=$((count + 1))
    done
    say "  $transport: $count tensors, $((offset - data_start)) bytes, every byte equal"
}

say
say "${ui_bold}A model's tensors, several element types${ui_off}"
set -- embed.weight:BF16:4096,512:4194304 layer.0.attn:F16:512,1536:1572864 layer.0.norm:F32:512:2048 \
    layer.0.scale:F8_E4M3:512,512:262144 token.ids:I64:1000:8000 mask:BOOL:333:333 step:I32::4
make_safetensors "$dir/model.safetensors" "$@"
$tarn put "$dir/model.safetensors"
compare "$dir/model.safetensors" shm "$@"
compare "$dir/model.safetensors" tcp "$@"

say
say "${ui_bold}Sixteen paged KV blocks (2 x 16 tokens x 8 heads x 128, bf16)${ui_off}"
set --
for i in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
    set -- "$@" "kv/llama/$i:BF16:2,16,8,128:65536"
done
make_safetensors "$dir/kv.safetensors" "$@"
$tarn put "$dir/kv.safetensors"
compare "$dir/kv.safetensors" shm "$@"
compare "$dir/kv.safetensors" tcp "$@"

say
say "${ui_bold}The directory is plain Redis${ui_off}"
cli="redis-cli --no-auth-warning -u \$TARN_REDIS"
show()
{
    say "  ${ui_dim}\$ $1${ui_off}"
    sh -c "$1" | sed 's/^/    /'
}
show "$cli SMEMBERS tarn:default:nodes"
show "$cli --scan --pattern 'tarn:default:o:layer*'"
show "$cli HGETALL tarn:default:o:embed.weight"

say
trace=${TRACE:-../shared/data/conversation_trace.jsonl}
if [ -r "$trace" ]; then
    say "${ui_bold}Replay: the first ${MINUTES:-3} minutes of $(basename "$trace")${ui_off}"
else
    # Conversations that go on: each request repeats a conversation's blocks and adds some.
    trace=$dir/trace.jsonl
    awk 'BEGIN {
        srand(7); next_id = 1
        for (r = 0; r < 600; r++) {
            c = int(rand() * 60); new = 1 + int(rand() * 6)
            if (n[c] > 60) n[c] = 0
            for (i = 0; i < new; i++) ids[c, n[c]++] = next_id++
            line = "0"
            for (i = 0; i < n[c]; i++) line = line ", " ids[c, i]
            printf "{\"timestamp\": %d, \"input_length\": %d, \"output_length\": 100, \"hash_ids\": [%s]}\n", r * 300, (n[c] + 1) * 512, line
        }
    }' >"$trace"
    say "${ui_bold}Replay: 600 made-up requests of 60 conversations${ui_off}"
fi
build/tarn-bench replay --trace "$trace" --minutes "${MINUTES:-3}" --block-bytes 64K --redis "$TARN_REDIS" \
    --json "$dir/replay.json"

say
say "${ui_bold}What the nodes hold now${ui_off}"
$tarn info

say
say "${ui_green}The demo is done: everything that was stored came back, byte for byte.${ui_off}"
