/* SPDX-License-Identifier: Apache-2.0 */
#include "server/control/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/error.h"
#include "metadata/records.h"
#include "server/control/commands.h"
#include "server/control/pending.h"

#define NAMES_MAX 4096

struct tarn_lent_name {
    struct tarn_lent_name *prev, *next;
    uint64_t session, ends_ns; /* ends_ns: 0: with the session */
    char name[TARN_NODE_ID_MAX + 1], descriptor[TARN_DESCRIPTOR_TEXT];
};

/* One LEND or UNLEND. */
struct naming {
    struct tarn_pending pending;
    struct tarn_lent_name *lent; /* LEND: what to keep */
};

/* Names that are written again or removed, without a command. */
struct background {
    struct tarn_request request;
    struct tarn_node *node;
    struct tarn_window_name names[];
};

static struct tarn_lent_name *find(const struct tarn_node *n, const char *name)
{
    struct tarn_lent_name *l;
    DL_FOREACH (n->names, l)
        if (!strcmp(l->name, name))
            return l;
    return NULL;
}

static void drop(struct tarn_node *n, struct tarn_lent_name *l)
{
    DL_DELETE(n->names, l);
    n->nnames--;
    free(l);
}

static void fill(struct tarn_window_name *w, const struct tarn_lent_name *l, uint32_t life_ms)
{
    snprintf(w->name, sizeof(w->name), "%s", l->name);
    snprintf(w->descriptor, sizeof(w->descriptor), "%s", l->descriptor);
    w->life_ms = life_ms;
    w->status = 0;
}

/* --- in the background --------------------------------------------------------------------------- */

/* A name that another has taken meanwhile, e.g. after Redis lost its data, is the other's. */
static void background_done(struct tarn_request *r)
{
    struct background *b = TARN_CONTAINER_OF(r, struct background, request);
    for (size_t i = 0; !r->failure.code && i < r->n; i++) {
        struct tarn_lent_name *l = b->names[i].status ? find(b->node, b->names[i].name) : NULL;
        if (!l || strcmp(l->descriptor, b->names[i].descriptor))
            continue;
        tarn_log(&b->node->log, TARN_LOG_WARN, "names",
                 "msg=\"another has taken the name of a window\" name=%s", l->name);
        drop(b->node, l);
    }
    free(b);
}

static struct background *background_new(struct tarn_node *n, size_t names)
{
    struct background *b = calloc(1, sizeof(*b) + names * sizeof(b->names[0]));
    if (!b)
        return NULL;
    b->node = n;
    b->request =
        (struct tarn_request){.kind = TARN_REQUEST_NAMES, .done = background_done, .names = b->names};
    return b;
}

/* Takes the name out of Redis, too. */
static void withdraw(struct tarn_node *n, struct tarn_lent_name *l)
{
    struct background *b = background_new(n, 1);
    if (b) { /* without memory it expires */
        fill(&b->names[b->request.n++], l, 0);
        tarn_directory_thread_submit(n->directory_thread, &b->request);
    }
    drop(n, l);
}

void tarn_names_forget(struct tarn_node *n, uint64_t session)
{
    struct tarn_lent_name *l, *next;
    DL_FOREACH_SAFE(n->names, l, next)
    if (l->session == session)
        withdraw(n, l);
}

void tarn_names_tick(struct tarn_node *n)
{
    struct tarn_lent_name *l, *next;
    uint64_t now = tarn_now_ns();
    DL_FOREACH_SAFE(n->names, l, next)
    if (l->ends_ns && l->ends_ns <= now)
        withdraw(n, l);
    struct background *b = n->nnames ? background_new(n, n->nnames) : NULL;
    if (!b)
        return;
    DL_FOREACH (n->names, l)
        fill(&b->names[b->request.n++], l, n->ttl_ms);
    tarn_directory_thread_submit(n->directory_thread, &b->request);
}

void tarn_names_free(struct tarn_node *n)
{
    while (n->names)
        drop(n, n->names);
}

/* --- LEND, UNLEND ------------------------------------------------------------------------------- */

static void lend_answer(struct tarn_pending *p, const struct tarn_reason *why)
{
    struct naming *k = TARN_CONTAINER_OF(p, struct naming, pending);
    const struct tarn_window_name *w = &p->request.names[0];
    bool kept = k->lent && p->conn && !why->code && !w->status;
    if (kept) {
        DL_APPEND(p->node->names, k->lent);
        p->node->nnames++;
    } else {
        free(k->lent);
    }
    k->lent = NULL;
    if (!p->conn)
        return;
    if (why->code)
        tarn_reply_failure(p->conn, tarn_reason_fail(why));
    else if (w->status)
        tarn_reply_failure(
            p->conn, tarn_fail(w->status, "LEND: another has the name \"%s\": choose another", w->name));
    else
        tarn_resp_add_simple(&p->conn->out, "OK");
}

static int begin(struct tarn_conn *c, const char *name, const char *descriptor, uint32_t life_ms,
                 struct tarn_lent_name *lent)
{
    struct naming *k = tarn_pending_new(sizeof(*k), TARN_REQUEST_NAMES, 1, 1);
    if (!k)
        return tarn_fail(TARN_E_NO_MEMORY, "LEND: out of memory");
    struct tarn_window_name *w = &k->pending.request.names[0];
    k->lent = lent;
    k->pending.request.n = 1;
    k->pending.answer = lend_answer;
    snprintf(w->name, sizeof(w->name), "%s", name);
    snprintf(w->descriptor, sizeof(w->descriptor), "%s", descriptor);
    w->life_ms = life_ms;
    tarn_pending_start(&k->pending, c, (uint64_t)tarn_conn_node(c)->config->redis_timeout_ms);
    return 0;
}

static int check(const struct tarn_conn *c, redisReply *const *args)
{
    const struct tarn_node *n = tarn_conn_node(c);
    if (!tarn_name_valid(args[1]->str, args[1]->len, TARN_NODE_ID_MAX))
        return tarn_fail(TARN_E_INVALID, "LEND: a name has 1 to %d of A-Z a-z 0-9 . _ -", TARN_NODE_ID_MAX);
    if (args[3]->len >= TARN_DESCRIPTOR_TEXT || strncmp(args[3]->str, "tarn-window ", 12))
        return tarn_fail(TARN_E_INVALID, "LEND %s: that is no descriptor of a lease", args[1]->str);
    if (n->nnames >= NAMES_MAX)
        return tarn_fail(TARN_E_BUSY, "LEND: node %s keeps %d names already: use another node", n->id,
                         NAMES_MAX);
    const struct tarn_lent_name *l = find(n, args[1]->str);
    if (l)
        return tarn_fail(TARN_E_EXISTS, "LEND: another has the name \"%s\": choose another", args[1]->str);
    return 0;
}

int tarn_command_lend(struct tarn_conn *c, size_t n, redisReply **args)
{
    uint64_t ttl_ms;
    (void)n;
    int rc = tarn_arg_u64(args[2], "ttl", 10, UINT32_MAX, &ttl_ms);
    if (!rc)
        rc = check(c, args);
    if (rc)
        return rc;
    struct tarn_lent_name *l = calloc(1, sizeof(*l));
    if (!l)
        return tarn_fail(TARN_E_NO_MEMORY, "LEND: out of memory");
    l->session = c->session->id;
    l->ends_ns = ttl_ms ? tarn_deadline((uint32_t)ttl_ms) : 0;
    snprintf(l->name, sizeof(l->name), "%s", args[1]->str);
    snprintf(l->descriptor, sizeof(l->descriptor), "%s", args[3]->str);
    rc = begin(c, l->name, l->descriptor, tarn_conn_node(c)->ttl_ms, l);
    if (rc)
        free(l);
    return rc;
}

int tarn_command_unlend(struct tarn_conn *c, size_t n, redisReply **args)
{
    struct tarn_lent_name *l = find(tarn_conn_node(c), args[1]->str);
    char name[sizeof(l->name)], descriptor[sizeof(l->descriptor)];
    (void)n;
    if (!l || l->session != c->session->id)
        return tarn_fail(TARN_E_NOT_FOUND, "UNLEND: this session has lent nothing as \"%.63s\"",
                         args[1]->str);
    memcpy(name, l->name, sizeof(name));
    memcpy(descriptor, l->descriptor, sizeof(descriptor));
    drop(tarn_conn_node(c), l);
    return begin(c, name, descriptor, 0, NULL);
}
