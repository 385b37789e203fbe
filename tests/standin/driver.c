/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the CUDA driver that tcpx's fixture plugin calls, over the stand-in. So a plugin and the
 * program that loads it have the same GPUs. Programs export it (Makefile). The plugin searches the program
 * first.
 */
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/standin/cuda_standin.h"
#include "transport/cuda/cuda.h"

#define EXPORT __attribute__((visibility("default")))

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100 };
enum { POINTER_MEMORY_TYPE = 2, POINTER_DEVICE_ORDINAL = 9, MEMORY_DEVICE = 2 };

static _Thread_local int current;
static _Thread_local int before[8];
static _Thread_local int depth;

int tarn_cuda_lend(int device, int *before_p)
{
    int rc = tarn_standin_check(device, "lend");
    *before_p = current;
    if (!rc)
        current = device;
    return rc;
}

void tarn_cuda_take_back(int device)
{
    current = device;
}

int tarn_cuda_settle(int device)
{
    return tarn_standin_check(device, "settle");
}

/* A context is its device's number + 1. */

EXPORT int cuInit(unsigned int flags);
int cuInit(unsigned int flags)
{
    int n;
    (void)flags;
    return tarn_cuda_count(&n) ? NO_DEVICE : 0;
}

EXPORT int cuCtxGetCurrent(void **context);
int cuCtxGetCurrent(void **context)
{
    *context = (void *)((uintptr_t)current + 1);
    return 0;
}

EXPORT int cuCtxPushCurrent_v2(void *context);
int cuCtxPushCurrent_v2(void *context)
{
    return depth == 8 || tarn_cuda_lend((int)((uintptr_t)context - 1), &before[depth++]) ? INVALID_VALUE : 0;
}

EXPORT int cuCtxPopCurrent_v2(void **context);
int cuCtxPopCurrent_v2(void **context)
{
    int rc = cuCtxGetCurrent(context);
    tarn_cuda_take_back(before[--depth]);
    return rc;
}

EXPORT int cuMemAlloc_v2(uintptr_t *p, size_t bytes);
int cuMemAlloc_v2(uintptr_t *p, size_t bytes)
{
    uint8_t unused[TARN_CUDA_HANDLE];
    void *context, *at;
    if (cuCtxGetCurrent(&context) || tarn_cuda_alloc((int)((uintptr_t)context - 1), bytes, &at, unused))
        return OUT_OF_MEMORY;
    *p = (uintptr_t)at;
    return 0;
}

EXPORT int cuMemFree_v2(uintptr_t p);
int cuMemFree_v2(uintptr_t p)
{
    struct tarn_cuda_memory m;
    tarn_cuda_memory_of((void *)p, &m);
    tarn_cuda_free(m.device, (void *)p);
    return 0;
}

EXPORT int cuMemHostAlloc(void **p, size_t bytes, unsigned int flags);
int cuMemHostAlloc(void **p, size_t bytes, unsigned int flags)
{
    (void)flags;
    *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return *p == MAP_FAILED || tarn_cuda_pin(*p, bytes, true) ? OUT_OF_MEMORY : 0;
}

EXPORT int cuMemFreeHost(void *p);
int cuMemFreeHost(void *p)
{
    struct tarn_cuda_memory m;
    tarn_cuda_memory_of(p, &m);
    tarn_cuda_unpin(p);
    return munmap(p, m.end - m.begin) ? INVALID_VALUE : 0;
}

static void *find(uintptr_t at, size_t bytes)
{
    struct tarn_cuda_memory m;
    tarn_cuda_memory_of((void *)at, &m);
    return m.kind == TARN_CUDA_DEVICE ? tarn_standin_reach(m.device, (void *)at, bytes) : (void *)at;
}

EXPORT int cuMemcpy(uintptr_t to, uintptr_t from, size_t bytes);
int cuMemcpy(uintptr_t to, uintptr_t from, size_t bytes)
{
    void *t = find(to, bytes), *f = find(from, bytes);
    if (!t || !f)
        return INVALID_VALUE;
    memcpy(t, f, bytes);
    return 0;
}

EXPORT int cuPointerGetAttribute(void *value, int attribute, uintptr_t p);
int cuPointerGetAttribute(void *value, int attribute, uintptr_t p)
{
    struct tarn_cuda_memory m;
    tarn_cuda_memory_of((void *)p, &m);
    if (m.kind != TARN_CUDA_DEVICE)
        return INVALID_VALUE;
    if (attribute == POINTER_MEMORY_TYPE)
        *(unsigned int *)value = MEMORY_DEVICE;
    else if (attribute == POINTER_DEVICE_ORDINAL)
        *(int *)value = m.device;
    else
        return INVALID_VALUE;
    return 0;
}
