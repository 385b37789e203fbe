#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Wrong uses of tarn and tarnd, one in each row: exit status, required text of the error sentence (mostly the
# remedy), command line. Commands in braces before the command line run first, in its process. Each program
# must end by itself. Standard error must have one whole sentence, which begins with the command's name and
# does not contain the password (swordfish).
. "${0%/*}/cli.sh"

start_node node0 --pool cpu0:bytes=16M
TARN_REDIS=$(echo "$ready" | tr ' ' '\n' | sed -n 's/^redis=//p')
export TARN_REDIS
# shellcheck disable=SC2034 # used by rows
CONTROL=$(echo "$ready" | tr ' ' '\n' | sed -n 's/^control=//p')
REDISADDR=${TARN_REDIS##*@}
# shellcheck disable=SC2034
REDISADDR=${REDISADDR#redis://}
start_redis few --rename-command SMEMBERS ''
printf 'four' >some
for f in other some.npz some.pt some.bin there there2; do cp some "$f"; done
tarn put there there2 -q
head -c 40000000 /dev/zero >huge
head -c 40000 huge >big
tarn put big -q
mkdir d
printf 'heartbeat-ms\n' >bad.conf
printf 'secret swordfish\n' >secret.conf
printf 'not one' >bad.npy
printf '\001\0\0\0\0\0\0\0{' >bad.safetensors
printf '12345678' >eight
tarn put eight --dtype f32 -q
tarn get eight -o good.npy -q
head -c 131 good.npy >short.npy

# Prints the name with which this command line's error sentence must begin.
name_of()
{
    if [ "$1" = tarn ] && tarn help | grep -q "^  $2 "; then
        echo "tarn $2"
    else
        echo "$1"
    fi
}

rows=0
while read -r line; do
    status=${line%% | *}
    rest=${line#* | }
    words=${rest%% | *}
    row=${rest#* | }
    before=
    case $row in '{'*) before=${row#?} before=${before%%\}*} row=${row#*\} } ;; esac
    eval "set -- $row"
    program=$1
    name=$(name_of "$program" "${2-}")
    shift
    if [ "$program" = tarnd ]; then
        case $row in *--listen*) ;; *) set -- --listen 127.0.0.1:0 "$@" ;; esac
        case $row in *--pool*) ;; *) set -- --pool cpu0:bytes=1M "$@" ;; esac
    fi
    got=0
    (eval "$before"; exec timeout 30 "$build/$program" "$@") >out 2>log </dev/null || got=$?
    grep -v '^time=' log >err
    rows=$((rows + 1)) checks=$((checks + 1))
    [ "$got" = "$status" ] || fail "$row: exit $got, want $status"
    [ "$(wc -l <err)" = 1 ] && [ "$(wc -c <err)" -lt 512 ] || fail "$row: not one sentence"
    case $(cat err) in
    "$name: "* | '{"error":{"command":"'"$name"'"'*) ;;
    *) fail "$row: does not begin with $name" ;;
    esac
    says err "$words"
    silent_about err swordfish
done <<'EOF'
2 | did you mean `tarn put`? | tarn pt
2 | did you mean `tarn put`? | tarn putt a
2 | tarn COMMAND --redis ... | tarn --redis x ls
2 | tarn COMMAND -j ... | tarn -j ls
2 | did you mean `tarn top`? | tarn help foo
2 | name one of these | tarn --completion fish
2 | see `tarn put --help` | tarn put
2 | No such file or directory | tarn put nofile
2 | name the files in it | tarn put .
2 | No such file or directory | tarn put nodir/file
2 | use .npy or .safetensors, or --format raw for the bytes as they | tarn put some.npz
2 | use .npy or .safetensors, or --format raw for the bytes as they | tarn put some.pt
2 | use .npy or .safetensors, or --format raw for the bytes as they | tarn put some.bin
2 | truncated, or something follows it | tarn put short.npy
2 | use --format raw for other files | tarn put bad.npy
2 | write the file again, with the safetensors library | tarn put bad.safetensors
2 | did you mean npy?) | tarn put some --format npz
2 | did you mean npy?) | tarn put some --format np
2 | use one of u8 i8 bool f8_e4m3 f8_e5m2 u16 i16 f16 bf16 u32 i32 | tarn put some --dtype f33
2 | make them agree | tarn put some --dtype f32 --shape 3
2 | make them agree | tarn put some --shape 0
2 | shape "a,b" is no list of numbers like 32,128 | tarn put some --shape a,b
2 | shape "-1" is no list of numbers like 32,128 | tarn put some --shape -1
2 | shape "1,2,3,4,5,6,7,8,9" has more than 8 dimensions | tarn put some --shape 1,2,3,4,5,6,7,8,9
2 | needs a value: --key KEY | tarn put some --key
2 | must be 1 to 1024 bytes | tarn put some --key ''
2 | white space, control and non-ASCII bytes and % are written %XX, | tarn put some --key 'a b'
2 | use --prefix | tarn put some other --key x
2 | leave one out | tarn put some --key x --prefix y
2 | write %C3%A4 | tarn put some --prefix 'ä'
2 | give it a --key | tarn put -
2 | must be 1 to 8 N | tarn put some --replicas 0
2 | must be 1 to 8 N | tarn put some --replicas 9 --key r9
2 | "two" is no whole number of N | tarn put some --replicas two
2 | "1.5" is no whole number of MS | tarn put some --ttl-ms 1.5
2 | must be 0 to 4294967295 MS | tarn put some --ttl-ms -1
4 | give local, or a NODE or NODE/POOL that `tarn info` lists | tarn put some --place nowhere --key p1
4 | give local, or a NODE or NODE/POOL that `tarn info` lists | tarn put some --place node0/gpu7 --key p2
2 | give local, NODE or NODE/POOL | tarn put some --place '' --key p3
2 | use --replace to put another | tarn put there
2 | store them one by one | tarn put some some
2 | did you mean --replace? | tarn put --replcae some
2 | use --json or --no-json | tarn put some --json=yes
2 | give a secret, or leave it out | tarn put some --secret ''
2 | --secret TEXT | tarn put some --secret
2 | start a node with a larger --pool | tarn put huge --key h
2 | this one says it itself | tarn put good.npy --shape 2
2 | omit --dtype i32 | tarn put good.npy --dtype i32 --key gd
2 | see `tarn get --help` | tarn get
1 | nokey: no such key | tarn get nokey
1 | nokey: no such key | tarn get nokey -o x
2 | No such file or directory | tarn get there -o no/such/x
2 | use .npy or .safetensors, or --format raw for the bytes as they | tarn get there -o x.pt
2 | use .npy or .safetensors, or --format raw for the bytes as they | tarn get there -o x.npz
2 | write .safetensors or to a directory; --format raw puts them one | tarn get there there2 -o x
2 | write .safetensors or to a directory | tarn get there there2 -o x.npy
2 | did you mean npy?) | tarn get there --format nyp -o x
2 | a safetensors file takes all keys, name it | tarn get there --format safetensors -o d
2 | write OFFSET:BYTES, such as 4K:64K | tarn get there --range 5 -o x
2 | write one like 4096, 64K, 1.5G or 2T | tarn get there --range a:b -o x
2 | reaches behind the end, there has 4 bytes | tarn get there --range 0:99999999 -o x
2 | --range needs exactly one KEY | tarn get there there2 --range 0:1 -o x
2 | use --format raw | tarn get there --range 0:1 -o x.npy
2 | give an --output | tarn get there --json
1 | no key begins with zzz | tarn get --prefix zzz -o d
2 | see `tarn get --help` | tarn get --prefix '' -o d
2 | white space, control and non-ASCII bytes and % are written %XX, | tarn get 'a b' -o x
2 | name a file, or - for standard output | tarn get there -o ''
6 | name one of shm, cuda_ipc, rdma, tcpx, tcp | tarn get there -o x --transports xyz
2 | must be 1 to 86400000 MS | tarn get there -o x --timeout-ms 0
2 | "soon" is no whole number of MS | tarn get there -o x --timeout-ms soon
1 | there: no such key | tarn get there -o x --ns nons
6 | use 1 to 63 of A-Z a-z 0-9 . _ - | tarn get there -o x --ns 'a b'
6 | use 1 to 63 of A-Z a-z 0-9 . _ - | tarn get there -o x --ns ''
4 | start Redis there or correct the address | tarn get there -o x --redis redis://127.0.0.1:1
6 | give the one that tarnd has printed, or none for that of | tarn get there -o x --redis ''
6 | use redis://[user:password@]host[:port][/db] or | tarn get there -o x --redis 127.0.0.1:6379
6 | use redis://[user:password@]host[:port][/db] or | tarn get there -o x --redis redis://
6 | use redis://[user:password@]host[:port][/db] or | tarn get there -o x --redis redis://h:99999
6 | use redis://[user:password@]host[:port][/db] or | tarn get there -o x --redis redis://127.0.0.1:1/x
6 | use redis://[user:password@]host[:port][/db] or | tarn get there -o x --redis http://127.0.0.1
4 | start Redis there or correct the address | tarn get there -o x --redis unix:///no/such/socket
4 | give the redis= of its ready line | tarn get there -o x --redis redis://$CONTROL
2 | tarn get --help lists them | tarn get there -o x -z
2 | --output FILE | tarn get there -o
2 | tarn get --help lists them | tarn get there --out x
2 | see `tarn ls --help` | tarn ls a b
2 | did you mean --long? | tarn ls --lnog
2 | use --json or --no-json | tarn ls --json=1
2 | see `tarn stat --help` | tarn stat
1 | stat key 'nokey': no such key | tarn stat nokey
2 | must be 1 to 1024 bytes | tarn stat ''
2 | white space, control and non-ASCII bytes and % are written %XX, | tarn stat 'b%2F'
2 | see `tarn rm --help` | tarn rm
1 | remove key 'nokey': no such key | tarn rm nokey
2 | needs a value: --glob GLOB | tarn rm --glob
2 | '*' matches all | tarn rm --glob ''
1 | no key matches zz* | tarn rm --glob 'zz*'
2 | leave one out | tarn rm there --glob 'z*'
2 | see `tarn pin --help` | tarn pin
1 | PIN key 'nokey': no such key | tarn pin nokey
2 | "soon" is no whole number of MS | tarn pin there --for-ms soon
2 | must be 0 to 4294967295 MS | tarn pin there --for-ms -1
2 | see `tarn unpin --help` | tarn unpin
1 | UNPIN key 'nokey': no such key | tarn unpin nokey
2 | see `tarn touch --help` | tarn touch
1 | nokey: no such key | tarn touch nokey
2 | see `tarn ttl --help` | tarn ttl
1 | nokey: no such key | tarn ttl nokey
1 | did you mean node0? | tarn ping nonode
1 | did you mean node0? | tarn ping nod0
4 | start one with `tarnd`, or name another with --ns | tarn ping --ns nons
2 | see `tarn drain --help` | tarn drain
1 | did you mean node0? | tarn drain nonode
2 | give a secret, or leave it out | tarn drain node0 --admin-secret ''
2 | see `tarn config --help` | tarn config
1 | did you mean node0? | tarn config nonode
2 | see `tarn config --help` | tarn config node0 a b
2 | `tarn config NODE` lists them | tarn config node0 nothing
2 | CONFIG GET * lists them | tarn config node0 nothing=1
2 | CONFIG GET * lists them | tarn config node0 =1
6 | use error, warn, info or debug | tarn config node0 log-level=loud
6 | use error, warn, info or debug | tarn config node0 log-level=
2 | restart it with another --heartbeat-ms | tarn config node0 heartbeat-ms=1
2 | see `tarn info --help` | tarn info x
2 | did you mean --json? | tarn info --jsno
2 | must be 50 to 3600000 MS | tarn top --interval-ms 1
2 | "x" is no whole number of MS | tarn top --interval-ms x
2 | see `tarn top --help` | tarn top x
2 | see `tarn events --help` | tarn events x
2 | must be 0 to 9223372036854775807 N | tarn events --count -1
2 | "x" is no whole number of MS | tarn events --for-ms x
2 | give tcpx or gpu-driven; without them, doctor checks everything else | tarn doctor foo
2 | tarn doctor --help lists them | tarn doctor tcpx --no-such
2 | tarnd takes options only: see --help | tarnd x
2 | did you mean --pool? | tarnd --pol cpu0:bytes=1M
2 | write cpu0:bytes=1G | tarnd --pool cpu0
2 | write cpu0:bytes=1G | tarnd --pool cpu0:
2 | write bytes=... | tarnd --pool cpu0:bytes
2 | use bytes=SIZE, device=INDEX or UUID of a GPU, huge=0 or 1, | tarnd --pool cpu0:bytes=x
2 | use bytes=SIZE, device=INDEX or UUID of a GPU, huge=0 or 1, | tarnd --pool cpu0:bytes=0
2 | use bytes=SIZE, device=INDEX or UUID of a GPU, huge=0 or 1, | tarnd --pool cpu0:size=1M
2 | a pool's name has 1 to 31 letters, digits, '.', '_' or '-' | tarnd --pool ':bytes=1M'
2 | a pool's name has 1 to 31 letters, digits, '.', '_' or '-' | tarnd --pool 'a b:bytes=1M'
2 | use bytes=SIZE, device=INDEX or UUID of a GPU, huge=0 or 1, | tarnd --pool cpu0:bytes=1M,huge=2
2 | use bytes=SIZE, device=INDEX or UUID of a GPU, huge=0 or 1, | tarnd --pool cpu0:bytes=1M,align=3
2 | use bytes=SIZE, device=INDEX or UUID of a GPU, huge=0 or 1, | tarnd --pool cpu0:bytes=1M,slots=0
2 | whose memory? add device=0 for a GPU's, or give the pool another | tarnd --pool gpu0:bytes=1M
1 | make the pool smaller or free memory | tarnd --pool cpu0:bytes=900T
1 | choose another | tarnd --pool cpu0:bytes=1M --pool cpu0:bytes=1M
2 | write HOST:PORT, [IPv6]:PORT or unix:/PATH | tarnd --listen nowhere
2 | give an address of this host that they reach, with a port | tarnd --listen 0.0.0.0:7700
2 | must be 0 to 65535 | tarnd --listen 127.0.0.1:99999
1 | give an address of this machine | tarnd --listen 192.0.2.1:0
1 | stop it or listen elsewhere | tarnd --listen $CONTROL
1 | give --unix a path in a directory that can be made | tarnd --unix /no/such/dir/x.sock
1 | remove it or give another path | tarnd --unix some
1 | use redis://[user:password@]host[:port][/db] or | tarnd --redis nonsense
1 | start Redis there or correct the address | tarnd --redis redis://127.0.0.1:1
2 | give an address, or leave it out for a private Redis | tarnd --redis ''
2 | must have 1 to 63 letters, digits, '.', '_' or '-' | tarnd --id 'a b'
2 | must have 1 to 63 letters, digits, '.', '_' or '-' | tarnd --id ''
2 | must have 1 to 63 letters, digits, '.', '_' or '-' | tarnd --ns 'a b'
2 | give a secret, or leave it out | tarnd --secret ''
2 | give a secret, or leave it out | tarnd --admin-secret ''
1 | name one of shm, cuda_ipc, rdma, tcpx, tcp | tarnd --transports xyz
2 | must be 0 to 64 N | tarnd --io-threads 65
2 | give lru or adaptive | tarnd --eviction fifo
2 | give lru or adaptive | tarnd --eviction LRU
2 | must be 50 to 60000 MS | tarnd --heartbeat-ms 1
2 | "x" is no whole number of MS | tarnd --heartbeat-ms x
2 | must be 1 to 86400 SECONDS | tarnd --scrub-s 0
2 | use serve or refuse | tarnd --when-cut-off maybe
2 | write HOST:PORT, [IPv6]:PORT or unix:/PATH | tarnd --http nowhere
1 | stop it or listen elsewhere | tarnd --http $CONTROL
2 | use error, warn, info or debug | tarnd --log-level loud
2 | No such file or directory | tarnd --config nofile
2 | has no "=": write NAME = VALUE | tarnd --config bad.conf
2 | name a library that is there, or leave it out | tarnd --tcpx-plugin /no/such.so
2 | name d2d, host or kernel | tarnd --tcpx-unpack-impl magic
2 | must be 4K to 9223372036854775807 SIZE | tarnd --session-reserved-max 1
2 | write one like 4096, 64K, 1.5G or 2T | tarnd --session-reserved-max x
2 | name one of these | tarnd --completion fish
2 | must be an octal number from 0600 to 0777 that lets the owner | tarnd --unix-mode 999
1 | see `getent group` | tarnd --unix-group nogroupsuch
6 | correct user and password in the Redis URI | tarn get there -o x --redis redis://u:p@$REDISADDR
6 | put user and password into the Redis URI | tarn get there -o x --redis redis://$REDISADDR
1 | give this one another --id | tarnd --id node0
1 | start with --heartbeat-ms 1000, or stop them first | tarnd --heartbeat-ms 77
2 | must be an octal number from 0600 to 0777 that lets the owner | tarnd --unix-mode rwx
2 | must have 1 to 63 letters, digits, '.', '_' or '-' | tarnd --ns ''
2 | must be 0 to 65535 PORT | tarnd --data-port 70000
2 | must be 0 to 3600000 MS | tarnd --drain-timeout-ms -1
2 | must be 10 to 60000 MS | tarnd --redis-timeout-ms 1
2 | must be 1M to 9223372036854775807 SIZE | tarnd --rdma-region-bytes 1
2 | use --help or --no-help | tarnd --help=yes
2 | did you mean --redis? | tarnd --no-redis
2 | --listen ADDRESS | tarnd --listen
2 | tarnd --help lists them | tarnd -x
2 | did you mean --print-conf? | tarnd --print-config
2 | use --pin or --no-pin | tarn put some --pin=1 --key z
2 | needs a value: --key KEY | tarn put some -k
2 | must be 1 to 86400000 MS | tarn put some --timeout-ms 99999999999
2 | --output FILE | tarn get there --output
2 | write one like 4096, 64K, 1.5G or 2T | tarn get there --range : -o x
2 | write one like 4096, 64K, 1.5G or 2T | tarn get there --range 5:x -o x
2 | --redis ADDRESS | tarn ls --redis
6 | name one of shm, cuda_ipc, rdma, tcpx, tcp | tarn ls --transports shm,xyz
6 | use redis://[user:password@]host[:port][/db] or | tarn ls --redis rediss://127.0.0.1
6 | use redis://[user:password@]host[:port][/db] or | tarn ls --redis redis://127.0.0.1:x
2 | white space, control and non-ASCII bytes and % are written %XX, | tarn rm 'a b'
4 | start Redis there or correct the address | tarn rm there --redis redis://127.0.0.1:1
2 | white space, control and non-ASCII bytes and % are written %XX, | tarn pin 'a b'
2 | '*' matches all | tarn unpin --glob ''
1 | no key matches zz* | tarn touch --glob 'zz*'
2 | '*' matches all | tarn ttl --glob ''
4 | start Redis there or correct the address | tarn stat there --redis redis://127.0.0.1:1
4 | start Redis there or correct the address | tarn ping --redis redis://127.0.0.1:1
4 | start Redis there or correct the address | tarn drain node0 --redis redis://127.0.0.1:1
2 | `tarn config NODE` lists them | tarn config node0 evict-hihg
4 | start Redis there or correct the address | tarn events --redis redis://127.0.0.1:1
4 | start Redis there or correct the address | tarn top --once --redis redis://127.0.0.1:1
2 | see `tarn help` | tarn help help2
2 | see `tarn help` | tarn version2
2 | tarn COMMAND --verbose ... | tarn --verbose
2 | is a device, which may have no end: pipe a part of it | tarn put /dev/zero
2 | is a device, which may have no end: pipe a part of it | tarn put /dev/full --key full
2 | Input/output error | tarn put /proc/self/mem --key mem
6 | Bad file descriptor | {exec >&-} tarn get there -f raw -o -
6 | No space left on device | {exec >/dev/full} tarn get there -f raw -o -
6 | No space left on device | {exec >/dev/full} tarn ls
6 | Bad file descriptor | {exec >&-} tarn ls
2 | Bad file descriptor | {exec <&-} tarn put - --key closed
6 | File too large | {ulimit -f 8} tarn get big -o limited
6 | raise the limit of open files (ulimit -n) | {ulimit -n 4} tarn ls
2 | raise it to 64 or more (ulimit -n, LimitNOFILE=) | {ulimit -n 20} tarnd
1 | File too large | {ulimit -f 8} tarnd
2 | standard output: No space left on device | {exec >/dev/full} tarnd --help
2 | standard output: No space left on device | {exec >/dev/full} tarnd --print-conf
6 | a ? behind the host: use redis://[user:password@]host | tarn ls --redis redis://u:p@127.0.0.1:1?db=x
6 | no host and port behind ://: use redis:// | tarn ls --redis redis://default:swordfish
2 | has no "=": write NAME = VALUE | tarnd --config secret.conf
2 | "5?6" is no whole number of MS: must be 1 to 86400000 | tarn ls --timeout-ms "$(printf '5\n6')"
2 | "0x10" is no whole number of MS: must be 1 to 86400000 | tarn ls --timeout-ms 0x10
2 | "" is no whole number of MS: must be 1 to 86400000 | tarn ls --timeout-ms ''
2 | no command "a?b" | tarn "$(printf 'a\nb')"
2 | use one of u8 i8 bool | tarn put some --dtype "$(printf 'f\033[31m')"
2 | longer than 1024 bytes: give a shorter one | tarn put some --key "$(head -c 65536 /dev/zero | tr '\0' k)"
4 | tarn needs that command: a Sentinel has it not | tarn ls --redis unix://$dir/few.sock
2 | FILE is empty: cannot open: No such file or directory | tarn put ''
2 | cannot create: Not a directory: write to a directory that is there | tarn get there -o some/x
2 | a comma without a setting: leave it out | tarnd --pool cpu0:bytes=1M,,
2 | no size: write cpu0:bytes=1G | tarnd --pool ''
2 | no size: write xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx:bytes=1G | tarnd --pool "$(head -c 65536 /dev/zero | tr '\0' x)"
2 | bytes= 1M is not possible: use bytes=SIZE | tarnd --pool 'cpu0:bytes= 1M'
2 | use bytes=SIZE, device=INDEX or UUID of a GPU, huge=0 or 1, | tarnd --pool cpu0:bytes=99999999999999999999G
1 | use a power of two from 64 up to the size | tarnd --pool cpu0:bytes=1
2 | 17 pools: give 1 to 16 | tarnd $(for i in 1 2 3 4 5 6 7 8 9 a b c d e f g h; do echo --pool p$i:bytes=4K; done)
2 | --unix is empty: give a path, or leave it out | tarnd --unix ''
1 | Not a directory: give another path | tarnd --unix some/x.sock
1 | a file is there that is no socket: remove it or give another path | tarnd --unix /dev/null
1 | a Unix socket's has 107 at most: give a shorter one | tarnd --unix "$(head -c 200 /dev/zero | tr '\0' x)"
2 | write HOST:PORT, [IPv6]:PORT or unix:/PATH | tarnd --listen ''
2 | write HOST:PORT, [IPv6]:PORT or unix:/PATH | tarnd --listen ::1:0
2 | must be 0 to 65535 | tarnd --listen 127.0.0.1:http
1 | check the host name | tarnd --listen nohostsuch.invalid:0
2 | name one with lines of NAME = VALUE | tarnd --config /dev/zero
2 | name one with lines of NAME = VALUE | tarnd --config .
6 | a ? behind the path that is no ?db=N: use redis:// | tarn ls --redis unix:///x?password=swordfish
6 | write %25 for a % sign | tarn ls --redis redis://u:a%zz@127.0.0.1:1
4 | check the host name: start Redis there or correct the address | tarn ls --redis redis://nohostsuch.invalid
2 | is for the command line alone: give --print-conf | {export TARN_PRINT_CONF=1} tarnd
2 | did you mean TARN_POOL? | {export TARN_POOLS=x} tarnd
2 | TARN_TIMEOUT_MS: "abc" is no whole number of MS: must be 1 to 86400000 | {export TARN_TIMEOUT_MS=abc} tarn ls
6 | TARN_TRANSPORTS=x is set in the environment | {export TARN_TRANSPORTS=x} tarn ls
6 | this address is TARN_REDIS's | {export TARN_REDIS=swordfish} tarn ls
6 | TARN_SECRET is set in the environment | {export TARN_SECRET=swordfish} tarn get there -o x
6 | this program injects no faults: unset it | {export TARN_FAULTS=x} tarn ls
2 | must be 0 to 65535 | tarnd --http 127.0.0.1:99999
EOF
echo "$rows wrong uses"

# ps does not show passwords.
"$build/tarn" events --redis "$TARN_REDIS" --secret swordfish --for-ms 20000 >out 2>err &
pids="$! $pids"
until tr '\0' ' ' <"/proc/$!/cmdline" | grep -q 'redis://\*'; do
    kill -0 "$!" 2>/dev/null || { fail "tarn events: its address stays as it was"; break; }
done
tr '\0' ' ' <"/proc/$!/cmdline" >out
silent_about out swordfish
silent_about out "${TARN_REDIS%@*}"

finish
