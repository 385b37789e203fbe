/* SPDX-License-Identifier: Apache-2.0 */
#include <sys/mman.h>

#include "base/error.h"
#include "client/gpu/forward_impl.h"

/* --- whose memory it is ------------------------------------------------------------------------- */

static int look(struct tarn_forward_place *p)
{
    struct tarn_cuda_memory first, last;
    tarn_cuda_memory_of(p->at, &first);
    tarn_cuda_memory_of(p->at + p->bytes - 1, &last);
    p->device = first.kind == TARN_CUDA_DEVICE ? first.device : -1;
    if (first.kind == TARN_CUDA_MANAGED)
        return tarn_fail(
            TARN_E_INVALID,
            "forward: the %s at %p is managed by CUDA and has no fixed place: give memory of the "
            "host or of cudaMalloc()",
            p->name, (void *)p->at);
    bool one = first.kind == TARN_CUDA_DEVICE ? first.end - (uintptr_t)p->at >= p->bytes
                                              : last.kind == TARN_CUDA_HOST || last.kind == TARN_CUDA_PINNED;
    return one ? 0
               : tarn_fail(
                     TARN_E_INVALID,
                     "forward: the %s: not all of the %llu bytes at %p are of one memory: give memory of "
                     "the host or of one allocation",
                     p->name, (unsigned long long)p->bytes, (void *)p->at);
}

int tarn_forward_memory_look(struct tarn_forward *f)
{
    int rc = look(&f->landing);
    if (!rc)
        rc = look(&f->final);
    if (rc)
        return rc;
    f->device = f->landing.device >= 0 ? f->landing.device : f->final.device;
    if (f->final.device < 0 || tarn_cuda_reaches(f->device, f->final.device))
        return 0;
    return tarn_fail(TARN_E_NOT_REACHABLE,
                     "forward: GPU %d of the landing place does not reach GPU %d of the final place: land in "
                     "memory of the host",
                     f->device, f->final.device);
}

/* --- begin -------------------------------------------------------------------------------------- */

/* The GPU that copies must reach it. */
static int pin(struct tarn_forward_place *p)
{
    struct tarn_cuda_memory first;
    struct tarn_reason why;
    tarn_cuda_memory_of(p->at, &first);
    if (first.kind != TARN_CUDA_HOST && first.end - (uintptr_t)p->at >= p->bytes)
        return 0;
    int rc = tarn_reason_keep(&why, tarn_cuda_pin(p->at, p->bytes, true));
    p->pinned = rc == 0;
    return rc ? tarn_fail(rc, "forward: the %s, %llu bytes at %p: %s: pin all of it before, or nothing",
                          p->name, (unsigned long long)p->bytes, (void *)p->at, why.text)
              : 0;
}

static int prepare(const struct tarn_forward *f, struct tarn_forward_place *p)
{
    uint8_t handle[TARN_CUDA_HANDLE];
    if (p->device >= 0)
        return tarn_cuda_alloc(p->device, 1, &p->waited, handle);
    return f->device >= 0 ? pin(p) : 0;
}

/* A child of fork() must not make the parent's pages copies, which the GPU would not see: so it is shared. */
static int make_counts(struct tarn_forward *f)
{
    size_t bytes = sizeof(*f->counts) + f->parts * sizeof(f->counts->parts[0]);
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (at == MAP_FAILED)
        return tarn_fail(TARN_E_NO_MEMORY,
                         "forward: counts of %u parts: %zu bytes of shared memory: %m: free some", f->parts,
                         bytes);
    f->counts = at;
    f->counts_bytes = bytes;
    int rc = f->device >= 0 ? tarn_cuda_pin(at, bytes, true) : 0;
    f->counts_pinned = f->device >= 0 && rc == 0;
    return rc;
}

int tarn_forward_memory_new(struct tarn_forward *f)
{
    int rc = prepare(f, &f->landing);
    if (!rc)
        rc = prepare(f, &f->final);
    if (!rc)
        rc = make_counts(f);
    return rc || f->device < 0 ? rc : tarn_cuda_queue_open(f->device, &f->queue);
}

/* --- end ---------------------------------------------------------------------------------------- */

static void give_back(struct tarn_forward_place *p)
{
    if (p->waited)
        tarn_cuda_free(p->device, p->waited);
    if (p->pinned)
        tarn_cuda_unpin(p->at);
}

void tarn_forward_memory_free(struct tarn_forward *f)
{
    tarn_cuda_queue_close(f->queue);
    give_back(&f->landing);
    give_back(&f->final);
    if (f->counts_pinned)
        tarn_cuda_unpin(f->counts);
    if (f->counts)
        munmap(f->counts, f->counts_bytes);
}
