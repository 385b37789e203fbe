/* SPDX-License-Identifier: Apache-2.0 */
#include "client/known.h"

#include <stdlib.h>
#include <unistd.h>

#include <tarn/window.h>

#include "client/client.h"
#include "client/control_conn.h"
#include "client/peer_nodes.h"

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

static int enter(struct tarn_control_conn *conn, struct tarn_side *s, uint64_t link, uint32_t window,
                 uint64_t id, uint64_t deadline_ns, struct tarn_cancel *cancel, struct tarn_peer *p,
                 redisReply **reply_p)
{
    struct tarn_command *c = tarn_resp_command(conn->resp, "ENTER", s->ops->name, s->write ? "w" : "r", NULL);
    tarn_command_u64(c, window);
    tarn_command_gen(c, id);
    tarn_command_gen(c, link);
    int rc = tarn_control_conn_send(conn, c, deadline_ns, cancel);
    if (rc == 0)
        rc = tarn_control_conn_reply(conn, deadline_ns, cancel, reply_p);
    if (rc != 0)
        return rc;
    p->nfds = (uint32_t)tarn_resp_take_fds(conn->resp, p->fds, TARN_RESP_FDS_MAX);
    if ((*reply_p)->type == REDIS_REPLY_ARRAY && (*reply_p)->elements >= 1 && (*reply_p)->element[0]->str) {
        p->text = (*reply_p)->element[0]->str;
        return 0;
    }
    freeReplyObject(*reply_p);
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

static int ask(struct tarn_open_link *l, uint32_t window, uint64_t id, uint64_t deadline_ns,
               struct tarn_cancel *cancel)
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
    redisReply *reply;
    int rc = tarn_control_conn_take_in(node, local ? TARN_CONTROL_CONN_LOCAL : TARN_CONTROL_CONN_ANY, &steps,
                                       cancel, &conn);
    if (rc != 0)
        return rc;
    rc = enter(conn, l->side, l->link->id, window, id, deadline_ns, cancel, &p, &reply);
    if (rc == 0) {
        rc = learn(l, &p);
        freeReplyObject(reply);
    }
    for (uint32_t i = 0; i < p.nfds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    tarn_control_conn_give(conn);
    return rc;
}

int tarn_link_know(struct tarn_open_link *l, uint32_t window, uint64_t id, uint64_t deadline_ns,
                   struct tarn_cancel *cancel)
{
    _Atomic uint64_t *list = list_of(l);
    if (!list)
        return tarn_fail(TARN_E_NO_MEMORY, "node %s: out of memory for a link", l->side->node->key.id);
    if (atomic_load(&list[window]) == id)
        return 0;
    int rc = l->side->ops->learn == tarn_no_learn ? 0 : ask(l, window, id, deadline_ns, cancel);
    if (rc == 0)
        atomic_store(&list[window], id);
    return rc;
}
