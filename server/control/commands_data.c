/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that move, keep and free objects without asking the directory. */
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "server/control/commands.h"

/* --- RESERVE, ABORT ----------------------------------------------------------------------------- */

static int parse_mode(const redisReply *arg, bool *absent)
{
    *absent = !strcasecmp(arg->str, "absent");
    if (*absent || !strcasecmp(arg->str, "replace"))
        return 0;
    return tarn_fail(TARN_E_INVALID, "RESERVE: \"%.20s\" is no mode: absent or replace", arg->str);
}

static int parse_pool(const struct tarn_conn *c, const redisReply *arg, int *pool)
{
    *pool = -1;
    if (arg->len == 1 && arg->str[0] == '*')
        return 0;
    *pool = tarn_store_pool_find(tarn_conn_node(c)->store, arg->str, arg->len);
    if (*pool >= 0)
        return 0;
    return tarn_fail(TARN_E_INVALID, "pool: node %s has no pool \"%.*s\": see INFO pools",
                     tarn_conn_node(c)->id, (int)(arg->len < 40 ? arg->len : 40), arg->str);
}

/* "@<pool index>/<slot>/<gen>" */
static int parse_chain_at(const struct tarn_store *s, const redisReply *arg, struct tarn_chain *chain)
{
    const char *pool = arg->str + 1, *slot = memchr(pool, '/', arg->len - 1),
               *gen = slot ? memchr(slot + 1, '/', (size_t)(arg->str + arg->len - slot - 1)) : NULL;
    uint64_t p, t, g;
    if (!gen || tarn_u64_parse(pool, (size_t)(slot - pool), 10, TARN_POOLS_MAX - 1, &p) ||
        tarn_u64_parse(slot + 1, (size_t)(gen - slot - 1), 10, UINT32_MAX, &t) ||
        tarn_u64_parse(gen + 1, (size_t)(arg->str + arg->len - gen - 1), 16, UINT64_MAX, &g))
        return tarn_fail(TARN_E_INVALID, "RESERVE: chain \"%.40s\" is no @<pool index>/<slot>/<gen>",
                         arg->str);
    *chain = tarn_store_chain_at(s, (uint32_t)p, (uint32_t)t, g);
    return 0;
}

/* Whether the items are a chain, and what its first one continues. docs/protocol.md has the forms. */
static int parse_chain(const struct tarn_store *s, redisReply *arg, struct tarn_chain *chain, bool *chained)
{
    struct tarn_key key = {arg->str + 1, arg->len - 1};
    *chain = (struct tarn_chain){.any = false};
    *chained = arg->len > 0;
    if (arg->len == 0 || (arg->len == 1 && arg->str[0] == '+'))
        return 0;
    if (arg->str[0] == '@')
        return parse_chain_at(s, arg, chain);
    if (arg->str[0] != '+' || key.bytes > TARN_KEY_MAX)
        return tarn_fail(TARN_E_INVALID,
                         "RESERVE: chain \"%.40s\": use nothing, +, +<key> or "
                         "@<pool index>/<slot>/<gen>",
                         arg->str);
    *chain = tarn_store_chain_from(s, &key);
    return 0;
}

/* What all items of a RESERVE have in common: the arguments before them. */
static int parse_reserve(const struct tarn_conn *c, redisReply **args, struct tarn_reserve *r,
                         struct tarn_chain *chain)
{
    uint64_t ttl = 0, pin = 0;
    bool chained = false;
    *r = (struct tarn_reserve){.session = c->session->id};
    int rc = parse_pool(c, args[1], &r->pool);
    if (!rc)
        rc = parse_mode(args[2], &r->absent);
    if (!rc)
        rc = tarn_arg_u64(args[3], "version", 10, INT64_MAX, &r->version);
    if (!rc && !r->version)
        rc = tarn_fail(TARN_E_INVALID, "version: 0 is none: choose a random number");
    if (!rc)
        rc = tarn_arg_u64(args[4], "ttl_ms", 10, UINT32_MAX, &ttl);
    if (!rc)
        rc = tarn_arg_u64(args[5], "pin", 10, 1, &pin);
    if (!rc)
        rc = parse_chain(tarn_conn_node(c)->store, args[6], chain, &chained);
    r->chain = chained ? chain : NULL;
    r->ttl_ms = (uint32_t)ttl;
    r->pin = pin;
    return rc;
}

static int parse_item(redisReply **args, struct tarn_reserve *r)
{
    r->tensor = (struct tarn_tensor){0};
    int rc = tarn_arg_key(args[0], &r->key);
    if (!rc)
        rc = tarn_arg_u64(args[1], "bytes", 10, INT64_MAX, &r->tensor.bytes);
    if (rc)
        return rc;
    int dtype = tarn_dtype_parse_n(args[2]->str, args[2]->len);
    if (dtype < 0)
        return dtype;
    r->tensor.dtype = (uint32_t)dtype;
    rc = tarn_shape_parse(args[3]->str, args[3]->len, &r->tensor);
    return rc ? rc : tarn_tensor_check(&r->tensor);
}

static void reserve_item(struct tarn_conn *c, redisReply **args, struct tarn_reserve *r)
{
    struct tarn_grant g;
    char gen[20];
    int rc = parse_item(args, r);
    if (!rc)
        rc = tarn_store_reserve(tarn_conn_node(c)->store, r, &g);
    if (rc) {
        tarn_reply_failure(c, rc);
        return;
    }
    c->grant = (struct tarn_conn_grant){g.pool, g.slot, g.gen, g.offset, r->tensor.bytes};
    tarn_conn_node(c)->stats.reserved++;
    tarn_gen_format(g.gen, gen);
    tarn_resp_add_array(&c->out, 4);
    tarn_resp_add_integer(&c->out, g.pool);
    tarn_resp_add_integer(&c->out, (int64_t)g.offset);
    tarn_resp_add_integer(&c->out, g.slot);
    tarn_resp_add_string(&c->out, gen, strlen(gen));
}

void tarn_reservations_changed(struct tarn_session *s)
{
    const struct tarn_node *n = TARN_CONTAINER_OF(s->all->host, struct tarn_node, host);
    if (!tarn_store_session_reserved(n->store, s->id))
        s->reserving_since_ns = 0;
    else if (!s->reserving_since_ns)
        s->reserving_since_ns = tarn_now_ns();
}

enum { AHEAD = 16 };

/* Finding a key among many takes two loads from memory. Those of several keys overlap. */
static void prefetch(struct tarn_conn *c, size_t n, redisReply **args)
{
    for (int object = 0; object < 2; object++)
        for (size_t i = 0; i < n && i < 4 * AHEAD; i += 4)
            tarn_store_prefetch(tarn_conn_node(c)->store, args[i]->str, args[i]->len, object);
}

int tarn_command_reserve(struct tarn_conn *c, size_t n, redisReply **args)
{
    struct tarn_reserve r;
    struct tarn_chain chain;
    uint64_t refused = 0;
    c->grant.gen = 0;
    int rc = parse_reserve(c, args, &r, &chain);
    if (!rc && tarn_conn_node(c)->state != TARN_NODE_READY)
        rc = tarn_fail(TARN_E_BUSY, "node %s is draining: put elsewhere", tarn_conn_node(c)->id);
    if (rc)
        return rc;
    r.refused = &refused;
    tarn_resp_add_array(&c->out, (n - 7) / 4);
    for (size_t i = 7; i < n; i += 4) {
        if ((i - 7) % (4 * AHEAD) == 0)
            prefetch(c, n - i, args + i);
        reserve_item(c, args + i, &r);
    }
    if (n > 11) /* STORE is for one item */
        c->grant.gen = 0;
    tarn_reservations_changed(c->session);
    return 0;
}

int tarn_command_abort(struct tarn_conn *c, size_t n, redisReply **args)
{
    tarn_resp_add_array(&c->out, (n - 1) / 3);
    for (size_t i = 1; i < n; i += 3) {
        uint32_t pool, slot;
        uint64_t gen;
        int rc = tarn_arg_slot(args + i, &pool, &slot, &gen);
        if (rc)
            tarn_reply_failure(c, rc);
        else
            tarn_resp_add_integer(
                &c->out, tarn_store_abort(tarn_conn_node(c)->store, c->session->id, pool, slot, gen));
    }
    tarn_reservations_changed(c->session);
    tarn_conn_node(c)->drain_check(tarn_conn_node(c));
    return 0;
}

/* --- PIN, UNPIN, PINNED, TOUCH, EVICT ------------------------------------------------------------------- */

/* One 1 or 0 a key. */
static int each_key(struct tarn_conn *c, size_t n, redisReply **args,
                    bool (*fn)(struct tarn_store *s, const struct tarn_key *key))
{
    tarn_resp_add_array(&c->out, n);
    for (size_t i = 0; i < n; i++) {
        struct tarn_key key;
        int rc = tarn_arg_key(args[i], &key);
        if (rc)
            tarn_reply_failure(c, rc);
        else
            tarn_resp_add_integer(&c->out, fn(tarn_conn_node(c)->store, &key));
    }
    return 0;
}

int tarn_command_pin(struct tarn_conn *c, size_t n, redisReply **args)
{
    uint64_t ttl;
    int rc = tarn_arg_u64(args[1], "ttl_ms", 10, UINT32_MAX, &ttl);
    if (rc)
        return rc;
    tarn_resp_add_array(&c->out, n - 2);
    for (size_t i = 2; i < n; i++) {
        struct tarn_key key;
        rc = tarn_arg_key(args[i], &key);
        if (rc)
            tarn_reply_failure(c, rc);
        else
            tarn_resp_add_integer(&c->out, tarn_store_pin(tarn_conn_node(c)->store, &key, (uint32_t)ttl));
    }
    return 0;
}

int tarn_command_unpin(struct tarn_conn *c, size_t n, redisReply **args)
{
    return each_key(c, n - 1, args + 1, tarn_store_unpin);
}

int tarn_command_pinned(struct tarn_conn *c, size_t n, redisReply **args)
{
    tarn_resp_add_array(&c->out, n - 1);
    for (size_t i = 1; i < n; i++) {
        struct tarn_key key;
        int rc = tarn_arg_key(args[i], &key);
        if (rc)
            tarn_reply_failure(c, rc);
        else
            tarn_resp_add_integer(&c->out, tarn_store_pinned(tarn_conn_node(c)->store, &key));
    }
    return 0;
}

int tarn_command_touch(struct tarn_conn *c, size_t n, redisReply **args)
{
    return each_key(c, n - 1, args + 1, tarn_store_touch);
}

int tarn_command_evict(struct tarn_conn *c, size_t n, redisReply **args)
{
    uint64_t bytes;
    int pool, rc = parse_pool(c, args[1], &pool);
    (void)n;
    if (!rc && pool < 0)
        rc = tarn_fail(TARN_E_INVALID, "EVICT: names one pool, not *");
    if (!rc)
        rc = tarn_arg_u64(args[2], "bytes", 10, INT64_MAX, &bytes);
    if (!rc)
        tarn_resp_add_integer(&c->out,
                              (int64_t)tarn_store_evict(tarn_conn_node(c)->store, (uint32_t)pool, bytes));
    return rc;
}
