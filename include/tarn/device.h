/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Direct gets: a kernel reads rows of the objects in a hit table (table.h) by itself, checked, without the
 * host.
 *
 * A table has a page for each object: two halves (device_base.h) in memory of the GPU.
 *
 *   half 0   a: address of the object's bytes               b: stamp << 32 | bytes
 *   half 1   a: address of the slot's generation; 0: dead   b: stamp << 32 | low half of the generation
 *
 * The halves of a page belong together if they have the same stamp, not 0; each change gives it another
 * one. The `bytes` of a dead page are the status of its rows, negated. The high half of a generation names
 * the incarnation of the node. Memory never passes from one to the next, so the low half is compared alone.
 *
 * A get reads the page, copies, fences, and reads the generation. If it is another one, the bytes are not the
 * object's: the row's status is STALE, and the table's thread looks for the object again. While the client
 * does not know that all nodes of the table may be read (read leases, docs/consistency.md), all rows are
 * STALE: a get that begins after `until` reads nothing.
 *
 * In CUDA a whole warp, block or grid makes the call. In C one thread makes it, which plays a GPU.
 */
#ifndef TARN_DEVICE_H
#define TARN_DEVICE_H

#include <stdbool.h>

#include <tarn/device_base.h>
#include <tarn/error.h>

/*
 * What kernels know of a table; they take it by value. It stays valid until the table is freed.
 *
 * Rows are parts of pages: row r is bytes [offset + r % rows_per_page * row_bytes, + row_bytes) of page
 * r / rows_per_page. A kernel may change these three in its copy, for the rows of another layer, say.
 */
struct tarn_dev_table {
    const struct tarn_half *pages;
    uint8_t *used, *told;  /* for each page: it was read; it could not be read */
    const uint64_t *until; /* by tarn_dev_now() */
    uint32_t *news;        /* in memory of the host; not 0: pages were told */
    uint64_t offset;
    uint32_t npages, row_bytes, rows_per_page;
};

/* --- pages -------------------------------------------------------------------------------------- */

struct tarn_dev_row {
    const uint8_t *at;
    const uint32_t *gen_at;
    uint32_t page, gen, stamp;
    int32_t status;
};

/* Looks up where a row lies. late: the table's lease has ended. */
TARN_DEV struct tarn_dev_row tarn_dev_find(const struct tarn_dev_table *t, uint32_t row, bool late)
{
    const uint64_t inside = (uint64_t)(row % t->rows_per_page) * t->row_bytes;
    struct tarn_dev_row r = {0};
    r.page = row / t->rows_per_page;
    if (r.page >= t->npages) {
        r.status = TARN_E_INVALID;
        return r;
    }
    const struct tarn_half *page = t->pages + 2 * (uint64_t)r.page;
    const struct tarn_half first = tarn_dev_half_read(page), second = tarn_dev_half_read(page + 1);
    const uint32_t bytes = (uint32_t)first.b;
    r.at = (const uint8_t *)(uintptr_t)first.a + t->offset + inside;
    r.gen_at = (const uint32_t *)(uintptr_t)second.a;
    r.gen = (uint32_t)second.b;
    r.stamp = (uint32_t)(first.b >> 32);
    if (late || r.stamp == 0 || r.stamp != (uint32_t)(second.b >> 32))
        r.status = TARN_E_STALE;
    else if (!r.gen_at)
        r.status = -(int32_t)bytes;
    else if (t->offset > bytes || inside + t->row_bytes > bytes - t->offset)
        r.status = TARN_E_INVALID;
    return r;
}

TARN_DEV bool tarn_dev_is_late(const struct tarn_dev_table *t)
{
    return tarn_dev_now() >= tarn_dev_load64(t->until);
}

/* The status of a row that was copied before a fence. */
TARN_DEV int32_t tarn_dev_check(const struct tarn_dev_row *r)
{
    return r->status || tarn_dev_load32(r->gen_at) == r->gen ? r->status : TARN_E_STALE;
}

/* Notes the outcome for the table's thread, which knows by itself that the lease has ended. */
TARN_DEV void tarn_dev_note(const struct tarn_dev_table *t, const struct tarn_dev_row *r, int32_t status,
                            bool late)
{
    if (late || status == TARN_E_INVALID)
        return;
    tarn_dev_store8((status ? t->told : t->used) + r->page, 1);
    if (status)
        tarn_dev_store32(t->news, 1);
}

/* --- copying ------------------------------------------------------------------------------------ */

/* The threads of a warp. */
#ifdef TARN_DEV_GPU
#define TARN_DEV_WARP 32u
#define TARN_DEV_UNROLL 8
#else
#define TARN_DEV_WARP 1u
#endif

/* Copies n units of 16, 4 or 1 bytes; this thread has number `rank` of `width`. */
#ifdef TARN_DEV_GPU
TARN_DEV void tarn_dev_copy_16(uint8_t *to, const uint8_t *from, uint32_t n, uint32_t rank, uint32_t width)
{
#pragma unroll 1
    for (uint32_t i = rank; i < n; i += TARN_DEV_UNROLL * width) {
        struct tarn_half v[TARN_DEV_UNROLL];
#pragma unroll
        for (uint32_t k = 0; k < TARN_DEV_UNROLL; k++)
            if (i + k * width < n)
                v[k] = tarn_dev_half_read((const struct tarn_half *)from + i + k * width);
#pragma unroll
        for (uint32_t k = 0; k < TARN_DEV_UNROLL; k++)
            if (i + k * width < n)
                *((struct tarn_half *)to + i + k * width) = v[k];
    }
}
#endif

TARN_DEV void tarn_dev_copy_4(uint8_t *to, const uint8_t *from, uint32_t n, uint32_t rank, uint32_t width)
{
    for (uint32_t i = rank; i < n; i += width)
        ((uint32_t *)(void *)to)[i] = tarn_dev_load32((const uint32_t *)(const void *)from + i);
}

TARN_DEV void tarn_dev_copy_1(uint8_t *to, const uint8_t *from, uint32_t n, uint32_t rank, uint32_t width)
{
    for (uint32_t i = rank; i < n; i += width)
        to[i] = tarn_dev_load8(from + i);
}

/* Copies with the widest accesses that both addresses allow; single bytes lead to them and end them. */
TARN_DEV void tarn_dev_copy(uint8_t *to, const uint8_t *from, uint32_t bytes, uint32_t rank, uint32_t width)
{
    const uint32_t differ = (uint32_t)((uintptr_t)to ^ (uintptr_t)from);
    const uint32_t unit = differ % 4 ? 1 : differ % 16 || TARN_DEV_WARP == 1 ? 4 : 16;
    uint32_t head = (uint32_t) - (uintptr_t)to % unit;
    head = head < bytes ? head : bytes;
    const uint32_t n = (bytes - head) / unit, tail = head + n * unit;
    tarn_dev_copy_1(to, from, head, rank, width);
#ifdef TARN_DEV_GPU
    if (unit == 16)
        tarn_dev_copy_16(to + head, from + head, n, rank, width);
#endif
    if (unit == 4)
        tarn_dev_copy_4(to + head, from + head, n, rank, width);
    if (unit == 1)
        tarn_dev_copy_1(to + head, from + head, n, rank, width);
    tarn_dev_copy_1(to + tail, from + tail, bytes - tail, rank, width);
}

/* --- gets --------------------------------------------------------------------------------------- */

#ifdef TARN_DEV_GPU
/* What a lane of the warp has. */
TARN_DEV const uint8_t *tarn_dev_of_lane(const uint8_t *v, uint32_t lane)
{
    return (const uint8_t *)__shfl_sync(~0u, (unsigned long long)v, (int)lane);
}
TARN_DEV uint32_t tarn_dev_lane(void)
{
    uint32_t lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}
TARN_DEV void tarn_dev_sync_warp(void)
{
    __syncwarp();
}
#else
TARN_DEV const uint8_t *tarn_dev_of_lane(const uint8_t *v, uint32_t lane)
{
    (void)lane;
    return v;
}
TARN_DEV uint32_t tarn_dev_lane(void)
{
    return 0;
}
TARN_DEV void tarn_dev_sync_warp(void)
{
}
#endif

/*
 * Gets rows[0..n): row i to to + i * stride, its status to status[i]. 0: the bytes are the object's. INVALID:
 * the row does not lie in the table, or not in its page. STALE: the object has moved or is gone, or the
 * table cannot be used just now; NOT_FOUND, NOT_REACHABLE (get it by tarn_get()), NODE_DOWN: as the table's
 * thread last found. After another status than 0 the bytes mean nothing; the thread looks for the object
 * again, and a later get finds what it has found.
 *
 * A whole warp calls this, with the same arguments, all of whose memory this GPU reaches. It never waits.
 */
TARN_DEV void tarn_dev_get(const struct tarn_dev_table *t, const uint32_t *rows, uint32_t n, void *to,
                           uint64_t stride, int32_t *status)
{
    const uint32_t lane = tarn_dev_lane();
    for (uint32_t first = 0; first < n; first += TARN_DEV_WARP) {
        const uint32_t count = n - first < TARN_DEV_WARP ? n - first : TARN_DEV_WARP;
        const bool late = tarn_dev_is_late(t);
        struct tarn_dev_row r = {0};
        r.status = TARN_E_INVALID;
        if (lane < count)
            r = tarn_dev_find(t, rows[first + lane], late);
        for (uint32_t i = 0; i < count; i++) {
            const uint8_t *from = tarn_dev_of_lane(r.status ? (const uint8_t *)0 : r.at, i);
            if (from)
                tarn_dev_copy((uint8_t *)to + (first + i) * stride, from, t->row_bytes, lane, TARN_DEV_WARP);
        }
        tarn_dev_fence_loads();
        tarn_dev_sync_warp();
        if (lane < count) {
            status[first + lane] = tarn_dev_check(&r);
            tarn_dev_note(t, &r, status[first + lane], late);
        }
    }
    tarn_dev_sync_warp();
}

#ifdef TARN_DEV_GPU
/*
 * Looks up and copies up to 32 rows, by a whole block of up to 1024 threads, a multiple of 32. Each row is
 * copied by as many warps as there are for it. Thread i has row i in *r, to be checked behind a fence and a
 * barrier.
 */
TARN_DEV void tarn_dev_copy_tile(const struct tarn_dev_table *t, const uint32_t *rows, uint32_t n, void *to,
                                 uint64_t stride, bool late, struct tarn_dev_row *r)
{
    __shared__ const uint8_t *from[TARN_DEV_WARP];
    const uint32_t thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const uint32_t warps = blockDim.x * blockDim.y * blockDim.z / TARN_DEV_WARP;
    const uint32_t team = warps > n ? warps / n : 1;
    if (thread < n) {
        *r = tarn_dev_find(t, rows[thread], late);
        from[thread] = r->status ? (const uint8_t *)0 : r->at;
    }
    __syncthreads();
    for (uint32_t i = thread / TARN_DEV_WARP; i < n * team; i += warps)
        if (from[i / team])
            tarn_dev_copy((uint8_t *)to + i / team * stride, from[i / team], t->row_bytes,
                          i % team * TARN_DEV_WARP + thread % TARN_DEV_WARP, team * TARN_DEV_WARP);
}

/*
 * tarn_dev_get() by a whole block, as above. Reads of neighbouring generations by different blocks at the
 * same time wait for each other in the GPU: where many blocks get many rows of few pages, tarn_table_gather()
 * is faster.
 */
TARN_DEV void tarn_dev_get_block(const struct tarn_dev_table *t, const uint32_t *rows, uint32_t n, void *to,
                                 uint64_t stride, int32_t *status)
{
    const uint32_t thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    for (uint32_t first = 0; first < n; first += TARN_DEV_WARP) {
        const uint32_t count = n - first < TARN_DEV_WARP ? n - first : TARN_DEV_WARP;
        const bool late = tarn_dev_is_late(t);
        struct tarn_dev_row r = {0};
        tarn_dev_copy_tile(t, rows + first, count, (uint8_t *)to + first * stride, stride, late, &r);
        tarn_dev_fence_loads();
        __syncthreads();
        if (thread < count) {
            status[first + thread] = tarn_dev_check(&r);
            tarn_dev_note(t, &r, status[first + thread], late);
        }
    }
    __syncthreads();
}

/* The same by all blocks of a one-dimensional grid; each takes a part of the rows. It does not wait for the
 * others: what comes after it in the kernel finds only its own block's rows. */
TARN_DEV void tarn_dev_get_grid(const struct tarn_dev_table *t, const uint32_t *rows, uint32_t n, void *to,
                                uint64_t stride, int32_t *status)
{
    const uint32_t part = (n + gridDim.x - 1) / gridDim.x, first = part * blockIdx.x;
    if (first < n)
        tarn_dev_get_block(t, rows + first, n - first < part ? n - first : part,
                           (uint8_t *)to + first * stride, stride, status + first);
}
#endif

#endif
