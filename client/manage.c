/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Touch and pin: commands about keys to the nodes that hold copies, as the directory names them.
 */
#include <stdlib.h>
#include <string.h>

#include "client/cache.h"
#include "client/check.h"
#include "client/client.h"
#include "client/control_conn.h"
#include "client/peer_nodes.h"
#include "client/resolve.h"
#include "client/side.h"
#include "client/verdict.h"

#define COMMAND_KEYS_MAX 4096

/* --- commands about keys, grouped by node ------------------------------------------------------- */

/* The command about one copy of one key. */
struct mark {
    struct tarn_peer_node *node;
    size_t key;
    int code;      /* of the node's refusal */
    int64_t value; /* what it answered */
    bool done;
};

struct marks {
    struct tarn_client *client;
    const char *command, *argument; /* argument: before the keys, or NULL */
    const struct tarn_key *keys;
    struct mark *all;
    size_t n;
    uint64_t deadline_ns;
    struct tarn_cancel *cancel;
    struct tarn_verdict verdict; /* by key */
};

/* The node's answer about one copy, or its refusal. */
static int mark_answer(const struct marks *m, struct tarn_peer_node *node, const redisReply *e,
                       int64_t *value_p)
{
    if (e && e->type == REDIS_REPLY_INTEGER) {
        *value_p = e->integer;
        return 0;
    }
    int rc = e ? tarn_peer_node_error(node, e) : 0;
    if (rc == 0)
        rc = tarn_peer_node_fail(node, TARN_E_PROTOCOL, "%s: not an answer: is it of another version?",
                                 m->command);
    return rc;
}

/* Sends one command about up to COMMAND_KEYS_MAX marks of the node. */
static void marks_send(struct marks *m, struct tarn_peer_node *node)
{
    size_t batch[COMMAND_KEYS_MAX], n = 0;
    struct tarn_command c = {.n = 0};
    redisReply *reply = NULL;

    tarn_command_strs(&c, m->command, m->argument, NULL);
    for (size_t i = 0; i < m->n && n < COMMAND_KEYS_MAX; i++) {
        if (m->all[i].done || m->all[i].node != node)
            continue;
        m->all[i].done = true;
        batch[n++] = i;
        tarn_command_add(&c, m->keys[m->all[i].key].data, m->keys[m->all[i].key].bytes);
    }
    int rc = tarn_control_conn_call(node, &c, m->deadline_ns, m->cancel, &reply);
    tarn_command_free(&c);
    for (size_t k = 0; k < n; k++) {
        const redisReply *e = rc == 0 && k < reply->elements ? reply->element[k] : NULL;
        struct mark *one = &m->all[batch[k]];
        one->code = rc != 0 ? rc : mark_answer(m, node, e, &one->value);
        if (one->code != 0)
            tarn_verdict_note(&m->verdict, one->key, one->code);
    }
    if (reply)
        freeReplyObject(reply);
}

static void marks_run(struct marks *m)
{
    for (size_t i = 0; i < m->n; i++)
        if (!m->all[i].done)
            marks_send(m, m->all[i].node);
}

/* One mark for each copy of each resolved key. */
static int marks_make(struct marks *m, const struct tarn_resolved *found, size_t n)
{
    size_t total = 0;

    for (size_t i = 0; i < n; i++)
        total += found[i].status == 0 ? found[i].desc.nlocs : 0;
    m->n = 0;
    m->all = calloc(total ? total : 1, sizeof *m->all);
    if (!m->all)
        return tarn_fail(TARN_E_NO_MEMORY, "%s: out of memory", m->command);
    for (size_t i = 0; i < n; i++)
        for (uint32_t k = 0; found[i].status == 0 && k < found[i].desc.nlocs; k++)
            m->all[m->n++] = (struct mark){.node = found[i].desc.locs[k].node, .key = i};
    return 0;
}

/* --- touch, pin --------------------------------------------------------------------------------- */

/* Touches in shared memory, if a cached descriptor and a shared link are there. */
static bool touch_directly(struct tarn_client *c, const struct tarn_key *key)
{
    struct tarn_desc d;

    if (!tarn_cache_find(c->cache, key, tarn_key_hash(key), &d))
        return false;
    for (uint32_t k = 0; k < d.nlocs; k++)
        for (int t = 0; t < c->ntransports; t++) {
            uint32_t stripe = d.locs[k].slot % TARN_STRIPES;
            struct tarn_side *s = &d.locs[k].node->sides[t][0];
            struct tarn_open_link *l = tarn_side_enter(s, stripe);
            if (!l)
                continue;
            l->ops->touch(l->link, d.locs[k].pool, d.locs[k].slot);
            tarn_side_leave(s, stripe);
            return true;
        }
    return false;
}

/* Called for each copy, with code 0 and its value or with the refusal; and with NOT_FOUND for a key without
 * copies. */
typedef void (*answer_fn)(void *arg, size_t key, int code, int64_t value);

/* Looks the keys up and runs the command on every copy. Returns the first refusal. */
static int mark_keys(struct tarn_client *c, const char *command, const char *argument,
                     const struct tarn_key *keys, size_t n, uint64_t deadline_ns, answer_fn answer, void *arg)
{
    struct tarn_cancel own;
    struct marks m = {.client = c,
                      .command = command,
                      .argument = argument,
                      .keys = keys,
                      .deadline_ns = deadline_ns,
                      .cancel = tarn_client_cancel(c, &own)};
    struct tarn_resolved *found = malloc((n ? n : 1) * sizeof *found);
    int rc = found ? 0 : tarn_fail(TARN_E_NO_MEMORY, "%s: out of memory", command);

    if (rc == 0)
        rc = tarn_resolve_keys(c, keys, n, deadline_ns, m.cancel, found);
    if (rc == 0)
        rc = marks_make(&m, found, n);
    if (rc == 0)
        marks_run(&m);
    for (size_t i = 0; rc == 0 && i < n; i++)
        if (found[i].status != 0)
            answer(arg, i, found[i].status, 0);
    for (size_t i = 0; rc == 0 && i < m.n; i++)
        answer(arg, m.all[i].key, m.all[i].code, m.all[i].value);
    free(m.all);
    free(found);
    return rc ? rc : tarn_verdict_end(&m.verdict);
}

static void count_hit(void *arg, size_t key, int code, int64_t value)
{
    (void)key;
    *(size_t *)arg += code == 0 && value != 0;
}

int tarn_touch(struct tarn_client *c, const struct tarn_key *keys, size_t n)
{
    size_t left = 0, hits = 0;
    int rc = tarn_client_enter(c);

    if (rc == 0 && n > 0 && !keys)
        rc = tarn_fail(TARN_E_INVALID, "touch: keys are NULL");
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = tarn_key_check(&keys[i]);
    if (rc != 0)
        return rc;
    struct tarn_key *rest = malloc((n ? n : 1) * sizeof *rest);
    if (!rest)
        return tarn_fail(TARN_E_NO_MEMORY, "touch: out of memory");
    for (size_t i = 0; i < n; i++)
        if (!touch_directly(c, &keys[i]))
            rest[left++] = keys[i];
    if (left > 0)
        rc = mark_keys(c, "TOUCH", NULL, rest, left, tarn_client_deadline(c, 0), count_hit, &hits);
    free(rest);
    return rc;
}

static int mark_one(struct tarn_client *c, const char *command, const char *argument,
                    const struct tarn_key *key, uint32_t timeout_ms)
{
    size_t hits = 0;
    char name[96];
    int rc = tarn_client_enter(c);

    if (rc == 0)
        rc = tarn_key_check(key);
    if (rc == 0)
        rc = mark_keys(c, command, argument, key, 1, tarn_client_deadline(c, timeout_ms), count_hit, &hits);
    if (rc == 0 && hits == 0)
        rc = tarn_fail(TARN_E_NOT_FOUND, "%s key '%s': no such key", command, tarn_key_text(key, name));
    return rc;
}

int tarn_pin(struct tarn_client *c, const struct tarn_key *key, uint32_t ttl_ms, uint32_t timeout_ms)
{
    char ttl[16];

    snprintf(ttl, sizeof ttl, "%u", ttl_ms);
    return mark_one(c, "PIN", ttl, key, timeout_ms);
}

int tarn_unpin(struct tarn_client *c, const struct tarn_key *key, uint32_t timeout_ms)
{
    return mark_one(c, "UNPIN", NULL, key, timeout_ms);
}

/* The longest pin of the copies counts; an answer counts more than a refusal. */
static void keep_longest(void *arg, size_t key, int code, int64_t value)
{
    int64_t *ms = (int64_t *)arg + key;

    if (code != 0)
        *ms = *ms == INT64_MIN ? code : *ms;
    else if (value < 0)
        *ms = TARN_PINNED_FOREVER;
    else if (*ms < value)
        *ms = value;
}

int tarn_pinned(struct tarn_client *c, const struct tarn_key *keys, size_t n, int64_t *ms,
                uint32_t timeout_ms)
{
    int rc = tarn_client_enter(c);

    if (rc == 0 && n > 0)
        rc = tarn_out_check("pinned", keys ? ms : NULL);
    for (size_t i = 0; ms && i < n; i++)
        ms[i] = INT64_MIN;
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = tarn_key_check(&keys[i]);
    if (rc == 0)
        rc = mark_keys(c, "PINNED", NULL, keys, n, tarn_client_deadline(c, timeout_ms), keep_longest, ms);
    for (size_t i = 0; rc != 0 && ms && i < n; i++)
        ms[i] = ms[i] == INT64_MIN ? rc : ms[i];
    return rc;
}
