/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory, node half: hands out the files of the pools. It has no thread and touches no bytes. */
#include "transport/shm/shm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "transport/node_half.h"
#include "transport/node_share.h"

struct tarn_node_half {
    const struct tarn_pool_memory *pools;
    uint32_t npools;
    struct tarn_share_files files[];
};

static void shm_stop(struct tarn_node_half *s)
{
    tarn_share_close(s->files, s->npools);
    free(s);
}

static bool is_served(const struct tarn_pool_memory *p)
{
    return p->memfd >= 0;
}

static int shm_serve(const struct tarn_serve *serve, struct tarn_node_half **s_p)
{
    struct tarn_node_half *s = malloc(sizeof(*s) + serve->npools * sizeof(s->files[0]));
    if (!s)
        return tarn_fail(TARN_E_NO_MEMORY, "shm: out of memory for %u pools", serve->npools);
    s->pools = serve->pools;
    s->npools = serve->npools;
    int rc = tarn_share_open("shm", s->pools, s->npools, is_served, s->files);
    if (rc) {
        free(s);
        return rc;
    }
    *s_p = s;
    return 0;
}

static bool shm_serves(const struct tarn_node_half *s, uint32_t pool)
{
    return is_served(&s->pools[pool]);
}

static void shm_describe(const struct tarn_node_half *s, uint32_t pool, char *text, size_t text_bytes)
{
    (void)s, (void)pool;
    snprintf(text, text_bytes, "%s", "");
}

static bool attach_pool(const struct tarn_node_half *s, uint32_t i, struct tarn_attach *a, size_t *length)
{
    const struct tarn_pool_memory *p = &s->pools[i];
    int n = snprintf(a->text + *length, sizeof(a->text) - *length, " %u %llu %u", i,
                     (unsigned long long)p->bytes, p->nslots);
    if (n < 0 || (size_t)n >= sizeof(a->text) - *length)
        return false;
    *length += (size_t)n;
    a->fds[a->nfds++] = a->write ? p->memfd : s->files[i].arena;
    a->fds[a->nfds++] = s->files[i].gen;
    a->fds[a->nfds++] = p->touch_fd;
    return true;
}

static int shm_attach(struct tarn_node_half *s, struct tarn_attach *a)
{
    if (!a->local)
        return tarn_fail(TARN_E_NOT_REACHABLE,
                         "shm: descriptors cannot pass over TCP: attach over the node's Unix socket");
    uint32_t npools = 0, fds_max = sizeof(a->fds) / sizeof(a->fds[0]);
    for (uint32_t i = 0; i < s->npools; i++)
        npools += s->pools[i].memfd >= 0;
    size_t length = (size_t)snprintf(a->text, sizeof(a->text), "v1 %u", npools);
    bool fits = npools * TARN_SHM_FDS + 1 <= fds_max;
    a->nfds = 0;
    memset(a->close_fds, 0, sizeof(a->close_fds));
    for (uint32_t i = 0; fits && i < s->npools; i++)
        if (s->pools[i].memfd >= 0)
            fits = attach_pool(s, i, a, &length);
    if (!fits)
        return tarn_fail(TARN_E_UNSUPPORTED, "shm: %u pools do not fit one ATTACH: use at most %u", npools,
                         (fds_max - 1) / TARN_SHM_FDS);
    if (a->hazard_fd >= 0)
        a->fds[a->nfds++] = a->hazard_fd;
    return 0;
}

/* Nothing to take back: a mapping lasts as long as its process, which the server waits for. */
static void shm_detach(struct tarn_node_half *s, uint64_t session)
{
    (void)s, (void)session;
}

const struct tarn_node_half_ops tarn_shm_node_ops = {
    .name = "shm",
    .caps = TARN_SHM_CAPS,
    .probe = tarn_shm_probe,
    .serve = shm_serve,
    .serves = shm_serves,
    .describe = shm_describe,
    .attach = shm_attach,
    .detach_link = tarn_no_detach_link,
    .detach = shm_detach,
    .stop = shm_stop,
};
