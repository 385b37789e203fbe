/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcpx/tcpx_rest.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/error.h"

/* A first failure causes no rest unless it took seconds. Rests grow from 2 s to a minute. */
enum { NODES = 32, FORGIVEN = 1, LONGEST = 5 };
#define FIRST_NS (2 * TARN_NS_PER_S)

struct resting {
    char node[64];
    unsigned failures; /* consecutive */
    uint64_t until_ns;
    char why[TARN_SENTENCE];
};

struct tarn_tcpx_local {
    struct tarn_tcpx_mappings mappings;
    pthread_rwlock_t holding; /* guards the list; holders' own locks are taken after it */
    struct tarn_tcpx_holder *holders;
    pthread_mutex_t lock; /* guards the fields below */
    uint32_t next;        /* next entry to overwrite */
    struct resting nodes[NODES];
};

int tarn_tcpx_local_open(const char *devices, struct tarn_local **local_p)
{
    struct tarn_tcpx_local *l = calloc(1, sizeof(*l));
    (void)devices;
    if (!l)
        return tarn_fail(TARN_E_NO_MEMORY, "tcpx: out of memory");
    tarn_tcpx_mappings_open(&l->mappings);
    pthread_rwlock_init(&l->holding, NULL);
    pthread_mutex_init(&l->lock, NULL);
    *local_p = (struct tarn_local *)l;
    return 0;
}

void tarn_tcpx_local_close(struct tarn_local *l)
{
    struct tarn_tcpx_local *local = tarn_tcpx_local(l);
    if (!local)
        return;
    tarn_tcpx_mappings_close(&local->mappings);
    pthread_rwlock_destroy(&local->holding);
    pthread_mutex_destroy(&local->lock);
    free(local);
}

struct tarn_tcpx_mappings *tarn_tcpx_local_mappings(struct tarn_tcpx_local *local)
{
    return &local->mappings;
}

/* Also registers GPU memory: no host message lies in it. */
int tarn_tcpx_local_map(struct tarn_local *local, void *addr, uint64_t bytes)
{
    return tarn_tcpx_mappings_add(&tarn_tcpx_local(local)->mappings, addr, bytes);
}

int tarn_tcpx_local_unmap(struct tarn_local *l, void *addr, uint64_t bytes)
{
    struct tarn_tcpx_local *local = tarn_tcpx_local(l);
    struct tarn_tcpx_holder *h;
    int rc = tarn_tcpx_mappings_remove(&local->mappings, addr, bytes);
    if (rc)
        return rc;
    pthread_rwlock_rdlock(&local->holding);
    DL_FOREACH (local->holders, h) {
        pthread_mutex_lock(&h->lock);
        h->drop(h);
        pthread_mutex_unlock(&h->lock);
    }
    pthread_rwlock_unlock(&local->holding);
    return 0;
}

void tarn_tcpx_holder_add(struct tarn_tcpx_local *local, struct tarn_tcpx_holder *h,
                          void (*drop)(struct tarn_tcpx_holder *h))
{
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&h->lock, &attr);
    pthread_mutexattr_destroy(&attr);
    h->drop = drop;
    h->local = local;
    pthread_rwlock_wrlock(&local->holding);
    DL_APPEND(local->holders, h);
    pthread_rwlock_unlock(&local->holding);
}

void tarn_tcpx_holder_remove(struct tarn_tcpx_holder *h)
{
    pthread_rwlock_wrlock(&h->local->holding);
    DL_DELETE(h->local->holders, h);
    pthread_rwlock_unlock(&h->local->holding);
    pthread_mutex_destroy(&h->lock);
}

static struct resting *find(struct tarn_tcpx_local *local, const char *node)
{
    for (int i = 0; i < NODES; i++)
        if (strcmp(local->nodes[i].node, node) == 0)
            return &local->nodes[i];
    return NULL;
}

int tarn_tcpx_rest_check(struct tarn_tcpx_local *local, const char *node)
{
    int rc = 0;
    pthread_mutex_lock(&local->lock);
    const struct resting *r = find(local, node);
    uint64_t now = tarn_now_ns();
    if (r && now < r->until_ns)
        rc = tarn_fail(TARN_E_UNAVAILABLE, "%s (failed %u times, to be tried again in %u s)", r->why,
                       r->failures, (unsigned)((r->until_ns - now) / TARN_NS_PER_S) + 1);
    pthread_mutex_unlock(&local->lock);
    return rc;
}

bool tarn_tcpx_rest_doubts(struct tarn_tcpx_local *local, const char *node)
{
    pthread_mutex_lock(&local->lock);
    const struct resting *r = find(local, node);
    bool doubts = r && r->until_ns;
    pthread_mutex_unlock(&local->lock);
    return doubts;
}

static void note_failure(struct tarn_tcpx_local *local, const char *node, bool late, const char *why)
{
    struct resting *r = find(local, node);
    if (!r) {
        r = &local->nodes[local->next++ % NODES];
        *r = (struct resting){0};
        snprintf(r->node, sizeof(r->node), "%s", node);
    }
    snprintf(r->why, sizeof(r->why), "%s", why);
    unsigned behind = r->failures++;
    if (!late && behind < FORGIVEN)
        return;
    unsigned doubled = behind > FORGIVEN ? behind - FORGIVEN : 0;
    r->until_ns = tarn_now_ns() + (FIRST_NS << (doubled < LONGEST ? doubled : LONGEST));
}

void tarn_tcpx_rest_note(struct tarn_tcpx_local *local, const char *node, bool moved, bool late,
                         const char *why)
{
    pthread_mutex_lock(&local->lock);
    struct resting *r = moved ? find(local, node) : NULL;
    if (r)
        *r = (struct resting){0};
    if (why)
        note_failure(local, node, late, why);
    pthread_mutex_unlock(&local->lock);
}
