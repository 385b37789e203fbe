/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcpx/tcpx_rest.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"

/* A first failure is forgiven. Rests grow from 2 s to a minute. */
enum { NODES = 32, FORGIVEN = 1, LONGEST = 5 };
#define FIRST_NS (2 * TARN_NS_PER_S)

struct resting {
    char node[64];
    unsigned failures; /* in a row */
    uint64_t until_ns;
    char why[256];
};

struct tarn_local {
    struct tarn_tcpx_mappings mappings;
    pthread_mutex_t lock; /* over what follows */
    uint32_t next;        /* to be forgotten */
    struct resting nodes[NODES];
};

int tarn_tcpx_local_open(const char *devices, struct tarn_local **local_p)
{
    struct tarn_local *l = calloc(1, sizeof(*l));
    (void)devices;
    if (!l)
        return tarn_fail(TARN_E_NO_MEMORY, "tcpx: out of memory");
    tarn_tcpx_mappings_open(&l->mappings);
    pthread_mutex_init(&l->lock, NULL);
    *local_p = l;
    return 0;
}

void tarn_tcpx_local_close(struct tarn_local *local)
{
    if (!local)
        return;
    tarn_tcpx_mappings_close(&local->mappings);
    pthread_mutex_destroy(&local->lock);
    free(local);
}

struct tarn_tcpx_mappings *tarn_tcpx_local_mappings(struct tarn_local *local)
{
    return local ? &local->mappings : NULL;
}

/* A GPU's memory, too: no message of the host's lies in it. */
int tarn_tcpx_local_map(struct tarn_local *local, void *addr, uint64_t bytes)
{
    return tarn_tcpx_mappings_add(&local->mappings, addr, bytes);
}

int tarn_tcpx_local_unmap(struct tarn_local *local, void *addr, uint64_t bytes)
{
    return tarn_tcpx_mappings_remove(&local->mappings, addr, bytes);
}

static struct resting *find(struct tarn_local *local, const char *node)
{
    for (int i = 0; i < NODES; i++)
        if (strcmp(local->nodes[i].node, node) == 0)
            return &local->nodes[i];
    return NULL;
}

int tarn_tcpx_rest_check(struct tarn_local *local, const char *node)
{
    int rc = 0;
    if (!local)
        return 0;
    pthread_mutex_lock(&local->lock);
    const struct resting *r = find(local, node);
    uint64_t now = tarn_now_ns();
    if (r && now < r->until_ns)
        rc = tarn_fail(TARN_E_UNAVAILABLE, "%s (failed %u times, to be tried again in %u s)", r->why,
                       r->failures, (unsigned)((r->until_ns - now) / TARN_NS_PER_S) + 1);
    pthread_mutex_unlock(&local->lock);
    return rc;
}

static void note_failure(struct tarn_local *local, const char *node, const char *why)
{
    struct resting *r = find(local, node);
    if (!r) {
        r = &local->nodes[local->next++ % NODES];
        *r = (struct resting){0};
        snprintf(r->node, sizeof(r->node), "%s", node);
    }
    snprintf(r->why, sizeof(r->why), "%s", why);
    unsigned behind = r->failures++;
    if (behind >= FORGIVEN)
        r->until_ns =
            tarn_now_ns() + (FIRST_NS << (behind - FORGIVEN < LONGEST ? behind - FORGIVEN : LONGEST));
}

void tarn_tcpx_rest_note(struct tarn_local *local, const char *node, bool moved, const char *why)
{
    if (!local)
        return;
    pthread_mutex_lock(&local->lock);
    struct resting *r = moved ? find(local, node) : NULL;
    if (r)
        *r = (struct resting){0};
    if (why)
        note_failure(local, node, why);
    pthread_mutex_unlock(&local->lock);
}
