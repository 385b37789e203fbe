/* SPDX-License-Identifier: Apache-2.0 */
#include "client/check.h"

#include <string.h>

int tarn_options_copy(void *mine, size_t mine_bytes, const void *theirs)
{
    size_t bytes = 0;

    memset(mine, 0, mine_bytes);
    if (!theirs)
        return 0;
    memcpy(&bytes, theirs, sizeof bytes); /* every option struct begins with its size */
    if (bytes < sizeof bytes)
        return tarn_fail(TARN_E_INVALID, "options: size is not set: set it to sizeof (the struct)");
    memcpy(mine, theirs, bytes < mine_bytes ? bytes : mine_bytes);
    return 0;
}

int tarn_out_check(const char *call, const void *out)
{
    return out ? 0
               : tarn_fail(TARN_E_INVALID,
                           "%s: nowhere to put the result: pass an address, or a function, not NULL", call);
}

int tarn_key_check(const struct tarn_key *k)
{
    if (!k)
        return tarn_fail(TARN_E_INVALID, "key: NULL: pass the address of one");
    if (k->data && k->bytes >= 1 && k->bytes <= TARN_KEY_MAX)
        return 0;
    if (!k->data)
        return tarn_fail(TARN_E_INVALID, "key: NULL: pass 1 to %d bytes", TARN_KEY_MAX);
    return tarn_fail(TARN_E_INVALID, "key: %zu bytes long: give it 1 to %d", k->bytes, TARN_KEY_MAX);
}

const char *tarn_key_text(const struct tarn_key *k, char out[96])
{
    struct tarn_key head = {k->data, k->data ? (k->bytes < 28 ? k->bytes : 28) : 0};

    if (k->data && k->bytes <= 90 && tarn_key_escape(k, out, 96) >= 0)
        return out;
    if (head.bytes == 0 || tarn_key_escape(&head, out, 93) < 0)
        out[0] = '\0';
    memcpy(out + strlen(out), "..", 3);
    return out;
}
