/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/rdma/rdma_memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <tarn/tarn.h>

#include "base/clock.h"
#include "base/error.h"

#define REFUSED_NS (2 * TARN_NS_PER_S) /* how long refused GPU memory is not tried again */

/* --- registering with one rail ------------------------------------------------------------------ */

static int refused(const struct tarn_rail *rail, const struct tarn_memory *m, int access, int error)
{
    unsigned long long bytes = m->bytes;
    if (error == EFAULT)
        return tarn_fail(TARN_E_INVALID,
                         "rdma %s: cannot register %llu bytes at %p: not all of it is mapped%s", rail->name,
                         bytes, m->addr, access & IBV_ACCESS_LOCAL_WRITE ? " and writable" : "");
    if (error == ENOMEM || error == EAGAIN || error == EPERM)
        return tarn_fail(TARN_E_SYSTEM,
                         "rdma %s: cannot register %llu bytes: %s: raise the memlock limit (ulimit -l)",
                         rail->name, bytes, strerror(error));
    return tarn_fail(TARN_E_SYSTEM, "rdma %s: cannot register %llu bytes at %p: %s", rail->name, bytes,
                     m->addr, strerror(error));
}

static int register_host(const struct tarn_rail *rail, const struct tarn_memory *m, int access,
                         struct ibv_mr **mr_p)
{
    *mr_p = ibv_reg_mr(rail->pd, m->addr, m->bytes, access);
    return *mr_p ? 0 : refused(rail, m, access, errno);
}

/* Registers by dma-buf. Without it, registers the address as if it were host memory, which works with
 * nvidia-peermem. */
static int register_cuda(const struct tarn_rail *rail, const struct tarn_memory *m, int access,
                         struct ibv_mr **mr_p)
{
    const char *why = m->why.text;
    if (m->dmabuf >= 0) {
        *mr_p =
            ibv_reg_dmabuf_mr(rail->pd, m->dmabuf_offset, m->bytes, (uintptr_t)m->addr, m->dmabuf, access);
        if (*mr_p)
            return 0;
        why = strerror(errno);
    }
    char reason[TARN_SENTENCE];
    snprintf(reason, sizeof reason, "%s", why); /* strerror() may reuse its buffer */
    *mr_p = ibv_reg_mr(rail->pd, m->addr, m->bytes, access);
    if (*mr_p)
        return 0;
    return tarn_fail(TARN_E_UNSUPPORTED,
                     "rdma %s: cannot register %llu bytes of GPU memory: dma-buf: %s; peermem: %s: load "
                     "nvidia-peermem, or use Linux 5.12 with the NVIDIA driver's open kernel modules",
                     rail->name, (unsigned long long)m->bytes, reason, strerror(errno));
}

/* --- regions ------------------------------------------------------------------------------------ */

static struct tarn_region *blank(void *addr, uint64_t bytes, int access)
{
    struct tarn_region *r = calloc(1, sizeof *r);
    if (r)
        *r = (struct tarn_region){
            .addr = addr, .bytes = bytes, .users = 1, .writable = access & IBV_ACCESS_LOCAL_WRITE};
    return r;
}

static int region_of(const struct tarn_rails *rails, const struct tarn_memory *m, int access,
                     struct tarn_region **r_p)
{
    struct tarn_region *r = blank(m->addr, m->bytes, access);
    int rc = r ? 0 : tarn_fail(TARN_E_NO_MEMORY, "rdma: out of memory");
    for (uint32_t i = 0; !rc && i < rails->n; i++)
        rc = m->kind == TARN_MEMORY_CUDA ? register_cuda(&rails->rail[i], m, access, &r->mr[i])
                                         : register_host(&rails->rail[i], m, access, &r->mr[i]);
    if (rc)
        tarn_region_free(r);
    else
        *r_p = r;
    return rc;
}

/* A GPU's memory is exported if possible. Regions made from the export do not need it afterwards. */
static struct tarn_memory memory_of(bool gpu, void *addr, uint64_t bytes)
{
    struct tarn_memory m = {.addr = addr, .bytes = bytes, .dmabuf = -1};
    m.kind = gpu ? TARN_MEMORY_CUDA : TARN_MEMORY_HOST;
    if (!gpu)
        return m;
    m.dmabuf_offset = (uintptr_t)addr % (uintptr_t)sysconf(_SC_PAGESIZE);
    int rc = tarn_cuda_dmabuf(addr, bytes, &m.dmabuf);
    if (rc) {
        m.dmabuf = -1;
        tarn_reason_keep(&m.why, rc);
    }
    return m;
}

static void memory_end(const struct tarn_memory *m)
{
    if (m->dmabuf >= 0)
        close(m->dmabuf);
}

int tarn_region_new(const struct tarn_rails *rails, bool gpu, void *addr, uint64_t bytes, int access,
                    struct tarn_region **r_p)
{
    struct tarn_memory m = memory_of(gpu, addr, bytes);
    int rc = region_of(rails, &m, access, r_p);
    memory_end(&m);
    return rc;
}

int tarn_region_free(struct tarn_region *r)
{
    int error = 0;
    if (!r || __atomic_sub_fetch(&r->users, 1, __ATOMIC_ACQ_REL) > 0)
        return 0;
    for (int i = 0; i < TARN_RAILS_MAX; i++)
        if (r->mr[i] && !error)
            error = ibv_dereg_mr(r->mr[i]);
    if (r->copy)
        munmap(r->copy, r->copy_bytes);
    free(r);
    return error ? tarn_fail(TARN_E_SYSTEM, "rdma: a registration could not be ended: %s", strerror(error))
                 : 0;
}

static struct tarn_region *share(struct tarn_region *r)
{
    __atomic_fetch_add(&r->users, 1, __ATOMIC_ACQ_REL);
    return r;
}

/* Copies memory that devices cannot read. The copy is accessed under the addresses of the original. */
static int copied_region(const struct tarn_rails *rails, void *addr, uint64_t bytes, struct tarn_region **r_p)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), offset = (uintptr_t)addr % page;
    struct tarn_region *r = blank(addr, bytes, 0);
    void *copy = r ? mmap(NULL, offset + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                   : MAP_FAILED;
    if (copy == MAP_FAILED) {
        free(r);
        return tarn_fail(
            TARN_E_NO_MEMORY,
            "rdma: no memory for a copy of %llu bytes, which cannot be registered where they are",
            (unsigned long long)bytes);
    }
    r->copy = copy;
    r->copy_bytes = offset + bytes;
    madvise(copy, r->copy_bytes, MADV_DONTFORK);
    memcpy((char *)copy + offset, addr, bytes);
    for (uint32_t i = 0; i < rails->n; i++) {
        r->mr[i] = ibv_reg_mr_iova(rails->rail[i].pd, (char *)copy + offset, bytes, (uintptr_t)addr, 0);
        if (r->mr[i])
            continue;
        struct tarn_memory m = {.addr = addr, .bytes = bytes};
        int rc = refused(&rails->rail[i], &m, 0, errno);
        tarn_region_free(r);
        return rc;
    }
    *r_p = r;
    return 0;
}

/* The largest region size that every rail accepts. */
static uint64_t region_max(const struct tarn_rails *rails)
{
    uint64_t most = UINT64_MAX;
    for (uint32_t i = 0; i < rails->n; i++)
        if (rails->rail[i].max_region && rails->rail[i].max_region < most)
            most = rails->rail[i].max_region;
    return most;
}

/* --- the caller's registrations ----------------------------------------------------------------- */

int tarn_rdma_local_open(const char *devices, struct tarn_local **local_p)
{
    struct tarn_rdma_local *l = calloc(1, sizeof *l);
    if (!l)
        return tarn_fail(TARN_E_NO_MEMORY, "rdma: out of memory");
    /* On kernels that copy at fork(), this would only remove registered memory from children. It fails if
     * the application has used verbs before; then the application decides. */
    if (ibv_is_fork_initialized() == IBV_FORK_DISABLED)
        ibv_fork_init();
    int rc = tarn_rails_open(devices, &l->rails);
    if (rc) {
        free(l);
        return rc;
    }
    pthread_rwlock_init(&l->lock, NULL);
    *local_p = (struct tarn_local *)l;
    return 0;
}

static void mapping_free(struct tarn_rdma_mapping *m)
{
    tarn_region_free(m->region);
    free(m);
}

void tarn_rdma_local_close(struct tarn_local *local)
{
    struct tarn_rdma_local *l = tarn_rdma_local(local);
    if (!l)
        return;
    for (uint32_t i = 0; i < l->n; i++)
        mapping_free(l->mappings[i]);
    free(l->mappings);
    tarn_rails_close(&l->rails);
    pthread_rwlock_destroy(&l->lock);
    free(l);
}

static bool covers(const char *from, uint64_t size, const char *addr, uint64_t bytes)
{
    return addr >= from && (uint64_t)(addr - from) <= size && bytes <= size - (uint64_t)(addr - from);
}

/* Index of the first mapping that begins above addr. */
static uint32_t above(const struct tarn_rdma_local *l, const char *addr)
{
    uint32_t low = 0, high = l->n;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (l->mappings[middle]->addr <= addr)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* A mapping that covers the range, writable by devices if `write`. Mappings may overlap, so the search
 * goes down as long as any `reach` extends to the range. */
static struct tarn_rdma_mapping *find(const struct tarn_rdma_local *l, const char *addr, uint64_t bytes,
                                      bool write)
{
    for (uint32_t i = above(l, addr); i > 0; i--) {
        struct tarn_rdma_mapping *m = l->mappings[i - 1];
        if (m->reach < addr + bytes)
            break;
        if (covers(m->addr, m->bytes, addr, bytes) && (m->region->writable || !write))
            return m;
    }
    return NULL;
}

static void set_reach(struct tarn_rdma_local *l, uint32_t from)
{
    for (uint32_t i = from; i < l->n; i++) {
        struct tarn_rdma_mapping *m = l->mappings[i];
        m->reach = m->addr + m->bytes;
        if (i > 0 && l->mappings[i - 1]->reach > m->reach)
            m->reach = l->mappings[i - 1]->reach;
    }
}

static bool insert(struct tarn_rdma_local *l, struct tarn_rdma_mapping *m)
{
    if (l->n == l->room) {
        uint32_t room = l->room ? 2 * l->room : 16;
        struct tarn_rdma_mapping **mappings = realloc(l->mappings, room * sizeof(struct tarn_rdma_mapping *));
        if (!mappings)
            return false;
        l->mappings = mappings;
        l->room = room;
    }
    uint32_t at = above(l, m->addr);
    memmove(l->mappings + at + 1, l->mappings + at, (l->n - at) * sizeof(struct tarn_rdma_mapping *));
    l->mappings[at] = m;
    l->n++;
    set_reach(l, at);
    return true;
}

/* The region of a mapping that covers this range, or a new one. A new one is read-only if the memory is. */
static int region_for(struct tarn_rdma_local *l, const struct tarn_memory *m, struct tarn_region **r_p)
{
    pthread_rwlock_rdlock(&l->lock);
    struct tarn_rdma_mapping *outer = find(l, m->addr, m->bytes, true);
    *r_p = outer ? share(outer->region) : NULL;
    pthread_rwlock_unlock(&l->lock);
    if (*r_p)
        return 0;
    if (m->bytes > region_max(&l->rails))
        return tarn_fail(TARN_E_INVALID, "rdma: the devices register at most %llu bytes at once, not %llu",
                         (unsigned long long)region_max(&l->rails), (unsigned long long)m->bytes);
    int rc = region_of(&l->rails, m, IBV_ACCESS_LOCAL_WRITE, r_p);
    return rc == TARN_E_INVALID ? region_of(&l->rails, m, 0, r_p) : rc;
}

int tarn_rdma_map_memory(struct tarn_rdma_local *l, const struct tarn_memory *m)
{
    struct tarn_rdma_mapping *mapping = calloc(1, sizeof *mapping);
    if (!mapping)
        return tarn_fail(TARN_E_NO_MEMORY, "rdma: out of memory");
    *mapping = (struct tarn_rdma_mapping){.addr = m->addr, .bytes = m->bytes};
    int rc = region_for(l, m, &mapping->region);
    if (rc) {
        free(mapping);
        return rc;
    }
    pthread_rwlock_wrlock(&l->lock);
    bool inserted = insert(l, mapping);
    pthread_rwlock_unlock(&l->lock);
    if (inserted)
        return 0;
    mapping_free(mapping);
    return tarn_fail(TARN_E_NO_MEMORY, "rdma: out of memory");
}

int tarn_rdma_map(struct tarn_local *local, void *addr, uint64_t bytes)
{
    struct tarn_cuda_memory seen;
    tarn_cuda_memory_of(addr, &seen);
    struct tarn_memory m = memory_of(seen.kind == TARN_CUDA_DEVICE, addr, bytes);
    int rc = tarn_rdma_map_memory(tarn_rdma_local(local), &m);
    memory_end(&m);
    return rc;
}

/* Removes a mapping of exactly this range that no work uses. *busy: all such mappings are in use. */
static struct tarn_rdma_mapping *take(struct tarn_rdma_local *l, const char *addr, uint64_t bytes, bool *busy)
{
    *busy = false;
    for (uint32_t i = above(l, addr); i > 0 && l->mappings[i - 1]->addr == addr; i--) {
        struct tarn_rdma_mapping *m = l->mappings[i - 1];
        if (m->bytes != bytes)
            continue;
        if (__atomic_load_n(&m->users, __ATOMIC_ACQUIRE) > 0) {
            *busy = true;
            continue;
        }
        memmove(l->mappings + i - 1, l->mappings + i, (l->n - i) * sizeof(struct tarn_rdma_mapping *));
        l->n--;
        set_reach(l, i - 1);
        return m;
    }
    return NULL;
}

int tarn_rdma_unmap(struct tarn_local *local, void *addr, uint64_t bytes)
{
    struct tarn_rdma_local *l = tarn_rdma_local(local);
    bool busy;
    pthread_rwlock_wrlock(&l->lock);
    struct tarn_rdma_mapping *m = take(l, addr, bytes, &busy);
    pthread_rwlock_unlock(&l->lock);
    if (m) {
        mapping_free(m);
        return 0;
    }
    if (busy)
        return tarn_fail(TARN_E_BUSY, "rdma: %llu bytes at %p are being transferred: drain or cancel first",
                         (unsigned long long)bytes, addr);
    return tarn_fail(TARN_E_INVALID, "rdma: %llu bytes at %p are not registered", (unsigned long long)bytes,
                     addr);
}

/* --- covering a work ---------------------------------------------------------------------------- */

static bool cover_grow(struct tarn_cover *c)
{
    if (c->n < c->room)
        return true;
    if (c->room == 0) {
        c->spans = &c->first;
        c->room = 1;
        return true;
    }
    uint32_t room = 4 * c->room;
    bool first = c->spans == &c->first;
    struct tarn_span *spans = realloc(first ? NULL : c->spans, room * sizeof *spans);
    if (!spans)
        return false;
    if (first)
        spans[0] = c->first;
    c->spans = spans;
    c->room = room;
    return true;
}

/* The caller's mapping for this address, counted as used. */
static struct tarn_rdma_mapping *use(struct tarn_rdma_local *l, const char *addr, uint64_t bytes, bool put)
{
    pthread_rwlock_rdlock(&l->lock);
    struct tarn_rdma_mapping *m = find(l, addr, bytes, !put);
    if (m)
        __atomic_fetch_add(&m->users, 1, __ATOMIC_ACQ_REL);
    pthread_rwlock_unlock(&l->lock);
    return m;
}

static int cover_one(struct tarn_rdma_local *l, struct tarn_cover *c, char *addr, uint64_t bytes, bool put,
                     bool copy)
{
    struct tarn_span s = {.addr = addr, .bytes = bytes};
    int access = put ? 0 : IBV_ACCESS_LOCAL_WRITE;
    if (!cover_grow(c))
        return tarn_fail(TARN_E_NO_MEMORY, "rdma: out of memory");
    s.mapping = use(l, addr, bytes, put);
    int rc = 0;
    if (s.mapping)
        s.region = s.mapping->region;
    else
        rc = tarn_region_new(&l->rails, c->gpu, addr, bytes, access, &s.region);
    if (rc == TARN_E_INVALID && put && copy && !c->gpu)
        rc = copied_region(&l->rails, addr, bytes, &s.region);
    if (!rc)
        c->spans[c->n++] = s;
    return rc;
}

int tarn_cover_add(struct tarn_rdma_local *l, struct tarn_cover *c, char *addr, uint64_t bytes, bool put,
                   bool copy)
{
    uint64_t most = region_max(&l->rails);
    int rc = 0;
    for (uint32_t i = c->n; i > 0; i--)
        if (covers(c->spans[i - 1].addr, c->spans[i - 1].bytes, addr, bytes))
            return 0;
    for (uint64_t n; !rc && bytes > 0; addr += n, bytes -= n) {
        n = bytes < most ? bytes : most;
        rc = cover_one(l, c, addr, n, put, copy);
    }
    return rc;
}

/* Covers with a whole mapping, since the next piece is mostly in the same one. */
static bool cover_mapping(struct tarn_rdma_local *l, struct tarn_cover *c, char *addr, uint64_t bytes,
                          bool put)
{
    struct tarn_rdma_mapping *m = find(l, addr, bytes, !put);
    if (!m || !cover_grow(c))
        return false;
    __atomic_fetch_add(&m->users, 1, __ATOMIC_ACQ_REL);
    /* A mapping in use stays, and so does its region. */
    c->spans[c->n++] =
        (struct tarn_span){.addr = m->addr, .bytes = m->bytes, .region = m->region, .mapping = m};
    return true;
}

bool tarn_cover_mapped(struct tarn_rdma_local *l, struct tarn_cover *c, const struct tarn_work *w, bool put)
{
    struct tarn_cursor at = {0};
    bool all = true;
    pthread_rwlock_rdlock(&l->lock);
    for (uint64_t bytes, left = w->bytes; all && left > 0; left -= bytes) {
        void *addr;
        bytes = tarn_cursor_next(&at, w->pieces, w->npieces, left, &addr);
        const struct tarn_span *last = c->n ? &c->spans[c->n - 1] : NULL;
        if (!last || !covers(last->addr, last->bytes, addr, bytes))
            all = bytes > 0 && cover_mapping(l, c, addr, bytes, put);
    }
    pthread_rwlock_unlock(&l->lock);
    if (!all)
        tarn_cover_end(c);
    return all;
}

int tarn_cover_borrow(struct tarn_cover *c, struct tarn_region *r)
{
    if (!cover_grow(c))
        return tarn_fail(TARN_E_NO_MEMORY, "rdma: out of memory");
    c->spans[c->n++] = (struct tarn_span){.addr = r->addr, .bytes = r->bytes, .region = share(r)};
    return 0;
}

bool tarn_rdma_mapped(struct tarn_rdma_local *l, const struct tarn_piece *pieces, uint32_t n)
{
    struct tarn_cursor c = {0};
    bool all = true;
    void *addr;
    pthread_rwlock_rdlock(&l->lock);
    for (uint64_t bytes; all && (bytes = tarn_cursor_next(&c, pieces, n, UINT64_MAX, &addr)) > 0;)
        all = find(l, addr, bytes, false) != NULL;
    pthread_rwlock_unlock(&l->lock);
    return all;
}

uint64_t tarn_cover_key(const struct tarn_cover *c, const void *addr, uint32_t rail, uint32_t *lkey_p)
{
    for (uint32_t i = c->n; i > 0; i--) {
        const struct tarn_span *s = &c->spans[i - 1];
        if (!covers(s->addr, s->bytes, addr, 1))
            continue;
        *lkey_p = s->region->mr[rail]->lkey;
        return s->bytes - (uint64_t)((const char *)addr - s->addr);
    }
    return 0;
}

void tarn_cover_end(struct tarn_cover *c)
{
    for (uint32_t i = 0; i < c->n; i++) {
        struct tarn_rdma_mapping *m = c->spans[i].mapping;
        if (m) /* it may be freed from here on */
            __atomic_fetch_sub(&m->users, 1, __ATOMIC_ACQ_REL);
        else
            tarn_region_free(c->spans[i].region);
    }
    if (c->spans != &c->first)
        free(c->spans);
    c->spans = NULL;
    c->n = c->room = 0;
}

/* --- GPU memory that devices refuse ------------------------------------------------------------- */

int tarn_gpu_refused(struct tarn_rdma_local *l, uint32_t gpu)
{
    int rc = 0;
    pthread_rwlock_rdlock(&l->lock);
    if (l->refused.gpu == gpu && tarn_now_ns() < l->refused.until_ns)
        rc = tarn_reason_fail(&l->refused.why);
    pthread_rwlock_unlock(&l->lock);
    return rc;
}

int tarn_gpu_refuse(struct tarn_rdma_local *l, uint32_t gpu)
{
    pthread_rwlock_wrlock(&l->lock);
    l->refused.gpu = gpu;
    l->refused.until_ns = tarn_now_ns() + REFUSED_NS;
    int rc = tarn_reason_keep(&l->refused.why, TARN_E_NOT_REACHABLE);
    pthread_rwlock_unlock(&l->lock);
    return rc;
}
