/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/lazy.h"

#include <stddef.h>
#include <sys/mman.h>

void *tarn_lazy_new(uint64_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

void tarn_lazy_free(void *p, uint64_t bytes)
{
    if (p)
        munmap(p, bytes);
}
