/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory for the fixture. Finds the driver's calls by name, so it builds without a CUDA toolkit. */
#include <dlfcn.h>
#include <stdlib.h>

#include "tests/tcpx/fixture.h"

enum { HOST_PORTABLE = 1, HOST_MAPPED = 2, POINTER_MEMORY_TYPE = 2, MEMORY_DEVICE = 2 };

static struct {
    int (*init)(unsigned int flags);
    int (*current)(void **context);
    int (*push)(void *context);
    int (*pop)(void **context);
    int (*alloc)(uintptr_t *p, size_t bytes);
    int (*free)(uintptr_t p);
    int (*alloc_host)(void **p, size_t bytes, unsigned int flags);
    int (*free_host)(void *p);
    int (*copy)(uintptr_t to, uintptr_t from, size_t bytes);
    int (*pointer)(void *value, int attribute, uintptr_t p);
} cu;

bool fixture_gpu_open(void)
{
    static const struct {
        void **call;
        const char *name;
    } calls[] = {
        {(void **)&cu.init, "cuInit"},
        {(void **)&cu.current, "cuCtxGetCurrent"},
        {(void **)&cu.push, "cuCtxPushCurrent_v2"},
        {(void **)&cu.pop, "cuCtxPopCurrent_v2"},
        {(void **)&cu.alloc, "cuMemAlloc_v2"},
        {(void **)&cu.free, "cuMemFree_v2"},
        {(void **)&cu.alloc_host, "cuMemHostAlloc"},
        {(void **)&cu.free_host, "cuMemFreeHost"},
        {(void **)&cu.copy, "cuMemcpy"},
        {(void **)&cu.pointer, "cuPointerGetAttribute"},
    };
    /* Uses the stand-in's driver if the program is built with it. */
    bool own = dlsym(RTLD_DEFAULT, "cuInit") != NULL;
    void *driver = own ? RTLD_DEFAULT : dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!own && !driver)
        return false;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        if (!(*calls[i].call = dlsym(driver, calls[i].name)))
            return false;
    return cu.init(0) == 0;
}

void *fixture_gpu_context(void)
{
    void *context = NULL;
    return cu.current && cu.current(&context) == 0 ? context : NULL;
}

bool fixture_gpu_has(const void *p)
{
    unsigned int type = 0;
    return cu.pointer && cu.pointer(&type, POINTER_MEMORY_TYPE, (uintptr_t)p) == 0 && type == MEMORY_DEVICE;
}

void *fixture_gpu_alloc(size_t bytes)
{
    uintptr_t p = 0;
    return cu.alloc(&p, bytes) ? NULL : (void *)p;
}

void *fixture_gpu_alloc_host(size_t bytes)
{
    void *p = NULL;
    return cu.alloc_host(&p, bytes, HOST_PORTABLE | HOST_MAPPED) ? NULL : p;
}

void fixture_gpu_free(void *p)
{
    cu.free((uintptr_t)p);
}

void fixture_gpu_free_host(void *p)
{
    if (p)
        cu.free_host(p);
}

void fixture_gpu_copy(void *context, void *to, const void *from, size_t bytes)
{
    void *popped;
    if (cu.push(context) || cu.copy((uintptr_t)to, (uintptr_t)from, bytes) || cu.pop(&popped))
        fixture_crash("a copy over the GPU failed");
}
