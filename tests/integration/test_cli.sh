#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The tarn command against live nodes: puts and gets files of every format and element type and compares the
# bytes; checks what each command prints for people and as JSON; checks sentences and exit statuses of errors.
. "${0%/*}/cli.sh"

# --- without any node -------------------------------------------------------------------------------

expect 2
says err "Commands:"
expect 0 help
says out "doctor"
for c in put get ls stat rm pin unpin touch ttl info ping drain config doctor top events; do
    expect 0 help $c
    says out "tarn $c"
    expect 0 $c --help
    says out "--redis"
    silent err
done
expect 0 --version
says out "tarn "
expect 0 --man
says out ".Nm tarn"
expect 0 --markdown
says out "## tarn put"
# Options of all commands are documented once.
[ "$(grep -c '`TARN_TRANSPORTS`' out)" = 1 ] || fail "--markdown repeats the options of every command"
tarn --man >out
[ "$(grep -c 'Transports to use' out)" = 1 ] || fail "--man repeats the options of every command"
expect 0 put --help
[ "$(sed -n '/^Options:/,/^$/p' out | grep -c -e --redis)" = 0 ] || fail "put --help: --redis is among its own"
[ "$(sed -n '/^Options of every command:/,/^$/p' out | grep -cE -e '--(redis|ns|secret|transports|timeout-ms|json|quiet|help)\b')" -ge 8 ] ||
    fail "put --help lacks options of every command"
expect 2 pt
says err "did you mean \`tarn put\`?"
expect 2 xyzzy
says err "see \`tarn help\`"
for c in help --version --man; do
    tarn $c >/dev/full 2>err && fail "tarn $c into a full device"
    says err "standard output: "
done
expect 2 help gte
says err "did you mean \`tarn get\`?"
expect 2 help get extra
says err 'too many arguments ("extra")'
expect 2 --version extra
silent out
expect 2 stat --json
silent out
expect 2 ttl --json
silent out
expect 2 put --replcae x
says err "did you mean --replace?"
expect 2 ls --timeout-ms soon
says err "timeout-ms"
expect 2 put
says err "FILE is missing"
expect 2 get
says err "KEY is missing"
expect 2 --redis x ls
says err "options come after the command"
expect 4 ls --redis redis://127.0.0.1:1
says err "tarn ls: redis at redis://127.0.0.1:1"
expect 6 ls --redis nonsense
expect 4 info --redis redis://127.0.0.1:1
says out "shm"
silent_about out "no nodes"
expect 6 doctor --redis redis://127.0.0.1:1
says out "something needed is missing"
says err "1 thing that tarn needs is missing"
says out "memlock limit"
if [ -e /sys/class/infiniband ] && [ -n "$(ls /sys/class/infiniband)" ]; then
    says out "/dev/infiniband"
    expect 4 info --redis redis://127.0.0.1:1
    says out "RDMA PORT"
else
    says out "none in /sys/class/infiniband"
    silent_about out "/dev/infiniband "
    expect 4 info --redis redis://127.0.0.1:1
    silent_about out "RDMA PORT"
    says out "rdma: no device"
fi
if [ ! -e /proc/driver/nvidia/version ] && grep -q '^cuda_ipc  *no ' out; then
    checks=$((checks + 1))
    grep -qE '^cuda_ipc  *no .*(no NVIDIA driver here|built without CUDA)' out || fail "info without a driver"
fi
expect 4 info --json --redis redis://127.0.0.1:1
says out '"rdma_ports"'
# Without the verbs library, or with an unusable one, everything but rdma works.
mkdir no-verbs && : >no-verbs/libibverbs.so.1
before=${LD_LIBRARY_PATH-}
export LD_LIBRARY_PATH="$dir/no-verbs:$before"
expect 4 info --redis redis://127.0.0.1:1
says out "rdma: no verbs library: "
says out "install libibverbs1"
export LD_LIBRARY_PATH="$before"

# --- files in and out -------------------------------------------------------------------------------

start_node node0 --pool cpu0:bytes=64M
TARN_REDIS=$(echo "$ready" | tr ' ' '\n' | sed -n 's/^redis=//p')
export TARN_REDIS
node0=$node

# A wrong setting is reported before it is used.
export TARN_TCPX_UNPACK_IMPL=quick
expect 6 ls
says err "TARN_TCPX_UNPACK_IMPL=quick: there is no such way to unpack: name d2d, host or kernel"
unset TARN_TCPX_UNPACK_IMPL

mkdir raw npy back
dtypes="u8 i8 bool f8_e4m3 f8_e5m2 u16 i16 f16 bf16 u32 i32 f32 u64 i64 f64 c64 c128"
for d in $dtypes; do
    case $d in
    u8 | i8 | bool | f8*) n=1 ;;
    ?16 | bf16) n=2 ;;
    ?32) n=4 ;;
    c128) n=16 ;;
    *) n=8 ;;
    esac
    head -c $((n * 2 * 3 * 5)) /dev/urandom >raw/$d
    expect 0 put raw/$d --prefix raw/ --dtype $d --shape 2,3,5
    says out "$d[2,3,5]"
    expect 0 get raw/$d -o npy/$d.npy
    hint=
    case $d in f8*) hint="--dtype $d" ;; esac
    # shellcheck disable=SC2086
    expect 0 put npy/$d.npy --prefix npy/ $hint --quiet
    silent out
    expect 0 stat npy/$d
    says out "dtype    $d"
    says out "shape    2,3,5"
    tarn get npy/$d >back/$d || fail "get npy/$d"
    same raw/$d back/$d
done
expect 0 get --prefix npy/ -o back
for d in $dtypes; do
    same npy/$d.npy "back/npy%2F$d.npy"
done
expect 2 put npy/f8_e4m3.npy --key x
says err "--dtype f8_e4m3"

# All types into one file and back, except c128, which the format does not have.
expect 2 get --prefix raw/ -o all.safetensors
says err "no c128"
[ ! -e all.safetensors ] || fail "a failed get left its file"
expect 0 rm raw/c128
expect 0 get --prefix raw/ -o all.safetensors
expect 0 put all.safetensors --prefix st/ --json
says out '"stored": 16'
says out '"status": "OK"'
for d in $dtypes; do
    [ $d = c128 ] || { tarn get st/$d >back/st || fail "get st/$d"; same raw/$d back/st; }
done
expect 0 get --prefix st/ -o again.safetensors
same all.safetensors again.safetensors
tarn get --prefix st/ --format safetensors >piped.safetensors || fail "get to a pipe"
same all.safetensors piped.safetensors
expect 0 get u8 i64 --prefix st/ -o two.safetensors --json
says out '"key": "st/i64"'

# Larger than a batch, empty, from a pipe, ranges, several objects into one file.
head -c 9000000 /dev/urandom >big
expect 0 put big --pin
expect 0 get big -o big-back
same big big-back
says out "1 got, 8.6 MiB"
tarn get big --range 1M:4K >part || fail "get --range"
tail -c +1048577 big | head -c 4096 >part.want
same part part.want
tarn get big --range 8999990: >part || fail "get --range without an end"
tail -c 10 big >part.want
same part part.want
expect 2 get big --range 8999990:11
says err "reaches behind the end"
expect 2 get big --range 5 -o x
says err "OFFSET:BYTES"
# --output replaces a file, through its links and with its permissions, or writes to a device or pipe.
mkdir place
(umask 077 && : >place/file)
ln -s file place/link
expect 0 get big -o place/link
same big place/file
[ -L place/link ] || fail "get replaces a link"
[ "$(stat -c %a place/file)" = 600 ] || fail "get changes permissions"
ln -s nowhere place/dangling
expect 2 get big -o place/dangling
says err "place/dangling: cannot create: No such file or directory: name a file, or a link to one"
[ -L place/dangling ] || fail "get replaces a link that leads nowhere"
mkfifo place/pipe
timeout 20 cat place/pipe >piped &
reader=$!
expect 0 get big -o place/pipe
wait $reader
same big piped
ln -s /proc/self/fd/1 place/stdout # as /dev/stdout, which should not be at risk here
tarn get big -o place/stdout >whole 2>err || fail "get to standard output by another name"
same big whole
if mknod place/full c 1 7 2>/dev/null && [ -w place/full ] && ! : 2>/dev/null >place/full; then
    expect 6 get big -o place/full
    says err "place/full: No space left on device"
fi
[ ! -e place/full ] || [ -c place/full ] || fail "get replaces a device"
rm -rf place
# A get that is killed leaves no file behind.
mkdir place
TARN_FAULTS='shm:delay=600000;tcp:delay=600000' "$build/tests/tarn" get big -o place/big --timeout-ms 600000 &
reader=$!
n=0
until ls -l /proc/$reader/fd 2>/dev/null | grep -q "$dir/place" || [ $n -gt 600 ]; do
    n=$((n + 1))
    sleep 0.05
done
[ $n -le 600 ] || fail "get does not begin"
kill -9 $reader
wait $reader 2>/dev/null
[ -z "$(ls -A place)" ] || fail "a killed get leaves $(ls -A place)"

: >empty
expect 0 put empty
expect 0 get empty -o empty-back
same empty empty-back
printf 'from a pipe' | tarn put - --key 'a%20b' --ttl-ms 3600000 -q || fail "put from a pipe"
expect 0 get 'a%20b' -o pipe-back
[ "$(cat pipe-back)" = "from a pipe" ] || fail "put from a pipe"
printf 'x' | tarn put - >out 2>err && fail "put from a pipe without a key"
says err "give it a --key"
tarn get 'a%20b' empty 'a%20b' >both || fail "get of several keys"
[ "$(cat both)" = "from a pipefrom a pipe" ] || fail "get of several keys"

# --- keys -------------------------------------------------------------------------------------------

long=$(printf '%01024d' 0)
expect 0 put raw/u8 --key "$long" -q
expect 0 stat "$long"
expect 1 rm "${long%0}"
says err "tarn rm: remove key '0000000000000000000000000000..': no such key"
expect 2 put raw/u8 --key "${long}0"
says err "1024"
expect 2 put raw/u8 --key ''
expect 2 put raw/u8 --key 'a b'
says err "%XX"
says err "write a%20b"
expect 2 stat 'b%2F%%7F'
says err "write b/%25%7F"
expect 2 stat ''
says err "tarn stat: key: empty"
expect 0 put raw/u8 --key '%00%FF%25' -q
expect 0 ls '%00*'
says out '%00%FF%25'
expect 2 put raw/u8 raw/i8 --key x
says err "use --prefix"
# Two tensors with one key are an error: with --replace one would be lost silently.
expect 2 put raw/f32 npy/f32.npy --replace
says err "npy/f32.npy: key f32 is given twice, by raw/f32 too"
expect 1 stat f32

# --- what is there ----------------------------------------------------------------------------------

expect 0 ls
says out "npy/bf16"
expect 0 ls 'npy/?16'
[ "$(tr '\n' ' ' <out)" = "npy/f16 npy/i16 npy/u16 " ] || fail "ls with a glob"
expect 0 ls 'npy/*' -l
says out "node0/cpu0"
says out "17 objects"
expect 0 ls npy/f32 --json
says out '"key": "npy/f32"'
says out '"dtype": "f32"'
says out '"pool": "cpu0"'
expect 0 stat npy/f32 --json
says out '"transport": "'
expect 1 stat npy/f32 nope
says err "tarn stat: stat key 'nope': no such key"
says out "npy/f32"
expect 0 info
says out "node0/cpu0"
says out "of 64 MiB used"
says out "usable"
expect 0 info --json
says out '"free_bytes"'
says out '"usable": true'
expect 0 doctor
says out "all that is needed is there"
says out "node node0"
expect 0 doctor --json
says out '"ok": true'
expect 0 top --once --interval-ms 50
says out "node0/cpu0"
expect 0 top --once --interval-ms 50 --json
says out '"puts_per_s"'
# Of standard input only the rest counts.
{ dd bs=1 count=4 of=/dev/null 2>/dev/null; tarn put - --key rest --replace -q; } <raw/u8 || fail "put - of a rest"
expect 0 get rest -o rest
tail -c +5 raw/u8 >rest.want
same rest rest.want
expect 0 get rest -o rest -jq
says out '"output"'
# JSON has %XX for bytes that are not UTF-8.
odd=$(printf 'x\377')
expect 0 get rest -o "$odd.npy" --json
says out '"output": "x%FF.npy"'
expect 0 put "$odd.npy" --key odd --json
says out '"file": "x%FF.npy"'
expect 2 put "$odd.none" --json
says err '"message":"x%FF.none: '

expect 0 put raw/u8 --key u --transports tcp
expect 0 get u -o u-back --transports tcp
same raw/u8 u-back

# An event reader sees only later events, so store until it has seen two.
"$build/tarn" events --count 2 --json >events 2>err &
reader=$!
n=0
while kill -0 $reader 2>/dev/null && [ $n -lt 2000 ]; do
    n=$((n + 1))
    tarn put raw/u8 --key event --replace -q || break
done
wait $reader || fail "tarn events"
cp events out
says out '"event":"stored"'
says out '"key":"event"'
says out '"node":"node0"'
expect 0 events --for-ms 50
silent out

# --- refused ----------------------------------------------------------------------------------------

expect 1 get nope -o nope.npy
says err "tarn get: nope: no such key"
[ ! -e nope.npy ] || fail "a failed get left a file"
expect 1 get npy/f32 nope -o nope.safetensors
[ ! -e nope.safetensors ] || fail "a failed get left a file"
expect 1 get --prefix nothing/ -o nope.safetensors
expect 1 rm nope u
says out "1 of 2 removed"
expect 2 put raw/u8 --prefix raw/
says err "--replace"
expect 0 put raw/u8 --prefix raw/ --replace
expect 2 get npy/f32 npy/i32 -o two.npy
says err "one array"
expect 2 get npy/f32 npy/i32 --format npy
says err "one array"
expect 2 get npy/f32 npy/i32 -o two
says err "two: is one file, here are 2 keys: write .safetensors or to a directory; --format raw puts"
[ ! -e two ] || fail "a refused get left a file"
expect 0 get npy/f32 npy/i32 -o two --format raw
cat raw/f32 raw/i32 >two.want
same two two.want
for e in pt npz bin; do
    cp raw/u8 "x.$e"
    expect 2 put "x.$e"
    says err "tarn put: x.$e: .$e is an ending that tarn does not know: use .npy or .safetensors, or --format raw"
    expect 0 put "x.$e" --format raw
    expect 2 get "x.$e" -o "y.$e"
    says err "tarn get: y.$e: .$e is an ending"
    expect 0 get "x.$e" -o "y.$e" -f raw
    same raw/u8 "y.$e"
done
expect 2 put nofile
says err "tarn put: nofile: cannot open"
expect 2 put .
says err "directory"
expect 2 put raw/f32 --dtype f33
says err "f8_e5m2"
expect 2 put raw/f32 --dtype f32 --shape 2,3
says err "120"
expect 2 put npy/f32.npy --shape 2
says err "--shape is for raw files"
expect 2 put npy/f32.npy --dtype i32 --key x
says err "omit --dtype i32"
expect 2 get npy/f32 -o x --format nyp
says err "did you mean npy?"
expect 2 get npy/f32 --json
says err "--output"
expect 2 get npy/f32 -o no/such/directory/x
says err "cannot create"
head -c 100 npy/f32.npy >short.npy
head -c 200 npy/f32.npy >short2.npy
printf 'not one' >bad.npy
head -c 300 all.safetensors >short.safetensors
printf '\377\377\377\377\377\377\377\177{}' >huge.safetensors
printf '\074\0\0\0\0\0\0\0{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,800000]}} 12345678' >lies.safetensors
printf '\001\0\0\0\0\0\0\0{' >json.safetensors
expect 2 put json.safetensors
says err "the header is malformed at its byte 1: string or '}' expected near end of file"
for f in short.npy short2.npy bad.npy short.safetensors huge.safetensors lies.safetensors; do
    # The good file before it is not stored either.
    expect 2 put big $f --prefix bad/
    says err "tarn put: $f: "
done
expect 0 ls 'bad/*'
silent out
head -c 70000000 /dev/zero >huge
expect 2 put huge
says err "do not fit"
says err "start a node with a larger --pool"
rm -f huge
for i in 1 2 3 4 5 6 7 8; do
    tarn put big --key pinned/$i --pin -q >out 2>err
    full=$?
    [ $full = 0 ] || break
done
[ $full = 3 ] || fail "a full pool: exit $full, want 3"
expect 0 rm pinned/1 pinned/2 --json
says out '"removed": 2'
expect 2 put raw/u8 --key x --replicas 9
says err "replicas"
expect 4 put raw/u8 --key x --place nowhere
says err "nowhere"
expect 4 put raw/u8 --key x --ns empty
expect 0 info --ns empty
says out "no nodes in namespace empty"
says out "--ns empty"
expect 6 ls --redis "$(echo "$TARN_REDIS" | sed 's,//,//:wrong@,')"
start_node node1 --pool cpu0:bytes=16M --redis "$TARN_REDIS" --transports tcp
expect 0 put raw/u8 --key far --place node1
expect 5 get far -o x --transports shm
expect 0 get far -o far-back
same raw/u8 far-back

# --- terminal ---------------------------------------------------------------------------------------

if command -v script >/dev/null; then
    esc=$(printf '\033')
    TERM=xterm script -qec "$build/tarn info" /dev/null >out 2>err </dev/null || fail "info on a terminal"
    says out "$esc["
    TERM=xterm NO_COLOR=1 script -qec "$build/tarn info" /dev/null >out 2>err </dev/null
    grep -qF "$esc[" out && fail "colours in spite of NO_COLOR"
    TERM=nosuch script -qec "$build/tarn top" /dev/null >out 2>err </dev/null && fail "top on an unknown terminal"
    says out "TERM=nosuch: ncurses does not know this terminal: use --once"
    TERM=nosuch timeout 20 script -qec "$build/tarn top -i 50 </dev/null" /dev/null 2>err </dev/null |
        grep -q node0/cpu0 || fail "top shows no frames without a keyboard"
    script -qec "$build/tarn get big" /dev/null >out 2>err </dev/null && fail "get writes to a terminal"
    says out "is a terminal"
fi

# --- a node that is gone ----------------------------------------------------------------------------

kill -9 "$node"
wait "$node" 2>/dev/null
expect 4 get far -o x --timeout-ms 3000
[ ! -e x ] || fail "a failed get left a file"
kill "$node0"
wait "$node0" || fail "node0 did not end well"
pids=
expect 4 ls --timeout-ms 1000

finish
