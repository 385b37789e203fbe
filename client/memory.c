/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The caller's memory: which kind it is, and registering it. Every transport of the client is told of
 * registered memory that it can move (shared memory, CUDA IPC and TCP need no registration), and a range in
 * use cannot be deregistered.
 */
#include "client/client.h"

#include <stdio.h>
#include <stdlib.h>

/* --- kinds -------------------------------------------------------------------------------------- */

static uint32_t gpu_of(const struct tarn_cuda_memory *m)
{
    return m->kind == TARN_CUDA_DEVICE ? (uint32_t)m->device + 1 : 0;
}

/* The range that an address lies in: most follow the last one, or the one that followed that before. Pageable
 * memory has no ranges to remember. */
static struct tarn_seen_range range_at(struct tarn_seen *seen, uintptr_t at)
{
    struct tarn_cuda_memory m;

    for (uint32_t i = 0; i < seen->n; i++) {
        const struct tarn_seen_range *r = &seen->ranges[(seen->last + i) % seen->n];
        if (at >= r->begin && at < r->end) {
            seen->last = (seen->last + i) % seen->n;
            return *r;
        }
    }
    tarn_cuda_memory_of((const void *)at, &m);
    const struct tarn_seen_range found = {m.begin, m.end, gpu_of(&m)};
    if (m.end - m.begin > 1) {
        seen->last = seen->n < TARN_SEEN_MAX ? seen->n++ : (seen->last + 1) % TARN_SEEN_MAX;
        seen->ranges[seen->last] = found;
    }
    return found;
}

/* What one pass over a list gives. */
struct summary {
    uintptr_t low, high; /* all pieces lie between */
    uint64_t bytes;      /* UINT64_MAX: too many to count */
};

static uint64_t span_of(const struct tarn_piece *p)
{
    return p->count > 1 ? (p->count - 1) * (p->stride ? p->stride : p->bytes) + p->bytes : p->bytes;
}

static struct summary sum_up(const struct tarn_piece *pieces, uint32_t n)
{
    struct summary s = {.low = UINTPTR_MAX};
    bool over = false;

    for (const struct tarn_piece *p = pieces; p < pieces + n; p++) {
        uint64_t bytes = p->bytes;
        uintptr_t at = (uintptr_t)p->addr, end = at + bytes;
        if (p->count > 1)
            end = at + span_of(p);
        if (bytes == 0)
            continue;
        if (p->count > 1)
            over |= __builtin_mul_overflow(bytes, p->count, &bytes);
        over |= __builtin_add_overflow(s.bytes, bytes, &s.bytes);
        over |= end < at;
        s.low = at < s.low ? at : s.low;
        s.high = end > s.high ? end : s.high;
    }
    if (over)
        s.bytes = UINT64_MAX;
    return s;
}

static const struct tarn_piece *first_of(const struct tarn_piece *pieces, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (pieces[i].bytes > 0)
            return &pieces[i];
    return NULL;
}

static int without_address(const struct tarn_piece *pieces, uint32_t n)
{
    uint32_t i = 0;

    while (i < n && (pieces[i].addr || pieces[i].bytes == 0))
        i++;
    return tarn_fail(TARN_E_INVALID, "piece %u has no address", i);
}

/* Where they lie in more than one allocation: piece by piece. */
static int check_each(const struct tarn_piece *pieces, uint32_t n, struct tarn_seen *seen, uint32_t gpu)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct tarn_piece *p = &pieces[i];
        uintptr_t at = (uintptr_t)p->addr, last = at + span_of(p) - 1;
        if (p->bytes == 0)
            continue;
        struct tarn_seen_range r = range_at(seen, at);
        if (r.gpu != gpu || (last >= r.end && range_at(seen, last).gpu != gpu))
            return tarn_fail(TARN_E_INVALID,
                             "piece %u at %p is not in memory of GPU %u, where the first one is: make it an "
                             "item for each memory",
                             i, p->addr, gpu - 1);
    }
    return 0;
}

int tarn_pieces_gpu(const struct tarn_piece *pieces, uint32_t n, struct tarn_seen *seen, uint32_t *gpu_p)
{
    if (n > 0 && seen->pieces == pieces && seen->npieces == n) {
        *gpu_p = seen->gpu;
        return 0;
    }
    struct summary s = sum_up(pieces, n);
    const struct tarn_piece *first = first_of(pieces, n);
    struct tarn_seen_range r = {0};
    if (first && s.low == 0)
        return without_address(pieces, n);
    if (first)
        r = range_at(seen, (uintptr_t)first->addr);
    bool together = s.low >= r.begin && s.high <= r.end && s.bytes != UINT64_MAX;
    int rc = r.gpu && !together ? check_each(pieces, n, seen, r.gpu) : 0;
    if (rc != 0)
        return rc;
    seen->pieces = pieces;
    seen->npieces = n;
    seen->bytes = s.bytes;
    *gpu_p = seen->gpu = r.gpu;
    return 0;
}

uint64_t tarn_seen_bytes(const struct tarn_seen *seen, const struct tarn_piece *pieces, uint32_t n)
{
    bool known = n > 0 && seen->pieces == pieces && seen->npieces == n;

    return known ? seen->bytes : tarn_pieces_bytes(pieces, n);
}

size_t tarn_items_on_gpus(const struct tarn_item *items, size_t n)
{
    struct tarn_seen seen;
    size_t count = 0;
    uint32_t gpu;

    tarn_seen_clear(&seen);
    for (size_t i = 0; i < n && (i == 0 || count > 0); i++)
        count +=
            items[i].pieces && tarn_pieces_gpu(items[i].pieces, items[i].npieces, &seen, &gpu) == 0 && gpu;
    return count;
}

void tarn_tell_route(struct tarn_remote *r, const char *verb, const struct tarn_key *key, uint32_t pool,
                     int t, uint32_t gpu)
{
    char name[96], pool_name[TARN_POOL_NAME_MAX + 1], memory[16] = "host";

    if (!tarn_log_wants(&r->client->log, TARN_LOG_DEBUG))
        return;
    tarn_remote_pool_name(r, pool, pool_name);
    if (gpu)
        snprintf(memory, sizeof memory, "gpu%u", gpu - 1);
    tarn_log(&r->client->log, TARN_LOG_DEBUG, "client",
             "msg=\"route of a %s\" key=\"%s\" node=%s pool=%s transport=%s memory=%s", verb,
             tarn_key_text(key, name), r->key.id, pool_name, r->client->transports[t]->name, memory);
}

/* --- registering -------------------------------------------------------------------------------- */

struct tarn_mr {
    void *addr;
    uint64_t bytes;
    uint32_t kind;
    uint32_t told; /* bit t: transport t has it */
};

/* Tells a transport, unless it does not move GPU memory. One that takes none of this GPU's leaves it to the
 * others. */
static int tell(struct tarn_client *c, int t, struct tarn_mr *mr)
{
    bool gpu = mr->kind == TARN_MEMORY_CUDA;

    if (gpu && !(c->transports[t]->caps & TARN_CAP_GPU))
        return 0;
    int rc = c->transports[t]->map(c->locals[t], mr->addr, mr->bytes);
    if (rc == 0)
        mr->told |= 1u << t;
    if (rc != TARN_E_UNSUPPORTED || !gpu)
        return rc;
    tarn_log(&c->log, TARN_LOG_WARN, "client",
             "msg=\"GPU memory is not registered with a transport\" transport=%s cause=\"%s\"",
             c->transports[t]->name, tarn_last_error());
    return 0;
}

static int check_kind(const void *addr, uint32_t kind)
{
    struct tarn_cuda_memory seen;

    if (kind != TARN_MEMORY_HOST && kind != TARN_MEMORY_CUDA)
        return tarn_fail(TARN_E_INVALID, "register: memory kind %u: use enum tarn_memory_kind", kind);
    tarn_cuda_memory_of(addr, &seen);
    if ((seen.kind == TARN_CUDA_DEVICE) == (kind == TARN_MEMORY_CUDA))
        return 0;
    return tarn_fail(TARN_E_INVALID, "register: the memory at %p is %s: use TARN_MEMORY_%s", addr,
                     gpu_of(&seen) ? "a GPU's" : "not a GPU's", gpu_of(&seen) ? "CUDA" : "HOST");
}

static int untell(struct tarn_client *c, struct tarn_mr *mr)
{
    for (int t = 0; t < c->ntransports; t++) {
        int rc = mr->told >> t & 1 ? c->transports[t]->unmap(c->locals[t], mr->addr, mr->bytes) : 0;
        if (rc != 0)
            return rc;
        mr->told &= ~(1u << t);
    }
    return 0;
}

int tarn_register(struct tarn_client *c, void *addr, uint64_t bytes, uint32_t kind, struct tarn_mr **mr_p)
{
    int rc = tarn_client_enter(c);

    if (rc != 0)
        return rc;
    if (!addr || bytes == 0 || (uintptr_t)addr + bytes < (uintptr_t)addr)
        return tarn_fail(TARN_E_INVALID, "register: %llu bytes at %p are no range of memory",
                         (unsigned long long)bytes, addr);
    rc = check_kind(addr, kind);
    if (rc != 0)
        return rc;
    struct tarn_mr *mr = malloc(sizeof *mr);
    if (!mr)
        return tarn_fail(TARN_E_NO_MEMORY, "register: out of memory");
    *mr = (struct tarn_mr){addr, bytes, kind, 0};
    for (int t = 0; t < c->ntransports && rc == 0; t++)
        rc = tell(c, t, mr);
    if (rc == 0) {
        *mr_p = mr;
        return 0;
    }
    untell(c, mr);
    free(mr);
    return rc;
}

int tarn_deregister(struct tarn_client *c, struct tarn_mr *mr)
{
    int rc = tarn_client_enter(c);

    if (rc != 0)
        return rc;
    if (!mr)
        return tarn_fail(TARN_E_INVALID, "deregister: NULL");
    if (tarn_ops_use(c, mr->addr, mr->bytes))
        return tarn_fail(TARN_E_BUSY,
                         "deregister: an operation in flight uses the range: drain or cancel it first");
    rc = untell(c, mr);
    if (rc == 0)
        free(mr);
    return rc;
}
