/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda.h by the CUDA runtime (linked statically: it looks for the driver when it is first used).
 *
 * A queue is a stream and a ring of pinned memory for lists of runs. A part of the ring is free again when
 * the event recorded behind its launch has passed. Large pieces are cudaMemcpyAsync, small ones become
 * runs of one kernel launch, in whatever order: pieces of one queue do not overlap.
 */
#include "transport/cuda.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "base/error.h"
#include "base/text.h"
#include "transport/kernels.h"

/* --- errors ------------------------------------------------------------------------------------- */

/* Errors after which nothing of this process's works on the device any more. */
static bool is_lasting(cudaError_t e)
{
    switch (e) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorDevicesUnavailable:
    case cudaErrorContextIsDestroyed:
    case cudaErrorUnknown:
        return true;
    default:
        return false;
    }
}

/* Takes the error out of the thread's CUDA state, so that the application does not find it there. */
static int failed(cudaError_t e, const char *call, int device)
{
    cudaGetLastError();
    if (is_lasting(e))
        return tarn_fail(TARN_E_UNAVAILABLE, "%s on device %d: %s: the device is of no more use to this process", call,
                         device, cudaGetErrorString(e));
    return tarn_fail(e == cudaErrorMemoryAllocation ? TARN_E_NO_MEMORY : TARN_E_SYSTEM, "%s on device %d: %s", call,
                     device, cudaGetErrorString(e));
}

/* --- devices ------------------------------------------------------------------------------------ */

/* Makes a device the thread's; what it was before goes to *before. */
static int enter(int device, int *before)
{
    cudaError_t e = cudaGetDevice(before);
    if (!e)
        e = cudaSetDevice(device);
    return e ? failed(e, "cudaSetDevice", device) : 0;
}

static void leave(int before)
{
    cudaSetDevice(before);
}

int tarn_cuda_count(int *n_p)
{
    cudaError_t e = cudaGetDeviceCount(n_p);
    if (!e && *n_p > 0)
        return 0;
    *n_p = 0;
    cudaGetLastError();
    return tarn_fail(TARN_E_UNAVAILABLE, "CUDA: %s", e ? cudaGetErrorString(e) : "no device is visible");
}

int tarn_cuda_describe(int device, struct tarn_cuda_device *d)
{
    struct cudaDeviceProp p;
    cudaError_t e = cudaGetDeviceProperties(&p, device);
    if (e)
        return failed(e, "cudaGetDeviceProperties", device);
    memcpy(d->uuid, p.uuid.bytes, sizeof(d->uuid));
    snprintf(d->name, sizeof(d->name), "%.63s", p.name);
    d->total_bytes = p.totalGlobalMem;
    return 0;
}

int tarn_cuda_find(const uint8_t uuid[TARN_CUDA_UUID], int *device_p)
{
    int n, rc = tarn_cuda_count(&n);
    if (rc)
        return rc;
    for (int i = 0; i < n; i++) {
        struct tarn_cuda_device d;
        rc = tarn_cuda_describe(i, &d);
        if (rc)
            return rc;
        if (memcmp(d.uuid, uuid, sizeof(d.uuid)))
            continue;
        *device_p = i;
        return 0;
    }
    return tarn_fail(TARN_E_NOT_REACHABLE,
                     "CUDA: none of the %d visible devices is the one asked for: see CUDA_VISIBLE_DEVICES", n);
}

int tarn_cuda_free_bytes(int device, uint64_t *bytes_p)
{
    size_t unused = 0, total;
    int before, rc = enter(device, &before);
    if (rc)
        return rc;
    cudaError_t e = cudaMemGetInfo(&unused, &total);
    leave(before);
    *bytes_p = unused;
    return e ? failed(e, "cudaMemGetInfo", device) : 0;
}

bool tarn_cuda_reaches(int device, int peer)
{
    int can = 0, before;
    if (device == peer)
        return true;
    if (cudaDeviceCanAccessPeer(&can, device, peer) || !can || enter(device, &before))
        return false;
    cudaError_t e = cudaDeviceEnablePeerAccess(peer, 0);
    leave(before);
    cudaGetLastError();
    return !e || e == cudaErrorPeerAccessAlreadyEnabled;
}

/* --- memory ------------------------------------------------------------------------------------- */

typedef CUresult attributes_fn(unsigned n, CUpointer_attribute *what, void **out, CUdeviceptr at);

/* The count of libraries that the process has ever loaded. */
static int take_loads(struct dl_phdr_info *info, size_t bytes, void *arg)
{
    (void)bytes;
    *(uint64_t *)arg = info->dlpi_adds;
    return 1;
}

/*
 * Of the driver, when this process has loaded it; whoever has device memory has. Looking for one that is not
 * loaded goes through the file system, so it is looked for only when something has been loaded since. The driver
 * stays loaded: who loaded it does not give it up.
 */
static attributes_fn *driver_attributes(void)
{
    static _Atomic(attributes_fn *) known;
    static _Atomic uint64_t looked; /* the count at the last look, which was in vain */
    attributes_fn *fn = atomic_load_explicit(&known, memory_order_acquire);
    uint64_t loads = 0;
    if (fn)
        return fn;
    dl_iterate_phdr(take_loads, &loads);
    if (atomic_load(&looked) == loads)
        return NULL;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (driver) {
        *(void **)&fn = dlsym(driver, "cuPointerGetAttributes");
        dlclose(driver);
    }
    if (fn)
        atomic_store_explicit(&known, fn, memory_order_release);
    else
        atomic_store(&looked, loads);
    return fn;
}

static enum tarn_cuda_kind kind_of(unsigned type, bool managed)
{
    if (managed)
        return TARN_CUDA_MANAGED;
    if (type == CU_MEMORYTYPE_DEVICE)
        return TARN_CUDA_DEVICE;
    return type == CU_MEMORYTYPE_HOST ? TARN_CUDA_PINNED : TARN_CUDA_HOST;
}

void tarn_cuda_memory_of(const void *addr, struct tarn_cuda_memory *m)
{
    attributes_fn *get = driver_attributes();
    unsigned type = 0, managed = 0;
    int device = -1;
    CUdeviceptr begin = 0;
    size_t bytes = 0;
    CUpointer_attribute what[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                  CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    void *out[] = {&type, &managed, &device, &begin, &bytes};
    *m = (struct tarn_cuda_memory){TARN_CUDA_HOST, -1, (uintptr_t)addr, (uintptr_t)addr + 1};
    if (!get) {
        m->begin = 0;
        m->end = UINTPTR_MAX;
        return;
    }
    if (get(5, what, out, (CUdeviceptr)(uintptr_t)addr) || !type)
        return;
    m->kind = kind_of(type, managed);
    m->device = device;
    if (bytes) {
        m->begin = (uintptr_t)begin;
        m->end = (uintptr_t)begin + bytes;
    }
}

int tarn_cuda_alloc(int device, uint64_t bytes, void **addr_p, uint8_t handle[TARN_CUDA_HANDLE])
{
    cudaIpcMemHandle_t h;
    char want[16], have[16];
    uint64_t unused = 0;
    int before, rc = enter(device, &before);
    if (rc)
        return rc;
    cudaError_t e = cudaMalloc(addr_p, bytes);
    if (!e && (e = cudaIpcGetMemHandle(&h, *addr_p)))
        cudaFree(*addr_p);
    leave(before);
    if (!e) {
        memcpy(handle, &h, TARN_CUDA_HANDLE);
        return 0;
    }
    if (e != cudaErrorMemoryAllocation)
        return failed(e, "cudaMalloc", device);
    cudaGetLastError();
    tarn_cuda_free_bytes(device, &unused);
    tarn_size_format(bytes, want);
    tarn_size_format(unused, have);
    return tarn_fail(TARN_E_NO_MEMORY,
                     "device %d: %s of memory are needed and %s are free: make the pool smaller or free memory", device,
                     want, have);
}

void tarn_cuda_free(int device, void *addr)
{
    int before;
    if (!addr || enter(device, &before))
        return;
    cudaFree(addr);
    leave(before);
}

int tarn_cuda_open(int device, const uint8_t handle[TARN_CUDA_HANDLE], void **addr_p)
{
    cudaIpcMemHandle_t h;
    int before, rc = enter(device, &before);
    if (rc)
        return rc;
    memcpy(&h, handle, sizeof(h));
    cudaError_t e = cudaIpcOpenMemHandle(addr_p, h, cudaIpcMemLazyEnablePeerAccess);
    leave(before);
    return e ? failed(e, "cudaIpcOpenMemHandle", device) : 0;
}

void tarn_cuda_close(int device, void *addr)
{
    int before;
    if (!addr || enter(device, &before))
        return;
    cudaIpcCloseMemHandle(addr);
    cudaGetLastError();
    leave(before);
}

int tarn_cuda_pin(void *addr, uint64_t bytes, bool writable)
{
    unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
    cudaError_t e = cudaHostRegister(addr, bytes, flags | (writable ? 0 : cudaHostRegisterReadOnly));
    return e ? failed(e, "cudaHostRegister", -1) : 0;
}

void tarn_cuda_unpin(void *addr)
{
    cudaHostUnregister(addr);
    cudaGetLastError();
}

/* --- queues ------------------------------------------------------------------------------------- */

#define PARTS 8          /* of the ring */
#define PART_RUNS 4096   /* runs of one launch at most */
#define MARKS 256        /* outstanding */
#define LARGE (16u << 20) /* pieces from this size on, and single ones, go to the copy engines */
#define BLOCKS_PER_SM 8

struct part {
    struct tarn_run *runs;
    cudaEvent_t done;
    bool used;
};

struct tarn_cuda_queue {
    int device;
    uint32_t blocks;
    cudaStream_t stream;
    struct tarn_run *ring;
    struct part parts[PARTS];
    uint32_t next_part;
    cudaEvent_t marks[MARKS];
    uint64_t marked, passed;
    cudaError_t broken; /* lasting */
};

static int broken(struct tarn_cuda_queue *q, cudaError_t e, const char *call)
{
    if (is_lasting(e))
        q->broken = e;
    return failed(e, call, q->device);
}

static cudaError_t make_events(struct tarn_cuda_queue *q)
{
    cudaError_t e = cudaSuccess;
    for (int i = 0; !e && i < PARTS; i++) {
        q->parts[i].runs = q->ring + i * PART_RUNS;
        e = cudaEventCreateWithFlags(&q->parts[i].done, cudaEventDisableTiming);
    }
    for (int i = 0; !e && i < MARKS; i++)
        e = cudaEventCreateWithFlags(&q->marks[i], cudaEventDisableTiming);
    return e;
}

/* Loads both kernels and lets the driver set up what first uses set up. */
static cudaError_t warm_up(struct tarn_cuda_queue *q)
{
    q->ring[0] = (struct tarn_run){(uint64_t)(uintptr_t)(q->ring + 2), (uint64_t)(uintptr_t)(q->ring + 3),
                                   sizeof(q->ring[0])};
    cudaError_t e = tarn_kernel_copy_runs(q->ring, 1, 1, 1, q->stream);
    if (!e)
        e = tarn_kernel_copy_runs(q->ring, 1, TARN_RUN_MAX, 1, q->stream);
    return e ? e : cudaStreamSynchronize(q->stream);
}

static cudaError_t queue_make(struct tarn_cuda_queue *q)
{
    int sms = 0;
    cudaError_t e = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, q->device);
    q->blocks = (uint32_t)sms * BLOCKS_PER_SM;
    if (!e)
        e = cudaStreamCreateWithFlags(&q->stream, cudaStreamNonBlocking);
    if (!e)
        e = cudaHostAlloc((void **)&q->ring, PARTS * PART_RUNS * sizeof(*q->ring),
                          cudaHostAllocMapped | cudaHostAllocPortable);
    if (!e)
        e = make_events(q);
    return e ? e : warm_up(q);
}

int tarn_cuda_queue_open(int device, struct tarn_cuda_queue **q_p)
{
    int before, rc = enter(device, &before);
    if (rc)
        return rc;
    struct tarn_cuda_queue *q = calloc(1, sizeof(*q));
    if (!q) {
        leave(before);
        return tarn_fail(TARN_E_NO_MEMORY, "a queue of device %d: out of memory", device);
    }
    q->device = device;
    cudaError_t e = queue_make(q);
    leave(before);
    if (e) {
        rc = failed(e, "a stream and its events", device);
        tarn_cuda_queue_close(q);
        return rc;
    }
    *q_p = q;
    return 0;
}

void tarn_cuda_queue_close(struct tarn_cuda_queue *q)
{
    int before;
    if (!q)
        return;
    if (!enter(q->device, &before)) {
        if (q->stream)
            cudaStreamSynchronize(q->stream);
        for (int i = 0; i < MARKS; i++)
            if (q->marks[i])
                cudaEventDestroy(q->marks[i]);
        for (int i = 0; i < PARTS; i++)
            if (q->parts[i].done)
                cudaEventDestroy(q->parts[i].done);
        if (q->stream)
            cudaStreamDestroy(q->stream);
        if (q->ring)
            cudaFreeHost(q->ring);
        cudaGetLastError();
        leave(before);
    }
    free(q);
}

/* --- copies ------------------------------------------------------------------------------------- */

/* The next part of the ring, once its last launch is done; NULL: still under way. */
static struct part *part_free(struct tarn_cuda_queue *q)
{
    struct part *p = &q->parts[q->next_part];
    if (p->used && cudaEventQuery(p->done) == cudaErrorNotReady)
        return NULL;
    p->used = false;
    return p;
}

static uint32_t runs_of(const struct tarn_cuda_piece *p)
{
    return (uint32_t)((p->bytes + TARN_RUN_MAX - 1) / TARN_RUN_MAX);
}

/* As many small pieces as fit a part, from the first on; how many. */
static size_t fill_part(struct part *part, const struct tarn_cuda_piece *pieces, size_t n, uint32_t *nruns,
                        uint64_t *bytes)
{
    size_t i = 0;
    *nruns = 0;
    *bytes = 0;
    for (; i < n && pieces[i].bytes < LARGE && *nruns + runs_of(&pieces[i]) <= PART_RUNS; i++) {
        uint64_t from = (uint64_t)(uintptr_t)pieces[i].from, to = (uint64_t)(uintptr_t)pieces[i].to;
        for (uint64_t at = 0; at < pieces[i].bytes; at += TARN_RUN_MAX) {
            uint64_t left = pieces[i].bytes - at;
            part->runs[(*nruns)++] =
                (struct tarn_run){from + at, to + at, left < TARN_RUN_MAX ? left : TARN_RUN_MAX};
        }
        *bytes += pieces[i].bytes;
    }
    return i;
}

static int launch(struct tarn_cuda_queue *q, struct part *part, uint32_t nruns, uint64_t bytes)
{
    cudaError_t e = tarn_kernel_copy_runs(part->runs, nruns, bytes / nruns, q->blocks, q->stream);
    if (e)
        return broken(q, e, "the copy kernel");
    e = cudaEventRecord(part->done, q->stream);
    if (e)
        return broken(q, e, "cudaEventRecord");
    part->used = true;
    q->next_part = (q->next_part + 1) % PARTS;
    return 0;
}

static int copy_large(struct tarn_cuda_queue *q, const struct tarn_cuda_piece *p)
{
    cudaError_t e = cudaMemcpyAsync(p->to, p->from, p->bytes, cudaMemcpyDefault, q->stream);
    return e ? broken(q, e, "cudaMemcpyAsync") : 0;
}

static int copy_some(struct tarn_cuda_queue *q, const struct tarn_cuda_piece *pieces, size_t n, size_t *taken)
{
    *taken = 0;
    while (*taken < n) {
        uint32_t nruns;
        uint64_t bytes;
        int rc;
        if (pieces[*taken].bytes >= LARGE || n == 1) {
            rc = copy_large(q, &pieces[(*taken)++]);
        } else {
            struct part *part = part_free(q);
            if (!part)
                return 0;
            *taken += fill_part(part, pieces + *taken, n - *taken, &nruns, &bytes);
            rc = nruns ? launch(q, part, nruns, bytes) : 0;
        }
        if (rc)
            return rc;
    }
    return 0;
}

int tarn_cuda_copy(struct tarn_cuda_queue *q, const struct tarn_cuda_piece *pieces, size_t n, size_t *taken)
{
    int before, rc = q->broken ? failed(q->broken, "CUDA", q->device) : enter(q->device, &before);
    *taken = 0;
    if (rc)
        return rc;
    rc = copy_some(q, pieces, n, taken);
    leave(before);
    return rc;
}

int tarn_cuda_mark(struct tarn_cuda_queue *q, uint64_t *mark_p)
{
    int before, rc = q->marked - q->passed == MARKS ? TARN_E_AGAIN : enter(q->device, &before);
    if (rc)
        return rc;
    cudaError_t e = cudaEventRecord(q->marks[q->marked % MARKS], q->stream);
    leave(before);
    if (e)
        return broken(q, e, "cudaEventRecord");
    *mark_p = ++q->marked;
    return 0;
}

int tarn_cuda_poll(struct tarn_cuda_queue *q, uint64_t mark)
{
    while (q->passed < mark) {
        cudaError_t e = cudaEventQuery(q->marks[q->passed % MARKS]);
        if (e == cudaErrorNotReady)
            return TARN_E_AGAIN;
        if (e)
            return broken(q, e, "a copy");
        q->passed++;
    }
    return 0;
}

int tarn_cuda_after(struct tarn_cuda_queue *q, void *event)
{
    int before, rc = enter(q->device, &before);
    if (rc)
        return rc;
    cudaError_t e = cudaStreamWaitEvent(q->stream, event, 0);
    leave(before);
    return e ? broken(q, e, "cudaStreamWaitEvent") : 0;
}
