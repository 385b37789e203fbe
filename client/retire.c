/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of what leads to a node: its links and connections are taken out of use, and closed once nobody is inside.
 * The node is not told: its incarnation, this client's session or the connection itself is over.
 */
#include "client/retire.h"

#include <stdlib.h>

#include "client/client.h"

void tarn_call_drop(struct tarn_call *call)
{
    if (call->resp)
        tarn_resp_free(call->resp);
    free(call);
}

void tarn_link_free(struct tarn_linked *l)
{
    l->ops->close(l->link);
    free(l);
}

/* Takes one side's shared link and idle links out of use. remote.lock is held. */
static void retire_side(struct tarn_side *s)
{
    struct tarn_linked *shared = atomic_exchange(&s->shared, NULL);

    if (atomic_load(&s->state) == TARN_SIDE_SHARED)
        atomic_store(&s->state, TARN_SIDE_UNKNOWN);
    if (shared) {
        shared->next = s->retired;
        s->retired = shared;
    }
    while (s->idle) {
        struct tarn_linked *l = s->idle;
        s->idle = l->next;
        tarn_link_free(l);
    }
    s->nidle = 0;
}

void tarn_remote_retire(struct tarn_remote *r)
{
    pthread_mutex_lock(&r->lock);
    for (int t = 0; t < r->client->ntransports; t++)
        for (int w = 0; w < 2; w++)
            retire_side(&r->sides[t][w]);
    struct tarn_call *calls = r->idle_calls;
    r->idle_calls = NULL;
    r->nidle_calls = 0;
    pthread_mutex_unlock(&r->lock);
    while (calls) {
        struct tarn_call *call = calls;
        calls = call->next;
        tarn_call_drop(call);
    }
}

static bool side_busy(struct tarn_side *s)
{
    for (int i = 0; i < TARN_STRIPES; i++)
        if (atomic_load(&s->busy[i].n) != 0)
            return true;
    return false;
}

/* remote.lock is held. */
static bool reap_side(struct tarn_side *s)
{
    struct tarn_linked **at = &s->retired;

    if (s->retired && side_busy(s))
        return false;
    while (*at) {
        struct tarn_linked *l = *at;
        if (atomic_load(&l->views) != 0) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        tarn_link_free(l);
    }
    return s->retired == NULL;
}

bool tarn_remote_reap(struct tarn_remote *r)
{
    bool clean = true;

    pthread_mutex_lock(&r->lock);
    for (int t = 0; t < r->client->ntransports; t++)
        for (int w = 0; w < 2; w++)
            clean &= reap_side(&r->sides[t][w]);
    pthread_mutex_unlock(&r->lock);
    return clean;
}

/* The node would otherwise keep the session, for views, until this process exits. */
static void say_goodbye(struct tarn_call *call)
{
    const char *argv[] = {"QUIT"};

    if (tarn_resp_append(call->resp, 1, argv, NULL) == 0)
        tarn_resp_flush(call->resp, tarn_now_ns());
}

void tarn_remote_free(struct tarn_remote *r)
{
    tarn_remote_retire(r);
    for (int t = 0; t < r->client->ntransports; t++)
        for (int w = 0; w < 2; w++)
            for (struct tarn_linked *l = r->sides[t][w].retired, *next; l; l = next) {
                next = l->next;
                tarn_link_free(l); /* views that were not released go with it */
            }
    if (r->watch) {
        say_goodbye(r->watch); /* nothing is mapped any more */
        tarn_call_drop(r->watch);
    }
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    free(r);
}
