/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A page is written by three copies, one after the other: both stamps become 0, then the rest changes, then
 * the stamps become the new one. A kernel that meets it on the way finds stamps that differ or are 0,
 * whatever the size of a copy's single accesses.
 *
 * Copies go to the copy engines, so they do not wait for kernels that fill the GPU.
 *
 * The lease's end must be told by the GPU's clock. A small kernel stores that clock in pinned memory, where
 * the host sees it some time later, by its own clock at host_ns. So at host_ns the GPU's clock was at least
 * gpu_ns, and a limit reckoned from these two comes too early, never too late. If the kernel cannot run
 * because others fill the GPU, the last two stay in use; the limit comes earlier by what the clocks may have
 * drifted apart since.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "client/gpu/table_impl.h"

#define COMPARE_NS TARN_NS_PER_S /* between comparisons of the clocks */
#define DRIFT 2000               /* they drift apart by 1 in so many, at most */
#define LEEWAY_NS (5 * TARN_NS_PER_MS)

static int copy(const struct tarn_table *t, const void *from, void *to, uint64_t bytes)
{
    const struct tarn_cuda_piece piece = {from, to, bytes};
    return tarn_cuda_copy_now(t->device, &piece, 1);
}

/* --- pages -------------------------------------------------------------------------------------- */

int tarn_table_memory_write(struct tarn_table *t, uint32_t first, uint32_t n)
{
    struct tarn_half *begin = t->mirror + 2 * (size_t)first, *end = begin + 2 * (size_t)n;
    uint8_t *to = t->gpu + 2 * (size_t)first * sizeof(*begin);
    size_t bytes = (size_t)((uint8_t *)end - (uint8_t *)begin);
    for (struct tarn_half *h = begin; h < end; h++)
        h->b = (uint32_t)h->b;
    int rc = copy(t, begin, to, bytes);
    for (uint32_t p = first; p < first + n; p++)
        memcpy(t->mirror + 2 * (size_t)p, t->pages[p].halves, sizeof(t->pages[p].halves));
    if (!rc)
        rc = copy(t, begin, to, bytes);
    for (struct tarn_half *h = begin; h < end; h++)
        h->b |= (uint64_t)t->pages[first + (h - begin) / 2].stamp << 32;
    return rc ? rc : copy(t, begin, to, bytes);
}

int tarn_table_memory_take(struct tarn_table *t, uint8_t *marks)
{
    int rc = copy(t, marks, t->marks, t->npages);
    return rc ? rc : copy(t, t->marks + t->npages, marks, t->npages);
}

/* --- the lease ---------------------------------------------------------------------------------- */

int tarn_table_memory_time(struct tarn_table *t)
{
    uint64_t time = tarn_dev_load64(&t->shared->time), now = tarn_now_ns();
    if (time && t->asked_ns) {
        t->gpu_ns = time;
        t->host_ns = now;
        t->asked_ns = 0;
    }
    if (t->asked_ns || (t->host_ns && now - t->host_ns < COMPARE_NS))
        return 0;
    tarn_dev_store64(&t->shared->time, 0);
    t->asked_ns = now;
    return tarn_cuda_time(t->device, &t->shared->time);
}

/* The host's time by the GPU's clock, or somewhat less. */
static uint64_t by_gpu(const struct tarn_table *t, uint64_t host_ns)
{
    uint64_t since = host_ns - t->host_ns;
    return t->gpu_ns + since - since / DRIFT;
}

int tarn_table_memory_lease(struct tarn_table *t, uint64_t until_ns)
{
    bool longer = until_ns > t->until_ns + LEEWAY_NS, shorter = until_ns < t->until_ns;
    if ((!longer && !shorter) || !t->host_ns)
        return 0;
    t->shared->until = until_ns > t->host_ns ? by_gpu(t, until_ns) : 0;
    int rc = copy(t, &t->shared->until, (void *)(uintptr_t)t->dev.until, sizeof(t->shared->until));
    if (!rc)
        t->until_ns = until_ns;
    return rc;
}

/* --- begin and end ------------------------------------------------------------------------------ */

static size_t whole(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

static int pin(struct tarn_table *t)
{
    size_t mirror = 2 * (size_t)t->npages * sizeof(*t->mirror), marks = whole(2 * (size_t)t->npages, 64);
    size_t bytes = whole(mirror + marks + sizeof(*t->shared), (size_t)sysconf(_SC_PAGESIZE));
    uint8_t *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return tarn_fail(TARN_E_NO_MEMORY, "table: out of memory for %u pages", t->npages);
    int rc = tarn_cuda_pin(at, bytes, true);
    if (rc) {
        munmap(at, bytes);
        return rc;
    }
    t->pinned_bytes = bytes;
    t->mirror = (struct tarn_half *)(void *)at;
    t->marks = at + mirror;
    t->shared = (struct tarn_table_shared *)(void *)(at + mirror + marks);
    return 0;
}

static int allocate(struct tarn_table *t)
{
    uint8_t handle[TARN_CUDA_HANDLE];
    size_t mirror = 2 * (size_t)t->npages * sizeof(*t->mirror);
    void *gpu;
    int rc = tarn_cuda_alloc(t->device, mirror + sizeof(uint64_t) + 2 * (size_t)t->npages, &gpu, handle);
    if (rc)
        return rc;
    t->gpu = gpu;
    t->dev = (struct tarn_dev_table){
        .pages = gpu,
        .until = (uint64_t *)(void *)(t->gpu + mirror),
        .used = t->gpu + mirror + sizeof(uint64_t),
        .told = t->gpu + mirror + sizeof(uint64_t) + t->npages,
        .news = &t->shared->news,
        .npages = t->npages,
    };
    const void *zeros = t->marks + t->npages;
    rc = copy(t, &t->shared->until, (void *)(uintptr_t)t->dev.until, sizeof(t->shared->until));
    if (!rc)
        rc = copy(t, zeros, t->dev.used, t->npages);
    if (!rc)
        rc = copy(t, zeros, t->dev.told, t->npages);
    return rc ? rc : tarn_table_memory_write(t, 0, t->npages);
}

/* Compares the clocks for the first time. */
static int first_time(struct tarn_table *t, uint64_t deadline_ns)
{
    const struct timespec nap = {0, TARN_NS_PER_MS / 20};
    int rc = 0;
    while (!rc && !t->host_ns) {
        rc = tarn_table_memory_time(t);
        if (!rc && tarn_now_ns() >= deadline_ns)
            rc = tarn_fail(TARN_E_TIMEOUT,
                           "table: GPU %d has not run a small kernel in time: raise timeout_ms", t->device);
        else if (!rc && !t->host_ns)
            nanosleep(&nap, NULL);
    }
    return rc;
}

int tarn_table_memory_new(struct tarn_table *t, uint64_t deadline_ns)
{
    int rc = tarn_cuda_gather_ready(t->device);
    if (!rc)
        rc = pin(t);
    if (!rc)
        rc = allocate(t);
    return rc ? rc : first_time(t, deadline_ns);
}

void tarn_table_memory_free(struct tarn_table *t)
{
    if (t->gpu)
        tarn_cuda_free(t->device, t->gpu);
    if (!t->mirror)
        return;
    tarn_cuda_unpin(t->mirror);
    munmap(t->mirror, t->pinned_bytes);
}
