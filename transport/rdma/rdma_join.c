/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queue pairs are joined by threads. On the way to RTR the kernel asks the network for the peer's address,
 * and does not come back before it knows: where nobody answers after 1.5 s and more. No operation is held up
 * by that:
 *
 *   begin --> waits --its road's thread--> under way --> over --tarn_join_over--> freed
 *               \                             \--------- abandoned: its parts are retired by that thread
 *                \------ abandoned
 *
 * A *road* is a rail and the address of a peer. It has a thread as long as queue pairs are to be joined by
 * it: the thread is started with the first, joins one after the other, and ends when none is left. So a peer
 * that does not answer holds up no other, and has one thread however many operations come and go. What one
 * hears of the network those behind it hear, too: asking once more would take as long.
 *
 * Whose memory is used: a join has all that it needs by value, since the link, the client's rails and the
 * node's answer may be gone before it is over. Its thread holds the rails (rdma_reap.c), which keeps the
 * device open. The joiner itself is freed by whoever leaves it last, the rails or a thread.
 *
 * Lock: joiner.lock guards all of this; it is not held while a queue pair is joined. Order: joiner.lock ->
 * reaper.lock.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "transport/rdma/rdma_rail.h"

struct tarn_join {
    struct tarn_join *next; /* of its road's */
    struct tarn_joiner *joiner;
    struct tarn_rail rail;
    struct ibv_qp *qp;
    struct tarn_endpoint own, peer;
    bool over, abandoned;
    struct tarn_qp_parts parts; /* abandoned: to be retired */
    int rc;                     /* over: what was said */
    char why[TARN_SENTENCE];
};

struct road {
    struct road *next;
    struct tarn_joiner *joiner;
    struct tarn_hold *hold;
    const struct ibv_context *context; /* each rail has its own */
    union ibv_gid gid;
    uint16_t lid;
    struct tarn_join *waiting;
};

struct tarn_joiner {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    uint64_t over;  /* joins that are */
    uint32_t users; /* the rails, and threads */
    struct road *roads;
};

struct tarn_joiner *tarn_joiner_new(void)
{
    struct tarn_joiner *k = calloc(1, sizeof *k);
    if (!k)
        return NULL;
    k->users = 1;
    pthread_mutex_init(&k->lock, NULL);
    tarn_cond_init(&k->ended);
    return k;
}

void tarn_joiner_leave(struct tarn_joiner *k)
{
    pthread_mutex_lock(&k->lock);
    bool last = --k->users == 0;
    pthread_mutex_unlock(&k->lock);
    if (!last)
        return;
    pthread_cond_destroy(&k->ended);
    pthread_mutex_destroy(&k->lock);
    free(k);
}

/* --- a road's thread ---------------------------------------------------------------------------- */

/* The last error is why. The lock is held. */
static void end_join(struct road *r, struct tarn_join *j, int rc)
{
    if (j->abandoned) {
        tarn_hold_retire(r->hold, &j->parts);
        free(j);
        return;
    }
    j->over = true;
    j->rc = rc;
    if (rc)
        snprintf(j->why, sizeof j->why, "%s", tarn_last_error());
    r->joiner->over++;
}

/* The next to be joined; NULL: none, and the road is no longer known. */
static struct tarn_join *next_join(struct road *r)
{
    struct tarn_joiner *k = r->joiner;
    struct tarn_join *j;
    pthread_mutex_lock(&k->lock);
    while ((j = r->waiting) != NULL) {
        LL_DELETE(r->waiting, j);
        if (!j->abandoned)
            break;
        end_join(r, j, 0);
    }
    if (!j)
        LL_DELETE(k->roads, r);
    pthread_mutex_unlock(&k->lock);
    return j;
}

static void joined(struct road *r, struct tarn_join *j, int rc)
{
    struct tarn_joiner *k = r->joiner;
    pthread_mutex_lock(&k->lock);
    end_join(r, j, rc);
    while (rc == TARN_E_NOT_REACHABLE && (j = r->waiting) != NULL) {
        LL_DELETE(r->waiting, j);
        end_join(r, j, rc);
    }
    pthread_cond_broadcast(&k->ended);
    pthread_mutex_unlock(&k->lock);
}

static void *join_all(void *arg)
{
    struct road *r = arg;
    struct tarn_hold *hold = r->hold;
    for (struct tarn_join *j; (j = next_join(r)) != NULL;)
        joined(r, j, tarn_qp_join(&j->rail, j->qp, &j->own, &j->peer));
    tarn_joiner_leave(r->joiner);
    free(r);
    tarn_hold_end(hold);
    return NULL;
}

static bool start(struct road *r)
{
    pthread_t thread;
    return tarn_thread_start(&thread, join_all, r) == 0;
}

/* --- links' part -------------------------------------------------------------------------------- */

static struct road *find_road(const struct tarn_joiner *k, const struct tarn_join *j)
{
    struct road *r = k->roads;
    while (r && (r->context != j->rail.context || r->lid != j->peer.lid ||
                 memcmp(&r->gid, &j->peer.gid, sizeof r->gid) != 0))
        r = r->next;
    return r;
}

/* Its thread waits for the lock. NULL: no memory, or no thread. The lock is held. */
static struct road *new_road(struct tarn_rails *rails, const struct tarn_join *j)
{
    struct road *r = calloc(1, sizeof *r);
    struct tarn_hold *hold = r ? tarn_rails_hold(rails) : NULL;
    if (!hold) {
        free(r);
        return NULL;
    }
    *r = (struct road){.joiner = rails->joiner,
                       .hold = hold,
                       .context = j->rail.context,
                       .gid = j->peer.gid,
                       .lid = j->peer.lid};
    rails->joiner->users++;
    LL_PREPEND(rails->joiner->roads, r);
    if (start(r))
        return r;
    LL_DELETE(rails->joiner->roads, r);
    rails->joiner->users--;
    tarn_hold_drop(hold);
    free(r);
    return NULL;
}

struct tarn_join *tarn_join_begin(struct tarn_rails *rails, const struct tarn_rail *rail, struct ibv_qp *qp,
                                  const struct tarn_endpoint *own, const struct tarn_endpoint *peer)
{
    struct tarn_joiner *k = rails->joiner;
    struct tarn_join *j = malloc(sizeof *j);
    if (!j)
        return NULL;
    *j = (struct tarn_join){.joiner = k, .rail = *rail, .qp = qp, .own = *own, .peer = *peer};
    pthread_mutex_lock(&k->lock);
    struct road *r = find_road(k, j);
    if (!r)
        r = new_road(rails, j);
    if (r)
        LL_APPEND(r->waiting, j);
    pthread_mutex_unlock(&k->lock);
    if (!r) { /* then here */
        j->rc = tarn_qp_join(rail, qp, own, peer);
        j->over = true;
        snprintf(j->why, sizeof j->why, "%s", j->rc ? tarn_last_error() : "");
    }
    return j;
}

bool tarn_join_over(struct tarn_join *j, int *rc_p)
{
    pthread_mutex_lock(&j->joiner->lock);
    bool over = j->over;
    pthread_mutex_unlock(&j->joiner->lock);
    if (!over)
        return false;
    *rc_p = j->rc ? tarn_fail(j->rc, "%s", j->why) : 0;
    free(j);
    return true;
}

void tarn_join_abandon(struct tarn_rails *rails, struct tarn_join *j, const struct tarn_qp_parts *parts)
{
    pthread_mutex_lock(&rails->joiner->lock);
    bool over = j->over;
    j->abandoned = !over;
    j->parts = *parts;
    pthread_mutex_unlock(&rails->joiner->lock);
    if (!over)
        return;
    tarn_rails_retire(rails, parts);
    free(j);
}

void tarn_joins_wait(struct tarn_rails *rails, uint64_t *seen_p, uint64_t deadline_ns)
{
    struct tarn_joiner *k = rails->joiner;
    pthread_mutex_lock(&k->lock);
    while (k->over == *seen_p && tarn_cond_wait(&k->ended, &k->lock, deadline_ns))
        ;
    *seen_p = k->over;
    pthread_mutex_unlock(&k->lock);
}
