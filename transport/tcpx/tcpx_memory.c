/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcpx/tcpx_memory.h"

#include <stdlib.h>
#include <utlist.h>

#include "base/error.h"
#include "transport/tcpx/tcpx_comm_state.h"

#define WINDOW_BYTES (1ull << 30) /* sizes are int */

/* --- mappings ----------------------------------------------------------------------------------- */

void tarn_tcpx_mappings_open(struct tarn_tcpx_mappings *all)
{
    *all = (struct tarn_tcpx_mappings){0};
    pthread_rwlock_init(&all->lock, NULL);
}

void tarn_tcpx_mappings_close(struct tarn_tcpx_mappings *all)
{
    for (uint32_t i = 0; i < all->n; i++)
        free(all->at[i]);
    free(all->at);
    pthread_rwlock_destroy(&all->lock);
}

static bool covers(const uint8_t *from, uint64_t size, const uint8_t *addr, uint64_t bytes)
{
    return addr >= from && (uint64_t)(addr - from) <= size && bytes <= size - (uint64_t)(addr - from);
}

static bool insert(struct tarn_tcpx_mappings *all, struct tarn_tcpx_mapping *m)
{
    if (all->n == all->room) {
        uint32_t room = all->room ? 2 * all->room : 16;
        struct tarn_tcpx_mapping **at = realloc(all->at, room * sizeof(struct tarn_tcpx_mapping *));
        if (!at)
            return false;
        all->at = at;
        all->room = room;
    }
    m->id = ++all->last_id;
    all->at[all->n++] = m;
    return true;
}

int tarn_tcpx_mappings_add(struct tarn_tcpx_mappings *all, void *addr, uint64_t bytes)
{
    struct tarn_tcpx_mapping *m = calloc(1, sizeof(*m));
    bool inserted = false;
    if (m) {
        m->addr = addr;
        m->bytes = bytes;
        pthread_rwlock_wrlock(&all->lock);
        inserted = insert(all, m);
        pthread_rwlock_unlock(&all->lock);
    }
    if (inserted)
        return 0;
    free(m);
    return tarn_fail(TARN_E_NO_MEMORY, "tcpx: out of memory");
}

/* A mapping of exactly this range without users. *busy: there are such mappings, but all have users. */
static struct tarn_tcpx_mapping *take(struct tarn_tcpx_mappings *all, const void *addr, uint64_t bytes,
                                      bool *busy)
{
    *busy = false;
    for (uint32_t i = 0; i < all->n; i++) {
        struct tarn_tcpx_mapping *m = all->at[i];
        if (m->addr != addr || m->bytes != bytes)
            continue;
        if (m->users == 0) {
            all->at[i] = all->at[--all->n];
            all->gone++;
            return m;
        }
        *busy = true;
    }
    return NULL;
}

int tarn_tcpx_mappings_remove(struct tarn_tcpx_mappings *all, void *addr, uint64_t bytes)
{
    bool busy;
    pthread_rwlock_wrlock(&all->lock);
    struct tarn_tcpx_mapping *m = take(all, addr, bytes, &busy);
    pthread_rwlock_unlock(&all->lock);
    free(m);
    if (m)
        return 0;
    if (busy)
        return tarn_fail(TARN_E_BUSY, "tcpx: %llu bytes at %p are being transferred: drain or cancel first",
                         (unsigned long long)bytes, addr);
    return tarn_fail(TARN_E_INVALID, "tcpx: %llu bytes at %p are not registered", (unsigned long long)bytes,
                     addr);
}

struct tarn_tcpx_mapping *tarn_tcpx_mapping_use(struct tarn_tcpx_mappings *all, const void *addr,
                                                uint64_t bytes)
{
    struct tarn_tcpx_mapping *m = NULL;
    pthread_rwlock_rdlock(&all->lock);
    for (uint32_t i = 0; i < all->n && !m; i++)
        if (covers(all->at[i]->addr, all->at[i]->bytes, addr, bytes))
            m = all->at[i];
    if (m)
        m->users++;
    pthread_rwlock_unlock(&all->lock);
    return m;
}

void tarn_tcpx_mapping_unuse(struct tarn_tcpx_mapping *m)
{
    if (m)
        m->users--;
}

bool tarn_tcpx_mapping_is_there(struct tarn_tcpx_mappings *all, uint64_t id)
{
    bool there = false;
    pthread_rwlock_rdlock(&all->lock);
    for (uint32_t i = 0; i < all->n && !there; i++)
        there = all->at[i]->id == id;
    pthread_rwlock_unlock(&all->lock);
    return there;
}

/* --- ranges ------------------------------------------------------------------------------------- */

/* Windows begin at multiples of WINDOW_BYTES and are one chunk longer, so no message spans two. */
struct tarn_tcpx_range {
    struct tarn_tcpx_range *next;
    uint64_t mapping; /* its id; 0: this end's own memory */
    uint8_t *base;
    uint64_t bytes;
    int type;
    bool refused; /* the plugin refused it; not tried again */
    uint64_t nwindows;
    void *windows[];
};

static struct tarn_tcpx_range *range_new(void *base, uint64_t bytes, int type, uint64_t mapping)
{
    uint64_t n = (bytes + WINDOW_BYTES - 1) / WINDOW_BYTES;
    struct tarn_tcpx_range *r = calloc(1, sizeof(*r) + n * sizeof(void *));
    if (r) {
        r->mapping = mapping;
        r->base = base;
        r->bytes = bytes;
        r->type = type;
        r->nwindows = n;
    }
    return r;
}

static void range_free(struct tarn_tcpx_comm *c, struct tarn_tcpx_range *r)
{
    for (uint64_t i = 0; r && i < r->nwindows; i++)
        if (r->windows[i])
            tarn_tcpx_dereg(c->plugin, c->comm, r->windows[i]);
    free(r);
}

static int window_of(struct tarn_tcpx_comm *c, struct tarn_tcpx_range *r, const void *addr, void **mr_p)
{
    uint64_t i = (uint64_t)((const uint8_t *)addr - r->base) / WINDOW_BYTES, from = i * WINDOW_BYTES;
    uint64_t left = r->bytes - from, most = WINDOW_BYTES + c->gear_chunk;
    if (!r->windows[i]) {
        int before, rc = tarn_tcpx_lend(c->gpu, &before);
        if (!rc)
            rc = tarn_tcpx_reg(c->plugin, c->comm, r->base + from, left < most ? left : most, r->type,
                               &r->windows[i]);
        tarn_tcpx_take_back(c->gpu, before);
        if (rc)
            return rc;
    }
    *mr_p = r->windows[i];
    return 0;
}

int tarn_tcpx_ranges_own(struct tarn_tcpx_comm *c, void *base, uint64_t bytes, bool gpu)
{
    c->own = range_new(base, bytes, gpu ? TARN_TCPX_CUDA : TARN_TCPX_HOST, 0);
    return c->own ? 0 : tarn_fail(TARN_E_NO_MEMORY, "tcpx: out of memory");
}

int tarn_tcpx_ranges_find_own(struct tarn_tcpx_comm *c, const void *addr, void **mr_p)
{
    return window_of(c, c->own, addr, mr_p);
}

void tarn_tcpx_ranges_drop_gone(struct tarn_tcpx_comm *c)
{
    struct tarn_tcpx_mappings *all = c->gear->mappings;
    uint64_t gone = all ? all->gone : 0;
    if (gone == c->gone)
        return;
    c->gone = gone;
    struct tarn_tcpx_range *r, *next;
    LL_FOREACH_SAFE(c->lent, r, next)
    {
        if (tarn_tcpx_mapping_is_there(all, r->mapping))
            continue;
        LL_DELETE(c->lent, r);
        range_free(c, r);
    }
}

static struct tarn_tcpx_range *range_of(struct tarn_tcpx_comm *c, const struct tarn_tcpx_mapping *m)
{
    struct tarn_tcpx_range *r;
    LL_SEARCH_SCALAR(c->lent, r, mapping, m->id);
    if (!r && (r = range_new(m->addr, m->bytes, TARN_TCPX_HOST, m->id)))
        LL_PREPEND(c->lent, r);
    return r;
}

static bool find(struct tarn_tcpx_comm *c, struct tarn_tcpx_range *r, const void *addr, void **mr_p)
{
    if (r && !r->refused)
        r->refused = window_of(c, r, addr, mr_p) != 0;
    return r && !r->refused;
}

bool tarn_tcpx_ranges_find(struct tarn_tcpx_comm *c, const void *addr, uint32_t bytes,
                           struct tarn_tcpx_place *p)
{
    struct tarn_tcpx_mappings *all = c->gear->mappings;
    *p = (struct tarn_tcpx_place){0};
    if (c->own && covers(c->own->base, c->own->bytes, addr, bytes))
        return find(c, c->own, addr, &p->mr);
    if (!all)
        return false;
    tarn_tcpx_ranges_drop_gone(c);
    p->mapping = tarn_tcpx_mapping_use(all, addr, bytes);
    if (!p->mapping)
        return false;
    if (find(c, range_of(c, p->mapping), addr, &p->mr))
        return true;
    tarn_tcpx_mapping_unuse(p->mapping);
    return false;
}

void tarn_tcpx_ranges_close(struct tarn_tcpx_comm *c)
{
    range_free(c, c->own);
    c->own = NULL;
    while (c->lent) {
        struct tarn_tcpx_range *r = c->lent;
        c->lent = r->next;
        range_free(c, r);
    }
}
