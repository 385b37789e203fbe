/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of GPU pools. The arena is device memory; the slot arrays are memfds, as for CPU pools. The node
 * makes a CUDA context only for this. The arena lives as long as the context. Other processes that have it
 * open keep the memory when the node ends.
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "server/store/pool.h"
#include "transport/cuda/cuda_text.h"

/* "0 (NVIDIA H200, GPU-...), 1 (...)" */
static void list_devices(int n, char *out, size_t bytes)
{
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < n && used < bytes; i++) {
        struct tarn_cuda_device d;
        char uuid[TARN_CUDA_UUID_TEXT];
        if (tarn_cuda_describe(i, &d))
            continue;
        tarn_cuda_uuid_format(d.uuid, uuid);
        used +=
            (size_t)snprintf(out + used, bytes - used, "%s%d (%s, %s)", used ? ", " : "", i, d.name, uuid);
    }
}

static bool find_uuid(const uint8_t uuid[TARN_CUDA_UUID], int n, int *device_p)
{
    struct tarn_cuda_device d;
    for (int i = 0; i < n; i++) {
        if (tarn_cuda_describe(i, &d) || memcmp(d.uuid, uuid, sizeof(d.uuid)))
            continue;
        *device_p = i;
        return true;
    }
    return false;
}

static int find_device(const char *pool, const char *text, int *device_p)
{
    uint8_t uuid[TARN_CUDA_UUID];
    char devices[400];
    uint64_t index;
    int n;
    struct tarn_reason why;
    if (tarn_reason_keep(&why, tarn_cuda_count(&n)))
        return tarn_fail(TARN_E_UNAVAILABLE, "pool %s: no GPU can be used: %s", pool, why.text);
    if (!tarn_u64_parse(text, strlen(text), 10, (uint64_t)n - 1, &index)) {
        *device_p = (int)index;
        return 0;
    }
    if (tarn_cuda_uuid_parse(text, strlen(text), uuid) && find_uuid(uuid, n, device_p))
        return 0;
    list_devices(n, devices, sizeof(devices));
    return tarn_fail(TARN_E_UNAVAILABLE, "pool %s: device %s: there is no such GPU here: use one of %s", pool,
                     text, devices);
}

int tarn_pool_take_gpu(const char *name, const char *device, struct tarn_pool_memory *m)
{
    struct tarn_cuda_device d;
    struct tarn_reason why;
    m->kind = TARN_POOL_GPU;
    int rc = find_device(name, device, &m->device);
    if (rc)
        return rc;
    rc = tarn_cuda_describe(m->device, &d);
    if (!rc)
        rc = tarn_cuda_alloc(m->device, m->bytes, &m->base, m->handle);
    if (tarn_reason_keep(&why, rc)) {
        m->base = NULL;
        return tarn_fail(rc, "pool %s: %s", name, why.text);
    }
    memcpy(m->uuid, d.uuid, sizeof(m->uuid));
    return 0;
}
