/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reaching a lease: the lender counts as a peer node whose pools are its windows. It is in no directory; a
 * descriptor names it.
 */
#include "client/window/reach.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/text.h"
#include "client/check.h"
#include "client/client.h"
#include "client/control_conn.h"
#include "client/op.h"
#include "client/peer_nodes.h"
#include "client/window/descriptor.h"
#include "metadata/records.h"

struct tarn_peer_node *tarn_lender_node(struct tarn_client *c, const struct tarn_descriptor *d)
{
    char id[TARN_NODE_ID_MAX + 1];
    snprintf(id, sizeof(id), "lender-%016" PRIx64, d->epoch);
    struct tarn_peer_node *node = tarn_peer_node_of(c, id, (uint32_t)d->epoch);
    if (!node)
        return NULL;
    pthread_mutex_lock(&node->lock);
    if (!atomic_load(&node->lends)) {
        snprintf(node->control, sizeof(node->control), "%s", d->address);
        snprintf(node->unix_path, sizeof(node->unix_path), "%s", d->unix_path);
        snprintf(node->host_id, sizeof(node->host_id), "%s", d->host_id);
        snprintf(node->secret, sizeof(node->secret), "%.*s", TARN_WINDOW_TOKEN / 2, d->token);
        atomic_store(&node->near, strcmp(d->host_id, c->host_id) == 0);
        atomic_store(&node->lends, true);
        atomic_store(&node->listed, true);
    }
    pthread_mutex_unlock(&node->lock);
    return node;
}

/* --- reaches ------------------------------------------------------------------------------------ */

static struct tarn_reach *reach_new(struct tarn_client *c, struct tarn_peer_node *lender)
{
    struct tarn_reach *r = lender ? calloc(1, sizeof(*r)) : NULL;
    if (!r)
        return NULL;
    pthread_mutex_init(&r->known.lock, NULL);
    r->client = c;
    r->lender = lender;
    pthread_rwlock_wrlock(&c->nodes_lock);
    DL_APPEND(c->reaches, r);
    pthread_rwlock_unlock(&c->nodes_lock);
    return r;
}

void tarn_reaches_leave(struct tarn_client *c)
{
    struct tarn_reach *r, *next;
    DL_FOREACH_SAFE(c->reaches, r, next)
    {
        r->client = NULL;
        r->lender = NULL;
    }
    c->reaches = NULL;
}

/* After the client's end its session, and all that it has entered, is over. */
static void leave(struct tarn_reach *r)
{
    struct tarn_client *c = r->client;
    if (!c || tarn_client_enter(c)) /* closed, or this is a forked child */
        return;
    pthread_rwlock_wrlock(&c->nodes_lock);
    DL_DELETE(c->reaches, r);
    pthread_rwlock_unlock(&c->nodes_lock);
    if (!atomic_load(&r->doubt))
        tarn_link_leave(r->lender, &r->known,
                        &(struct tarn_work){.pool = r->window, .slot = r->slot, .gen = r->gen});
}

/* --- the answer to REACH ------------------------------------------------------------------------ */

static int malformed(struct tarn_peer_node *node)
{
    return tarn_peer_node_fail(node, TARN_E_PROTOCOL, "REACH: not an answer: is it of another version?");
}

/* Reads a decimal number that `end` follows, and goes on behind that. */
static bool number(const char **at, char end, uint64_t *out)
{
    char *behind;
    errno = 0;
    *out = strtoull(*at, &behind, 10);
    if (**at < '0' || **at > '9' || errno || *behind != end)
        return false;
    *at = behind + (end != 0);
    return true;
}

/* "<offset>:<bytes>:<stride>:<count>", with spaces between. */
static int parse_runs(struct tarn_reach *r, const char *text, size_t bytes)
{
    const char *at = text;
    size_t room = 1;
    for (size_t i = 0; i < bytes; i++)
        room += text[i] == ' ';
    if (room > TARN_RUNS_MAX)
        return malformed(r->lender);
    if (!tarn_runs_new(&r->known.lease.runs, (uint32_t)room))
        return tarn_fail(TARN_E_NO_MEMORY, "reach: out of memory for %zu runs", room);
    for (size_t i = 0; i < room; i++) {
        struct tarn_piece *p = &r->known.lease.runs.piece[i];
        uint64_t offset;
        if (!number(&at, ':', &offset) || !number(&at, ':', &p->bytes) || !number(&at, ':', &p->stride) ||
            !number(&at, i + 1 < room ? ' ' : 0, &p->count))
            return malformed(r->lender);
        p->addr = (void *)(uintptr_t)offset;
    }
    return tarn_runs_count(&r->known.lease.runs) ? 0 : malformed(r->lender);
}

/* Which of the client's transports the lender serves the window by. */
static uint8_t transport_bits(const struct tarn_client *c, redisReply *const *names, size_t n)
{
    uint8_t bits = 0;
    for (size_t i = 0; i < n; i++)
        for (int t = 0; t < c->ntransports; t++)
            if (names[i]->str && !strcmp(names[i]->str, c->transports[t]->name))
                bits |= (uint8_t)(1u << t);
    return bits;
}

/* A number that is one in an answer, and a string in a command. */
static bool take_u64(const redisReply *r, int base, uint64_t *out)
{
    if (r->type == REDIS_REPLY_INTEGER)
        *out = (uint64_t)r->integer;
    return r->type == REDIS_REPLY_INTEGER ||
           (r->str && !tarn_u64_parse(r->str, r->len, base, UINT64_MAX, out));
}

static int take_told(struct tarn_reach *r, redisReply *const *told, size_t n)
{
    uint64_t bytes;
    if (n < 4 || r->window >= TARN_WINDOWS_MAX || !told[0]->str || !take_u64(told[1], 10, &bytes) ||
        !take_u64(told[2], 16, &r->known.lease.window_id) || !told[3]->str)
        return malformed(r->lender);
    r->write = !strcmp(told[0]->str, "rw");
    int rc = parse_runs(r, told[3]->str, told[3]->len);
    if (!rc && r->known.lease.runs.bytes != bytes)
        rc = malformed(r->lender);
    if (!rc)
        atomic_store(&r->lender->pool_transports[r->window], transport_bits(r->client, told + 4, n - 4));
    return rc;
}

static int take_answer(struct tarn_reach *r, const redisReply *reply)
{
    return reply->type == REDIS_REPLY_ARRAY ? take_told(r, reply->element, reply->elements)
                                            : malformed(r->lender);
}

int tarn_reach_told(struct tarn_client *c, struct tarn_peer_node *lender, const struct tarn_told_lease *lease,
                    redisReply *const *told, size_t n, struct tarn_reach **r_p)
{
    struct tarn_reach *r = reach_new(c, lender);
    if (!r)
        return tarn_fail(TARN_E_NO_MEMORY, "reach: out of memory");
    r->window = r->descriptor.window = lease->window;
    r->slot = r->descriptor.slot = lease->slot;
    r->gen = r->descriptor.gen = lease->gen;
    /* The first half would open the lender's control connections. The lender's node has it. */
    snprintf(r->descriptor.token, sizeof(r->descriptor.token), "%0*d%s", TARN_WINDOW_TOKEN / 2, 0,
             lease->token);
    int rc = take_told(r, told, n);
    if (rc)
        tarn_reach_free(r);
    else
        *r_p = r;
    return rc;
}

static int ask(const struct tarn_reach *r, uint64_t deadline_ns, struct tarn_cancel *cancel,
               redisReply **reply_p)
{
    const struct tarn_descriptor *d = &r->descriptor;
    struct tarn_command command = {.n = 0};
    tarn_command_str(&command, "REACH");
    tarn_command_u64(&command, d->window);
    tarn_command_u64(&command, d->slot);
    tarn_command_gen(&command, d->gen);
    tarn_command_str(&command, d->token + TARN_WINDOW_TOKEN / 2);
    int rc = tarn_control_conn_call(r->lender, &command, deadline_ns, cancel, reply_p);
    tarn_command_free(&command);
    return rc;
}

int tarn_reach_again(const struct tarn_reach *r, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    redisReply *reply;
    int rc = ask(r, deadline_ns, cancel, &reply);
    if (!rc)
        freeReplyObject(reply);
    return rc;
}

/* --- public ------------------------------------------------------------------------------------- */

static int check_ns(const struct tarn_client *c, const struct tarn_descriptor *d)
{
    const char *ns = tarn_directory_ns(c->directory);
    if (!strcmp(d->ns, ns))
        return 0;
    return tarn_fail(TARN_E_INVALID, "reach: the descriptor is of namespace \"%s\", this client of \"%s\"",
                     d->ns, ns);
}

/* A word is a name. */
static int find(struct tarn_client *c, const char *text, uint64_t deadline_ns, struct tarn_cancel *cancel,
                struct tarn_descriptor *d)
{
    char named[TARN_DESCRIPTOR_TEXT];
    if (!tarn_name_valid(text, strnlen(text, TARN_DESCRIPTOR_TEXT), TARN_NODE_ID_MAX))
        return tarn_descriptor_parse(text, d);
    int rc = tarn_directory_named(c->directory, text, deadline_ns, cancel, named);
    return rc ? rc : tarn_descriptor_parse(named, d);
}

static int check_call(struct tarn_client *c, const char *descriptor, struct tarn_reach **r_p)
{
    int rc = tarn_client_enter(c);
    if (!rc)
        rc = tarn_out_check("reach", r_p);
    if (!rc && !descriptor)
        rc = tarn_fail(TARN_E_INVALID, "reach: descriptor is NULL");
    return rc;
}

static int run(struct tarn_client *c, const char *text, uint64_t deadline_ns, struct tarn_cancel *cancel,
               struct tarn_reach **r_p)
{
    struct tarn_descriptor d;
    redisReply *reply;
    int rc = find(c, text, deadline_ns, cancel, &d);
    if (!rc)
        rc = check_ns(c, &d);
    if (rc)
        return rc;
    struct tarn_reach *r = reach_new(c, tarn_lender_node(c, &d));
    if (!r)
        return tarn_fail(TARN_E_NO_MEMORY, "reach: out of memory");
    r->descriptor = d;
    r->window = d.window;
    r->slot = d.slot;
    r->gen = d.gen;
    rc = ask(r, deadline_ns, cancel, &reply);
    if (!rc) {
        rc = take_answer(r, reply);
        freeReplyObject(reply);
    }
    if (rc) {
        tarn_reach_free(r);
        return rc;
    }
    *r_p = r;
    return 0;
}

int tarn_reach(struct tarn_client *c, const char *descriptor, uint32_t timeout_ms, struct tarn_reach **r_p)
{
    struct tarn_cancel own;
    int rc = check_call(c, descriptor, r_p);
    return rc ? rc
              : run(c, descriptor, tarn_client_deadline(c, timeout_ms), tarn_client_cancel(c, &own), r_p);
}

struct question {
    struct tarn_client *client;
    const char *text;
    struct tarn_reach **r_p;
};

static int run_submitted(void *arg, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    const struct question *q = arg;
    return run(q->client, q->text, deadline_ns, cancel, q->r_p);
}

int tarn_submit_reach(struct tarn_client *c, const char *descriptor, uint32_t timeout_ms, uint64_t cookie,
                      struct tarn_reach **r_p, tarn_op *op_p)
{
    int rc = check_call(c, descriptor, r_p);
    if (rc)
        return rc;
    struct question *q = malloc(sizeof(*q));
    if (!q)
        return tarn_fail(TARN_E_NO_MEMORY, "reach: out of memory");
    *q = (struct question){.client = c, .text = descriptor, .r_p = r_p};
    const struct tarn_op_task t = {
        .kind = TARN_OP_REACH, .timeout_ms = timeout_ms, .cookie = cookie, .run = run_submitted, .arg = q};
    rc = tarn_op_submit(c, &t, op_p);
    if (rc)
        free(q);
    return rc;
}

void tarn_reach_free(struct tarn_reach *r)
{
    if (!r)
        return;
    leave(r);
    tarn_runs_free(&r->known.lease.runs);
    pthread_mutex_destroy(&r->known.lock);
    free(r);
}

uint64_t tarn_reach_bytes(const struct tarn_reach *r)
{
    return r ? r->known.lease.runs.bytes : 0;
}
