/* SPDX-License-Identifier: Apache-2.0 */
#include "client/window/alloc.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <utlist.h>

#include <tarn/window.h>

#include "base/error.h"
#include "base/map.h"

#define HUGE_2MB (21u << 26) /* MFD_HUGE_2MB of memfd_create(2) */

struct allocation {
    struct allocation *next;
    char *addr;
    uint64_t bytes; /* of the mapping */
    int fd;
    uint32_t windows; /* over it */
    bool freed;       /* it goes with the last window */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation *allocations;

static int make(struct allocation *a, bool huge)
{
    a->fd =
        memfd_create("tarn-window", MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB | HUGE_2MB : 0));
    if (a->fd < 0 || ftruncate(a->fd, (off_t)a->bytes) ||
        fcntl(a->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        return tarn_fail(TARN_E_SYSTEM, "window: a file of %llu bytes of memory: %m%s",
                         (unsigned long long)a->bytes,
                         huge ? ": reserve huge pages (vm.nr_hugepages), or do not ask for them" : "");
    void *at = tarn_map_aligned(a->fd, a->bytes, TARN_HUGE_PAGE, PROT_READ | PROT_WRITE);
    if (at == MAP_FAILED)
        return tarn_fail(TARN_E_NO_MEMORY, "window: mapping %llu bytes: %m%s", (unsigned long long)a->bytes,
                         huge ? ": reserve huge pages (vm.nr_hugepages), or do not ask for them" : "");
    a->addr = at;
    return 0;
}

int tarn_window_alloc(uint64_t bytes, uint32_t flags, void **addr_p)
{
    uint64_t page = flags & TARN_WINDOW_HUGE ? TARN_HUGE_PAGE : 4096;
    if (!addr_p || bytes == 0 || bytes > UINT64_MAX / 4 || flags & ~(uint32_t)TARN_WINDOW_HUGE)
        return tarn_fail(
            TARN_E_INVALID,
            "window: %llu bytes, flags 0x%x: give some bytes, known flags and room for the address",
            (unsigned long long)bytes, flags);
    struct allocation *a = calloc(1, sizeof(*a));
    if (!a)
        return tarn_fail(TARN_E_NO_MEMORY, "window: out of memory");
    a->bytes = (bytes + page - 1) & ~(page - 1);
    int rc = make(a, flags & TARN_WINDOW_HUGE);
    if (rc) {
        if (a->fd >= 0)
            close(a->fd);
        free(a);
        return rc;
    }
    pthread_mutex_lock(&lock);
    LL_PREPEND(allocations, a);
    pthread_mutex_unlock(&lock);
    *addr_p = a->addr;
    return 0;
}

static struct allocation *at_addr(const void *addr)
{
    struct allocation *a;
    LL_SEARCH_SCALAR(allocations, a, addr, addr);
    return a;
}

/* The lock is held. */
static void end_unused(struct allocation *a)
{
    if (a->windows || !a->freed)
        return;
    LL_DELETE(allocations, a);
    munmap(a->addr, a->bytes);
    close(a->fd);
    free(a);
}

void tarn_window_free(void *addr)
{
    pthread_mutex_lock(&lock);
    struct allocation *a = at_addr(addr);
    if (a) {
        a->freed = true;
        end_unused(a);
    }
    pthread_mutex_unlock(&lock);
}

int tarn_window_file_take(const void *addr, uint64_t bytes, uint64_t *offset_p)
{
    struct allocation *a;
    int fd = -1;
    pthread_mutex_lock(&lock);
    LL_FOREACH (allocations, a) {
        uint64_t at = (uint64_t)((uintptr_t)addr - (uintptr_t)a->addr);
        if (at < a->bytes && bytes <= a->bytes - at && !a->freed) {
            fd = a->fd;
            *offset_p = at;
            a->windows++;
        }
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

void tarn_window_file_give(int fd)
{
    struct allocation *a;
    pthread_mutex_lock(&lock);
    LL_SEARCH_SCALAR(allocations, a, fd, fd);
    if (a) {
        a->windows--;
        end_unused(a);
    }
    pthread_mutex_unlock(&lock);
}
