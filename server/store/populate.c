/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/populate.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/mman.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/map.h"
#include "base/text.h"
#include "base/thread.h"

#define AT "pool"
#define STEP_BYTES (512 * TARN_HUGE_PAGE)
#define FAILURES_MAX 16

struct tarn_populate {
    const struct tarn_pool_memory *pools;
    uint32_t npools;
    const struct tarn_logger *log;
    pthread_t thread;
    atomic_bool stopping;
    _Atomic uint64_t bytes[TARN_POOLS_MAX];
};

/* A pool under way. */
struct progress {
    uint64_t done, huge; /* huge: of requests that gave all; some pages of others are huge, too */
    int failures;        /* of asking for huge pages, in a row */
};

/* Faults in the first `each` bytes of every 2 MiB. Returns 0 or an errno, ECANCELED at the stop. Calls are
 * short, because each holds the lock of the process's memory map. */
static int touch(struct tarn_populate *p, uint8_t *at, uint64_t bytes, uint64_t each)
{
    for (uint64_t done = 0; done < bytes; done += TARN_HUGE_PAGE) {
        uint64_t left = bytes - done;
        if (atomic_load(&p->stopping))
            return ECANCELED;
        if (madvise(at + done, each < left ? each : left, MADV_POPULATE_WRITE))
            return errno;
    }
    return 0;
}

/*
 * Asks for huge pages once for the whole step: the kernel holds that lock in each call until every CPU has
 * run a kernel thread, on a busy host for half a second. The kernel needs a small page to begin with, and
 * leaves pinned pages as they are; RDMA pins them. Where there is no huge page there are small ones.
 */
static int populate_step(struct tarn_populate *p, uint8_t *at, uint64_t bytes, struct progress *g)
{
    uint64_t whole = bytes - bytes % TARN_HUGE_PAGE;
    int err = touch(p, at, bytes, 1);
    if (!err && whole && g->failures < FAILURES_MAX) {
        bool huge = !madvise(at, whole, MADV_COLLAPSE);
        g->huge += huge ? whole : 0;
        g->failures = huge ? 0 : g->failures + 1;
    }
    return err ? err : touch(p, at, bytes, TARN_HUGE_PAGE);
}

/* False when it was stopped. */
static bool populate_pool(struct tarn_populate *p, uint32_t i)
{
    const struct tarn_pool_memory *m = &p->pools[i];
    struct progress g = {0};
    int err = 0;
    if (m->kind == TARN_POOL_GPU) { /* is there */
        atomic_store(&p->bytes[i], m->bytes);
        return true;
    }
    while (!err && g.done < m->bytes) {
        uint64_t left = m->bytes - g.done, n = left < STEP_BYTES ? left : STEP_BYTES;
        err = populate_step(p, (uint8_t *)m->base + g.done, n, &g);
        g.done += err ? 0 : n;
        atomic_store(&p->bytes[i], g.done);
    }
    if (err == ECANCELED)
        return false;
    if (err)
        tarn_log(p->log, TARN_LOG_WARN, AT,
                 "msg=\"memory comes with the first access only\" pool=%s bytes=%" PRIu64 " cause=\"%s\"",
                 m->name, m->bytes - g.done, strerror(err));
    else
        tarn_log(p->log, TARN_LOG_INFO, AT, "msg=\"memory is there\" pool=%s bytes=%" PRIu64 " huge=%" PRIu64,
                 m->name, g.done, g.huge);
    return true;
}

/* Keeps the process's priority. It holds locks of pages, and clients' first writes wait for them: at a low
 * priority a busy host would let it sleep with them for seconds. */
static void *populate_thread(void *arg)
{
    struct tarn_populate *p = arg;
    for (uint32_t i = 0; i < p->npools && populate_pool(p, i); i++)
        ;
    return NULL;
}

int tarn_populate_start(const struct tarn_pool_memory *pools, uint32_t npools, const struct tarn_logger *log,
                        struct tarn_populate **p_p)
{
    struct tarn_populate *p = calloc(1, sizeof(*p));
    if (!p)
        return tarn_fail(TARN_E_NO_MEMORY, "pools: out of memory");
    p->pools = pools;
    p->npools = npools;
    p->log = log;
    int err = tarn_thread_start(&p->thread, populate_thread, p);
    if (err) {
        free(p);
        return tarn_fail(TARN_E_SYSTEM, "pools: no thread to bring their memory in: %s: allow more threads",
                         strerror(err));
    }
    *p_p = p;
    return 0;
}

void tarn_populate_stop(struct tarn_populate *p)
{
    if (!p)
        return;
    atomic_store(&p->stopping, true);
    pthread_join(p->thread, NULL);
    free(p);
}

uint64_t tarn_populate_bytes(const struct tarn_populate *p, uint32_t pool)
{
    return atomic_load(&p->bytes[pool]);
}
