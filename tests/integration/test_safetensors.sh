#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The metadata of .safetensors files: `tarn put` reads it and `tarn get` writes it again.
. "${0%/*}/cli.sh"
start_node node0 --pool cpu0:bytes=64M
TARN_REDIS=$(echo "$ready" | tr ' ' '\n' | sed -n 's/^redis=//p')
export TARN_REDIS

# safetensors FILE HEADER BYTES: writes a file with a header of less than 256 bytes and BYTES bytes of data.
safetensors()
{
    {
        printf "\\$(printf %o ${#2})\\0\\0\\0\\0\\0\\0\\0%s" "$2"
        head -c "$3" /dev/zero | tr '\0' x
    } >"$1"
}
tensor()
{
    echo "\"$1\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}"
}

said='{"format": "pt", "q":"a \"}{\" b"}'
safetensors a.safetensors "{\"__metadata__\":$said,$(tensor a)}" 4
safetensors b.safetensors "{$(tensor b), \"__metadata__\" : $said}" 4
other=$(printf '%s' "$said" | sed 's/pt/np/') # as long
safetensors other.safetensors "{\"__metadata__\":$other,$(tensor c)}" 4
safetensors only.safetensors "{\"__metadata__\":{}}" 0

# The metadata has its own key. A get writes it to the new file, and a put reads it from there again.
expect 0 put a.safetensors --prefix m/
says out "m/__metadata__"
tarn get m/__metadata__ >text || fail "get of the metadata"
[ "$(cat text)" = "$said" ] || fail "the metadata is $(cat text)"
expect 0 get --prefix m/ -o again.safetensors
grep -qF "\"__metadata__\":$said," again.safetensors || fail "again.safetensors: $(head -c 300 again.safetensors)"
expect 0 put again.safetensors --prefix m2/ --quiet
expect 0 get --prefix m2/ -o third.safetensors
same again.safetensors third.safetensors
expect 0 get a --prefix m/ -o without.safetensors
grep -q metadata without.safetensors && fail "metadata that was not asked for"
expect 0 put only.safetensors --prefix only/ --quiet
expect 0 get --prefix only/ -f safetensors -o only.back
grep -qF '{"__metadata__":{}}' only.back || fail "only.back: $(cat only.back)"

# Parts of a model may have the same metadata, in one put or several. Other metadata under the same prefix is
# an error.
expect 0 put a.safetensors b.safetensors --prefix parts/
says out "3 of 3 stored"
expect 0 put a.safetensors --prefix one/ --quiet
expect 0 put b.safetensors --prefix one/
says out "2 of 2 stored"
expect 2 put other.safetensors --prefix one/
says err "one/__metadata__"
says err "use --replace"
expect 2 put a.safetensors other.safetensors --prefix x/
says err "x/__metadata__ is given twice"

# put --key stores only the tensor, without metadata.
expect 0 put a.safetensors --key single
expect 0 rm single
expect 1 stat __metadata__

# Invalid metadata is an error and does not produce a broken file.
printf 'no json' | tarn put - --key bad/__metadata__ >/dev/null || fail "put of raw bytes"
expect 2 get --prefix bad/ -o bad.safetensors
says err "holds no metadata"
[ ! -e bad.safetensors ] || fail "a failed get left its file"

finish
