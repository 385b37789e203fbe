/* SPDX-License-Identifier: Apache-2.0 */
#include "client/retire.h"

#include <stdlib.h>
#include <utlist.h>

#include "client/client.h"

void tarn_control_conn_drop(struct tarn_control_conn *conn)
{
    if (conn->resp)
        tarn_resp_free(conn->resp);
    free(conn);
}

void tarn_link_free(struct tarn_open_link *l)
{
    l->ops->close(l->link);
    free((void *)(uintptr_t)atomic_load(&l->known));
    free(l);
}

/* The node's lock is held. */
static void retire_side(struct tarn_side *s)
{
    struct tarn_open_link *l, *next, *shared = atomic_exchange(&s->shared, NULL);

    if (atomic_load(&s->state) == TARN_SIDE_SHARED)
        atomic_store(&s->state, TARN_SIDE_UNKNOWN);
    if (shared)
        LL_PREPEND(s->retired, shared);
    LL_FOREACH_SAFE(s->idle, l, next)
    tarn_link_free(l);
    s->idle = NULL;
    s->nidle = 0;
}

void tarn_peer_node_retire(struct tarn_peer_node *node)
{
    pthread_mutex_lock(&node->lock);
    for (int t = 0; t < node->client->ntransports; t++)
        for (int w = 0; w < 2; w++)
            retire_side(&node->sides[t][w]);
    struct tarn_control_conn *conn, *next, *idle = node->idle_conns;
    node->idle_conns = NULL;
    node->nidle_conns = 0;
    pthread_mutex_unlock(&node->lock);
    LL_FOREACH_SAFE(idle, conn, next)
    tarn_control_conn_drop(conn);
}

static bool side_busy(struct tarn_side *s)
{
    for (int i = 0; i < TARN_STRIPES; i++)
        if (atomic_load(&s->busy[i].n) != 0)
            return true;
    return false;
}

/* The node's lock is held. */
static bool reap_side(struct tarn_side *s)
{
    struct tarn_open_link *l, *next;

    if (s->retired && side_busy(s))
        return false;
    LL_FOREACH_SAFE(s->retired, l, next)
    if (atomic_load(&l->views) == 0) {
        LL_DELETE(s->retired, l);
        tarn_link_free(l);
    }
    return s->retired == NULL;
}

bool tarn_peer_node_reap(struct tarn_peer_node *node)
{
    bool clean = true;

    pthread_mutex_lock(&node->lock);
    for (int t = 0; t < node->client->ntransports; t++)
        for (int w = 0; w < 2; w++)
            clean &= reap_side(&node->sides[t][w]);
    pthread_mutex_unlock(&node->lock);
    return clean;
}

/* Else the node would keep the session, for its views, until this process exits. */
static void say_goodbye(struct tarn_control_conn *conn)
{
    if (tarn_resp_append_strs(conn->resp, "QUIT", NULL) == 0)
        tarn_resp_flush(conn->resp, tarn_now_ns(), NULL);
}

void tarn_peer_node_free(struct tarn_peer_node *node)
{
    struct tarn_open_link *l, *next;

    tarn_peer_node_retire(node);
    for (int t = 0; t < node->client->ntransports; t++)
        for (int w = 0; w < 2; w++)
            LL_FOREACH_SAFE(node->sides[t][w].retired, l, next)
    tarn_link_free(l); /* and with it views that were not released */
    if (node->watch) {
        say_goodbye(node->watch); /* nothing is mapped any more */
        tarn_control_conn_drop(node->watch);
    }
    pthread_cond_destroy(&node->changed);
    pthread_mutex_destroy(&node->lock);
    free(node);
}
