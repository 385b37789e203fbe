/* SPDX-License-Identifier: Apache-2.0 */
#include "base/map.h"

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

void *tarn_map_aligned(int fd, size_t bytes, size_t align, int prot)
{
    uint8_t *room = mmap(NULL, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return MAP_FAILED;
    size_t before = (align - (uintptr_t)room % align) % align;
    void *addr = mmap(room + before, bytes, prot, MAP_SHARED | MAP_FIXED, fd, 0);
    if (addr == MAP_FAILED) {
        munmap(room, bytes + align);
        return MAP_FAILED;
    }
    size_t page = (size_t)sysconf(_SC_PAGESIZE), end = before + (bytes + page - 1) / page * page;
    if (before)
        munmap(room, before);
    if (end < bytes + align)
        munmap(room + end, bytes + align - end);
    return addr;
}
