/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errands: DETACHes and ABORTs that their node did not answer. What they give back would otherwise stay writable, or
 * reserved, for as long as this client lives, so the keeper goes on until the node has answered
 * or its incarnation is over. Saying any of them twice does no harm. A node hears them in the order in which they
 * came up, and nothing of theirs overtakes them: it must not free a reservation before it has cut off, at DETACH,
 * who could still write under it.
 */
#include "client/errand.h"

#include <stdlib.h>
#include <utlist.h>

#include "client/alert.h"
#include "client/call.h"
#include "client/client.h"
#include "client/health.h"

#define STEPS 3 /* connect, HELLO, the errand itself */

struct tarn_errand {
    struct tarn_errand *next;
    struct tarn_remote *remote;
    struct tarn_words words;
};

static void errand_free(struct tarn_errand *e)
{
    atomic_fetch_sub(&e->remote->errands, 1);
    tarn_words_free(&e->words);
    free(e);
}

void tarn_monitor_errand(struct tarn_remote *r, struct tarn_words *a)
{
    struct tarn_errand *e = malloc(sizeof *e);

    if (!e) { /* the node finds displaced copies by itself, and reservations when the session ends */
        tarn_words_free(a);
        return;
    }
    *e = (struct tarn_errand){.remote = r, .words = *a};
    struct tarn_monitor *m = &r->client->monitor;
    atomic_fetch_add(&r->errands, 1);
    pthread_mutex_lock(&m->lock);
    LL_APPEND(m->errands, e);
    pthread_mutex_unlock(&m->lock);
    tarn_monitor_ask(r->client);
}

/* True when it is done with. Only asks nodes that are up: the keeper must not wait for its own word. */
static bool errand_run(struct tarn_errand *e)
{
    struct tarn_remote *r = e->remote;
    redisReply *reply;

    if (atomic_load(&r->superseded) || (atomic_load(&r->health) == TARN_GONE && !atomic_load(&r->listed)))
        return true;
    if (atomic_load(&r->health) != TARN_UP)
        return false;
    int rc = tarn_words_call(&e->words, r, tarn_now_ns() + STEPS * tarn_remote_patience(r), NULL, &reply);
    if (rc == 0)
        freeReplyObject(reply);
    /* An error, too, is the node's answer; but BUSY is HELLO's, the command itself was not even sent. */
    return rc != TARN_E_NODE_DOWN && rc != TARN_E_TIMEOUT && rc != TARN_E_BUSY;
}

/* One of this node has failed before in this round. */
static bool held_up(const struct tarn_errand *failed, const struct tarn_remote *r)
{
    for (; failed; failed = failed->next)
        if (failed->remote == r)
            return true;
    return false;
}

bool tarn_monitor_errands(struct tarn_monitor *m)
{
    struct tarn_errand *failed = NULL;
    bool more = false;

    pthread_mutex_lock(&m->lock);
    struct tarn_errand *all = m->errands;
    m->errands = NULL;
    pthread_mutex_unlock(&m->lock);
    while (all) {
        struct tarn_errand *e = all;
        all = e->next;
        e->next = NULL;
        if (!held_up(failed, e->remote) && errand_run(e)) {
            errand_free(e);
            continue;
        }
        more |= atomic_load(&e->remote->health) == TARN_UP; /* else it waits for the node */
        LL_APPEND(failed, e);
    }
    pthread_mutex_lock(&m->lock);
    LL_CONCAT(failed, m->errands);
    m->errands = failed;
    pthread_mutex_unlock(&m->lock);
    return more;
}

void tarn_monitor_errands_end(struct tarn_monitor *m)
{
    while (m->errands) {
        struct tarn_errand *e = m->errands;
        m->errands = e->next;
        errand_free(e);
    }
}
