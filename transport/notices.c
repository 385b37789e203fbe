/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/notices.h"

#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"

static int fail(int fd, const char *what)
{
    int rc =
        tarn_fail(TARN_E_SYSTEM, "window: memory for notifications: %s: %m: allow more open files", what);
    if (fd >= 0)
        close(fd);
    return rc;
}

size_t tarn_notices_bytes(uint32_t places)
{
    return sizeof(struct tarn_notice_ring) + places * sizeof(struct tarn_notice_place);
}

int tarn_notices_new(uint32_t places, struct tarn_notice_ring **ring_p, int *fd_p)
{
    size_t bytes = tarn_notices_bytes(places);
    int fd = memfd_create("tarn-notices", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        return fail(fd, "memfd");
    struct tarn_notice_ring *ring = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (ring == MAP_FAILED)
        return fail(fd, "mmap");
    madvise(ring, bytes, MADV_DONTFORK);
    for (uint64_t i = 0; i < places; i++)
        atomic_store_explicit(&ring->place[i].turn, i, memory_order_relaxed);
    *ring_p = ring;
    *fd_p = fd;
    return 0;
}

/* Takes a number, whose place is free. False: the ring is full. */
static bool claim(struct tarn_notice_ring *ring, uint64_t *n_p)
{
    uint64_t n = atomic_load(&ring->next);
    for (;;) {
        uint64_t turn = atomic_load(&ring->place[n % TARN_NOTICES].turn);
        if (turn < n)
            return false;
        if (turn > n)
            n = atomic_load(&ring->next);
        else if (atomic_compare_exchange_strong(&ring->next, &n, n + 1))
            break;
    }
    *n_p = n;
    return true;
}

size_t tarn_notice_of(const struct tarn_work *w, struct tarn_notice *out)
{
    out->window = w->pool;
    out->slot = w->slot;
    out->gen = w->gen;
    out->tag = w->notify->tag;
    out->bytes = w->notify->bytes;
    if (w->notify->bytes)
        memcpy(out->data, w->notify->data, w->notify->bytes);
    return offsetof(struct tarn_notice, data) + w->notify->bytes;
}

int tarn_notices_push(struct tarn_notice_ring *ring, int bell, const struct tarn_work *w)
{
    uint64_t n;
    if (!claim(ring, &n))
        return TARN_E_AGAIN;
    tarn_notice_of(w, &ring->place[n % TARN_NOTICES].notice);
    tarn_notices_fill(ring, TARN_NOTICES, n);
    if (!atomic_exchange(&ring->rung, 1))
        eventfd_write(bell, 1);
    return 0;
}

void tarn_notices_fill(struct tarn_notice_ring *ring, uint32_t places, uint64_t n)
{
    atomic_store(&ring->place[n % places].turn, n + 1);
}

bool tarn_notices_peek(const struct tarn_notice_ring *ring, uint32_t places, uint64_t n,
                       struct tarn_notice *out)
{
    if (atomic_load(&ring->place[n % places].turn) != n + 1)
        return false;
    *out = ring->place[n % places].notice;
    if (out->bytes > sizeof(out->data))
        out->bytes = sizeof(out->data);
    return true;
}

void tarn_notices_pop(struct tarn_notice_ring *ring, uint32_t places, uint64_t n)
{
    atomic_store(&ring->place[n % places].turn, n + places);
    atomic_store(&ring->popped, n + 1);
}
