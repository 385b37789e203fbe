/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queue pairs are joined by threads. On the way to RTR the kernel asks the network for the peer's address and
 * returns only when it knows; if nobody answers that takes 1.5 s or more. Operations do not wait for it:
 *
 *   begin --> waits --its road's thread--> under way --> over --tarn_join_over--> freed
 *               \                             \--------- abandoned: that thread retires its parts
 *                \------ abandoned
 *
 * A *road* is a rail and a peer's address. It has a thread while it has queue pairs to join. The thread
 * starts with the first one, joins them one by one, and ends when none is left. So a silent peer delays no
 * other peer, and occupies one thread regardless of the number of operations. A failure also applies to the
 * joins that wait behind it: trying again would take as long.
 *
 * Ownership: a join holds all its data by value, since the link, the client's rails and the node's answer may
 * be gone before it is done. Its thread holds the rails (rdma_reap.c), which keeps the device open. The last
 * user of the joiner, the rails or a thread, frees it.
 *
 * Lock: joiner.lock guards all of this. It is not held while a queue pair is joined. Order: joiner.lock ->
 * reaper.lock.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "transport/rdma/rdma_rail.h"

struct tarn_join {
    struct tarn_join *next; /* next of its road */
    struct tarn_joiner *joiner;
    struct tarn_rail rail;
    struct ibv_qp *qp;
    struct tarn_endpoint own, peer;
    bool over, abandoned;
    struct tarn_qp_parts parts; /* abandoned: to retire when done */
    struct tarn_reason result;  /* if over */
};

struct road {
    struct road *next;
    struct tarn_joiner *joiner;
    struct tarn_hold *hold;
    const struct ibv_context *context; /* the context differs from rail to rail */
    union ibv_gid gid;
    uint16_t lid;
    struct tarn_join *waiting;
};

struct tarn_joiner {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    uint64_t over;  /* number of joins that are over */
    uint32_t users; /* the rails and the threads */
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

/* The last error has the reason. The lock is held. */
static void end_join(struct road *r, struct tarn_join *j, int rc)
{
    if (j->abandoned) {
        tarn_hold_retire(r->hold, &j->parts);
        free(j);
        return;
    }
    j->over = true;
    tarn_reason_keep(&j->result, rc);
    r->joiner->over++;
}

/* The next join; NULL: none is left, and the road is removed. */
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

/* The reaper joins the thread once its hold has ended. */
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

/* The new thread waits for the lock. NULL: no memory, or no thread. The lock is held. */
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
    if (!r) { /* then join here */
        tarn_reason_keep(&j->result, tarn_qp_join(rail, qp, own, peer));
        j->over = true;
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
    *rc_p = tarn_reason_fail(&j->result);
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
