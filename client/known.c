/* SPDX-License-Identifier: Apache-2.0 */
#include "client/known.h"

#include <stdlib.h>
#include <unistd.h>

#include <tarn/window.h>

#include "base/clock.h"
#include "base/container.h"
#include "client/client.h"
#include "client/control_conn.h"
#include "client/peer_nodes.h"

#define LEAVE_NS (50 * TARN_NS_PER_MS) /* for a connection; without one, the next recall costs more */

/* The list of what the link knows; threads that share the link may make it at once. NULL: out of memory. */
static _Atomic uint64_t *list_of(struct tarn_open_link *l)
{
    _Atomic uint64_t *list = atomic_load(&l->known);
    if (list)
        return list;
    _Atomic uint64_t *made = calloc(TARN_WINDOWS_MAX, sizeof *made);
    if (made && !atomic_compare_exchange_strong(&l->known, &list, made)) {
        free((void *)(uintptr_t)made);
        return list;
    }
    return made;
}

static void add_lease(struct tarn_command *c, const struct tarn_work *w)
{
    tarn_command_u64(c, w->pool);
    tarn_command_u64(c, w->slot);
    tarn_command_gen(c, w->gen);
}

/* What ENTER answers. */
struct entry {
    redisReply *reply;
    uint64_t pass;
};

static bool read_entry(struct entry *e, struct tarn_peer *p)
{
    const redisReply *r = e->reply;
    if (r->type != REDIS_REPLY_ARRAY || r->elements < 3 || !r->element[0]->str ||
        r->element[2]->type != REDIS_REPLY_INTEGER)
        return false;
    p->text = r->element[0]->str;
    e->pass = (uint64_t)r->element[2]->integer;
    return true;
}

static int enter(struct tarn_control_conn *conn, struct tarn_open_link *l, const struct tarn_work *w,
                 uint64_t deadline_ns, struct tarn_cancel *cancel, struct tarn_peer *p, struct entry *e)
{
    const struct tarn_side *s = l->side;
    struct tarn_command *c = tarn_resp_command(conn->resp, "ENTER", s->ops->name, s->write ? "w" : "r", NULL);
    add_lease(c, w);
    tarn_command_gen(c, l->link->id);
    int rc = tarn_control_conn_send(conn, c, deadline_ns, cancel);
    if (rc == 0)
        rc = tarn_control_conn_reply(conn, deadline_ns, cancel, &e->reply);
    if (rc != 0)
        return rc;
    p->nfds = (uint32_t)tarn_resp_take_fds(conn->resp, p->fds, TARN_RESP_FDS_MAX);
    if (read_entry(e, p))
        return 0;
    freeReplyObject(e->reply);
    return tarn_peer_node_fail(s->node, TARN_E_PROTOCOL, "ENTER: not an answer: is it of another version?");
}

static int learn(struct tarn_open_link *l, const struct tarn_peer *p)
{
    struct tarn_peer_node *node = l->side->node;
    bool shared = l->ops->caps & TARN_CAP_SHARED;
    if (shared)
        pthread_mutex_lock(&node->lock);
    int rc = l->ops->learn(l->link, p);
    if (shared)
        pthread_mutex_unlock(&node->lock);
    return rc;
}

static int ask(struct tarn_open_link *l, const struct tarn_work *w, uint64_t deadline_ns,
               struct tarn_cancel *cancel, uint64_t *pass_p)
{
    struct tarn_peer_node *node = l->side->node;
    struct tarn_steps steps = {.deadline_ns = deadline_ns, .patience_ns = UINT64_MAX};
    bool local = l->side->ops->caps & TARN_CAP_SAME_HOST;
    int fds[TARN_RESP_FDS_MAX];
    struct tarn_peer p = {.log = &node->client->log,
                          .node = node->key.id,
                          .write = l->side->write,
                          .windows = true,
                          .fds = fds};
    struct tarn_control_conn *conn;
    struct entry e;
    int rc = tarn_control_conn_take_in(node, local ? TARN_CONTROL_CONN_LOCAL : TARN_CONTROL_CONN_ANY, &steps,
                                       cancel, &conn);
    if (rc != 0)
        return rc;
    rc = enter(conn, l, w, deadline_ns, cancel, &p, &e);
    if (rc == 0) {
        rc = learn(l, &p);
        *pass_p = e.pass;
        freeReplyObject(e.reply);
    }
    for (uint32_t i = 0; i < p.nfds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    tarn_control_conn_give(conn);
    return rc;
}

static struct tarn_known_lease *known_of(const struct tarn_work *w)
{
    return TARN_CONTAINER_OF(w->lease, struct tarn_known_lease, lease);
}

static void entered(struct tarn_known_lease *k, bool write, uint64_t pass)
{
    pthread_mutex_lock(&k->lock);
    if (write)
        k->times = atomic_load(&k->pass[write]) == pass ? k->times + 1 : 1;
    atomic_store(&k->pass[write], pass);
    pthread_mutex_unlock(&k->lock);
}

int tarn_link_know(struct tarn_open_link *l, const struct tarn_work *w, uint64_t deadline_ns,
                   struct tarn_cancel *cancel)
{
    bool write = l->side->write, keys = l->ops->caps & TARN_CAP_KEYS;
    struct tarn_known_lease *k = known_of(w);
    uint64_t wanted = keys ? atomic_load(&k->pass[write]) : w->lease->window_id, pass;
    if (l->ops->learn == tarn_no_learn)
        return 0;
    _Atomic uint64_t *list = list_of(l);
    if (!list)
        return tarn_fail(TARN_E_NO_MEMORY, "node %s: out of memory for a link", l->side->node->key.id);
    if (wanted && atomic_load(&list[w->pool]) == wanted)
        return 0;
    int rc = ask(l, w, deadline_ns, cancel, &pass);
    if (rc != 0)
        return rc;
    if (keys)
        entered(k, write, pass);
    atomic_store(&list[w->pool], keys ? pass : w->lease->window_id);
    return 0;
}

void tarn_link_leave(struct tarn_peer_node *lender, struct tarn_known_lease *k, const struct tarn_work *w)
{
    struct tarn_control_conn *conn;
    struct tarn_steps steps = {.deadline_ns = tarn_now_ns() + LEAVE_NS, .patience_ns = UINT64_MAX};
    if (k->times == 0 || tarn_control_conn_take_in(lender, TARN_CONTROL_CONN_ANY, &steps, NULL, &conn))
        return;
    struct tarn_command *c = tarn_resp_command(conn->resp, "LEAVE", NULL);
    add_lease(c, w);
    tarn_command_u64(c, atomic_load(&k->pass[true]));
    tarn_command_u64(c, k->times);
    tarn_control_conn_send(conn, c, steps.deadline_ns, NULL);
    tarn_control_conn_give(conn);
}
