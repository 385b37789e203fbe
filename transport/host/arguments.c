/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of commands, and failures as replies. */
#include "transport/host/commands.h"

#include <inttypes.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"

#define REFUSALS_A_SECOND 20 /* lines of the log */

/* Strangers cannot fill a disk with the log: of many in a second the rest is counted. */
static void log_refusal(const struct tarn_conn *c)
{
    struct tarn_refusals *r = &c->host->refusals;
    uint64_t now = tarn_now_ns();

    if (now - r->second_ns >= TARN_NS_PER_S)
        r->second_ns = now, r->logged = 0;
    if (r->logged++ >= REFUSALS_A_SECOND) {
        r->left_out++;
        return;
    }
    tarn_log(c->host->log, TARN_LOG_WARN, "control",
             "msg=\"refused\" peer=%s command=%s left_out=%u cause=\"%s\"", c->peer, c->last_command,
             r->left_out, tarn_last_error());
    r->left_out = 0;
}

void tarn_reply_failure(struct tarn_conn *c, int code)
{
    c->host->errors++;
    if ((code == TARN_E_AUTH || code == TARN_E_VERSION) && !c->refused) {
        c->refused = true;
        log_refusal(c);
    }
    tarn_resp_add_error(&c->out, code, tarn_last_error());
}

int tarn_arg_u64(const redisReply *arg, const char *what, int base, uint64_t max, uint64_t *out)
{
    if (tarn_u64_parse(arg->str, arg->len, base, max, out) == 0)
        return 0;
    return tarn_fail(TARN_E_INVALID, "%s: \"%.*s\" is not a number from 0 to %" PRIu64, what,
                     (int)(arg->len < 40 ? arg->len : 40), arg->str, max);
}

int tarn_arg_slot(redisReply **args, uint32_t *pool, uint32_t *slot, uint64_t *gen)
{
    uint64_t p, s;
    int rc = tarn_arg_u64(args[0], "pool index", 10, UINT32_MAX, &p);
    if (!rc)
        rc = tarn_arg_u64(args[1], "slot", 10, UINT32_MAX, &s);
    if (!rc)
        rc = tarn_arg_u64(args[2], "generation", 16, UINT64_MAX, gen);
    if (rc)
        return rc;
    *pool = (uint32_t)p;
    *slot = (uint32_t)s;
    return 0;
}

int tarn_arg_key(const redisReply *arg, struct tarn_key *key)
{
    if (arg->len < 1 || arg->len > TARN_KEY_MAX)
        return tarn_fail(TARN_E_INVALID, "key: %zu bytes: a key has 1 to %d", (size_t)arg->len, TARN_KEY_MAX);
    *key = (struct tarn_key){arg->str, arg->len};
    return 0;
}
