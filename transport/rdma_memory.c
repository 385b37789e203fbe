/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/rdma_memory.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* --- regions ------------------------------------------------------------------------------------ */

int tarn_region_new(const struct tarn_rails *rails, void *addr, uint64_t bytes, int access,
                    struct tarn_region **r_p)
{
    struct tarn_region *r = calloc(1, sizeof *r);
    if (!r)
        return tarn_fail(TARN_E_NO_MEMORY, "rdma: out of memory");
    r->addr = addr;
    r->bytes = bytes;
    for (uint32_t i = 0; i < rails->n; i++) {
        r->mr[i] = ibv_reg_mr(rails->rail[i].pd, addr, bytes, access);
        if (r->mr[i])
            continue;
        int rc = tarn_fail(TARN_E_SYSTEM,
                           "rdma %s: cannot register %llu bytes: %m: raise the memlock limit (ulimit -l)",
                           rails->rail[i].name, (unsigned long long)bytes);
        tarn_region_free(r);
        return rc;
    }
    *r_p = r;
    return 0;
}

void tarn_region_free(struct tarn_region *r)
{
    for (int i = 0; r && i < TARN_RAILS_MAX; i++)
        if (r->mr[i])
            ibv_dereg_mr(r->mr[i]);
    free(r);
}

/* --- the client's registrations ----------------------------------------------------------------- */

int tarn_rdma_local_open(const char *devices, struct tarn_local **local_p)
{
    struct tarn_local *l = calloc(1, sizeof *l);
    if (!l)
        return tarn_fail(TARN_E_NO_MEMORY, "rdma: out of memory");
    int rc = tarn_rails_open(devices, &l->rails);
    if (rc) {
        free(l);
        return rc;
    }
    pthread_rwlock_init(&l->lock, NULL);
    *local_p = l;
    return 0;
}

void tarn_rdma_local_close(struct tarn_local *l)
{
    if (!l)
        return;
    for (uint32_t i = 0; i < l->n; i++)
        tarn_region_free(l->regions[i]);
    free(l->regions);
    tarn_rails_close(&l->rails);
    pthread_rwlock_destroy(&l->lock);
    free(l);
}

static bool covers(const struct tarn_region *r, const char *addr, uint64_t bytes)
{
    return addr >= r->addr && (uint64_t)(addr - r->addr) <= r->bytes &&
           bytes <= r->bytes - (uint64_t)(addr - r->addr);
}

/* Index of the first region that begins above addr. */
static uint32_t above(const struct tarn_local *l, const char *addr)
{
    uint32_t low = 0, high = l->n;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (l->regions[middle]->addr <= addr)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* One that covers the range; regions that overlap make it look further down. */
static struct tarn_region *find(const struct tarn_local *l, const char *addr, uint64_t bytes)
{
    for (uint32_t i = above(l, addr); i > 0; i--)
        if (covers(l->regions[i - 1], addr, bytes))
            return l->regions[i - 1];
    return NULL;
}

int tarn_rdma_map(struct tarn_local *l, void *addr, uint64_t bytes)
{
    struct tarn_region *r;
    int rc = tarn_region_new(&l->rails, addr, bytes, IBV_ACCESS_LOCAL_WRITE, &r);
    if (rc)
        return rc;
    r->users = 1;
    r->mapped = true;
    pthread_rwlock_wrlock(&l->lock);
    if (l->n == l->room) {
        uint32_t room = l->room ? 2 * l->room : 16;
        struct tarn_region **regions = realloc(l->regions, room * sizeof(struct tarn_region *));
        if (!regions) {
            pthread_rwlock_unlock(&l->lock);
            tarn_region_free(r);
            return tarn_fail(TARN_E_NO_MEMORY, "rdma: out of memory");
        }
        l->regions = regions;
        l->room = room;
    }
    uint32_t at = above(l, addr);
    memmove(l->regions + at + 1, l->regions + at, (l->n - at) * sizeof(struct tarn_region *));
    l->regions[at] = r;
    l->n++;
    pthread_rwlock_unlock(&l->lock);
    return 0;
}

int tarn_rdma_unmap(struct tarn_local *l, void *addr, uint64_t bytes)
{
    struct tarn_region *r = NULL;
    int rc = 0;
    pthread_rwlock_wrlock(&l->lock);
    for (uint32_t i = above(l, addr); i > 0 && l->regions[i - 1]->addr == addr && !r && !rc; i--) {
        struct tarn_region *one = l->regions[i - 1];
        if (one->bytes != bytes)
            continue;
        if (__atomic_load_n(&one->users, __ATOMIC_ACQUIRE) > 1) {
            rc = tarn_fail(TARN_E_BUSY, "rdma: %llu bytes at %p are being transferred: drain or cancel first",
                           (unsigned long long)bytes, addr);
            continue;
        }
        r = one;
        memmove(l->regions + i - 1, l->regions + i, (l->n - i) * sizeof(struct tarn_region *));
        l->n--;
    }
    pthread_rwlock_unlock(&l->lock);
    if (!r && !rc)
        rc = tarn_fail(TARN_E_INVALID, "rdma: %llu bytes at %p are not registered", (unsigned long long)bytes,
                       addr);
    tarn_region_free(r);
    return rc;
}

/* --- covering a work ---------------------------------------------------------------------------- */

static bool cover_grow(struct tarn_cover *c)
{
    if (c->n < c->room)
        return true;
    uint32_t room = c->room ? 2 * c->room : 4;
    struct tarn_region **regions = realloc(c->regions, room * sizeof(struct tarn_region *));
    if (!regions)
        return false;
    c->regions = regions;
    c->room = room;
    return true;
}

int tarn_cover_add(struct tarn_local *l, struct tarn_cover *c, void *addr, uint64_t bytes)
{
    for (uint32_t i = c->n; i > 0; i--)
        if (covers(c->regions[i - 1], addr, bytes))
            return 0;
    if (!cover_grow(c))
        return tarn_fail(TARN_E_NO_MEMORY, "rdma: out of memory");
    pthread_rwlock_rdlock(&l->lock);
    struct tarn_region *r = find(l, addr, bytes);
    if (r)
        __atomic_fetch_add(&r->users, 1, __ATOMIC_ACQ_REL);
    pthread_rwlock_unlock(&l->lock);
    int rc = r ? 0 : tarn_region_new(&l->rails, addr, bytes, IBV_ACCESS_LOCAL_WRITE, &r);
    if (!rc)
        c->regions[c->n++] = r;
    return rc;
}

int tarn_cover_borrow(struct tarn_cover *c, struct tarn_region *r)
{
    if (!cover_grow(c))
        return tarn_fail(TARN_E_NO_MEMORY, "rdma: out of memory");
    __atomic_fetch_add(&r->users, 1, __ATOMIC_ACQ_REL);
    c->regions[c->n++] = r;
    return 0;
}

bool tarn_rdma_mapped(struct tarn_local *l, const struct tarn_piece *pieces, uint32_t n)
{
    struct tarn_cursor c = {0};
    bool all = true;
    void *addr;
    pthread_rwlock_rdlock(&l->lock);
    for (uint64_t bytes; all && (bytes = tarn_cursor_next(&c, pieces, n, UINT64_MAX, &addr)) > 0;)
        all = find(l, addr, bytes) != NULL;
    pthread_rwlock_unlock(&l->lock);
    return all;
}

uint64_t tarn_cover_key(const struct tarn_cover *c, const void *addr, uint32_t rail, uint32_t *lkey_p)
{
    for (uint32_t i = c->n; i > 0; i--) {
        const struct tarn_region *r = c->regions[i - 1];
        if (!covers(r, addr, 1))
            continue;
        *lkey_p = r->mr[rail]->lkey;
        return r->bytes - (uint64_t)((const char *)addr - r->addr);
    }
    return 0;
}

void tarn_cover_end(struct tarn_local *l, struct tarn_cover *c)
{
    (void)l;
    for (uint32_t i = 0; i < c->n; i++) {
        struct tarn_region *r = c->regions[i];
        if (r->mapped)
            __atomic_fetch_sub(&r->users, 1, __ATOMIC_ACQ_REL);
        else
            tarn_region_free(r);
    }
    free(c->regions);
    *c = (struct tarn_cover){0};
}
