/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda.so.1 for tests, with the calls that the fixture plugin makes. Its "GPU memory" is other host
 * memory. FAKE_CUDA_INIT=N: cuInit fails and returns N.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default")))

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, POINTER_MEMORY_TYPE = 2, MEMORY_DEVICE = 2, BLOCKS = 256 };

static struct {
    uintptr_t begin;
    size_t bytes;
} blocks[BLOCKS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The index of the block with address p. p 0: of a free block. -1: none. */
static int find_block(uintptr_t p)
{
    for (int i = 0; i < BLOCKS; i++)
        if (p ? p - blocks[i].begin < blocks[i].bytes : blocks[i].bytes == 0)
            return i;
    return -1;
}

EXPORT int cuInit(unsigned int flags);
int cuInit(unsigned int flags)
{
    const char *text = getenv("FAKE_CUDA_INIT");
    (void)flags;
    return text ? (int)strtol(text, NULL, 10) : 0;
}

EXPORT int cuCtxGetCurrent(void **context);
int cuCtxGetCurrent(void **context)
{
    *context = blocks;
    return 0;
}

EXPORT int cuCtxPushCurrent_v2(void *context);
int cuCtxPushCurrent_v2(void *context)
{
    return context == blocks ? 0 : INVALID_VALUE;
}

EXPORT int cuCtxPopCurrent_v2(void **context);
int cuCtxPopCurrent_v2(void **context)
{
    *context = blocks;
    return 0;
}

EXPORT int cuMemAlloc_v2(uintptr_t *p, size_t bytes);
int cuMemAlloc_v2(uintptr_t *p, size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    int i = find_block(0);
    if (i >= 0) {
        blocks[i].begin = *p = (uintptr_t)at;
        blocks[i].bytes = bytes;
    }
    pthread_mutex_unlock(&lock);
    return i < 0 ? OUT_OF_MEMORY : 0;
}

EXPORT int cuMemFree_v2(uintptr_t p);
int cuMemFree_v2(uintptr_t p)
{
    pthread_mutex_lock(&lock);
    int i = find_block(p);
    if (i >= 0) {
        munmap((void *)p, blocks[i].bytes);
        blocks[i].bytes = 0;
    }
    pthread_mutex_unlock(&lock);
    return i < 0 ? INVALID_VALUE : 0;
}

EXPORT int cuMemHostAlloc(void **p, size_t bytes, unsigned int flags);
int cuMemHostAlloc(void **p, size_t bytes, unsigned int flags)
{
    (void)flags;
    return posix_memalign(p, 4096, bytes) ? OUT_OF_MEMORY : 0;
}

EXPORT int cuMemFreeHost(void *p);
int cuMemFreeHost(void *p)
{
    free(p);
    return 0;
}

EXPORT int cuMemcpy(uintptr_t to, uintptr_t from, size_t bytes);
int cuMemcpy(uintptr_t to, uintptr_t from, size_t bytes)
{
    memcpy((void *)to, (const void *)from, bytes);
    return 0;
}

EXPORT int cuPointerGetAttribute(void *value, int attribute, uintptr_t p);
int cuPointerGetAttribute(void *value, int attribute, uintptr_t p)
{
    pthread_mutex_lock(&lock);
    int i = p ? find_block(p) : -1;
    pthread_mutex_unlock(&lock);
    if (i < 0 || attribute != POINTER_MEMORY_TYPE)
        return INVALID_VALUE;
    *(unsigned int *)value = MEMORY_DEVICE;
    return 0;
}
