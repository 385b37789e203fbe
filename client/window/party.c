/* SPDX-License-Identifier: Apache-2.0 */
#include "client/window/party.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"

static void tell_text(struct tarn_buf *out, const char *text)
{
    tarn_resp_add_string(out, text, strlen(text));
}

static void tell_u64(struct tarn_buf *out, uint64_t v)
{
    char text[20];
    snprintf(text, sizeof(text), "%016" PRIx64, v);
    tell_text(out, text);
}

void tarn_party_tell(const struct tarn_party *p, struct tarn_buf *out)
{
    tell_text(out, p->id);
    tell_u64(out, p->epoch);
    tell_u64(out, p->session);
    tell_text(out, p->address);
    tell_text(out, p->unix_path);
    tell_text(out, p->host_id);
    tell_text(out, p->secret);
}

/* False: it is no text, or does not fit. */
static bool take_text(const redisReply *r, char *out, size_t out_bytes)
{
    if (!r->str || r->len >= out_bytes || strlen(r->str) != r->len)
        return false;
    memcpy(out, r->str, r->len + 1);
    tarn_one_line(out);
    return true;
}

static bool take_u64(const redisReply *r, uint64_t *out)
{
    return r->str && !tarn_u64_parse(r->str, r->len, 16, UINT64_MAX, out);
}

int tarn_party_take(redisReply *const *fields, struct tarn_party *p)
{
    if (take_text(fields[0], p->id, sizeof(p->id)) && take_u64(fields[1], &p->epoch) &&
        take_u64(fields[2], &p->session) && take_text(fields[3], p->address, sizeof(p->address)) &&
        take_text(fields[4], p->unix_path, sizeof(p->unix_path)) &&
        take_text(fields[5], p->host_id, sizeof(p->host_id)) &&
        take_text(fields[6], p->secret, sizeof(p->secret)))
        return 0;
    return tarn_fail(TARN_E_PROTOCOL, "channel: the peer does not say who it is: is it of another version?");
}
