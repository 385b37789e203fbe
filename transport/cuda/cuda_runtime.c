/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda.h by the CUDA runtime: devices, memory, and the application's objects. cuda_queue.c has the copies.
 * The runtime is linked statically; it looks for the driver when first used.
 */
#include "transport/cuda/cuda_runtime.h"

#include <ctype.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "base/error.h"
#include "base/text.h"

#define LOOK_NS 10000000u

/* --- errors ------------------------------------------------------------------------------------- */

bool tarn_cuda_is_lasting(cudaError_t e)
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

int tarn_cuda_failed(cudaError_t e, const char *call, int device)
{
    cudaGetLastError();
    if (tarn_cuda_is_lasting(e))
        return tarn_fail(TARN_E_UNAVAILABLE,
                         "%s on device %d: %s: the device is of no more use to this process", call, device,
                         cudaGetErrorString(e));
    return tarn_fail(e == cudaErrorMemoryAllocation ? TARN_E_NO_MEMORY : TARN_E_SYSTEM, "%s on device %d: %s",
                     call, device, cudaGetErrorString(e));
}

/* --- devices ------------------------------------------------------------------------------------ */

int tarn_cuda_enter(int device, int *before)
{
    cudaError_t e = cudaGetDevice(before);
    if (!e && *before != device)
        e = cudaSetDevice(device);
    return e ? tarn_cuda_failed(e, "cudaSetDevice", device) : 0;
}

void tarn_cuda_leave(int device, int before)
{
    if (before != device)
        cudaSetDevice(before);
}

/* Here setting the device is meant to make the context. Before CUDA 12 cudaFree() does that. */
int tarn_cuda_lend(int device, int *before_p)
{
    cudaError_t e = cudaGetDevice(before_p);
    if (!e)
        e = cudaSetDevice(device);
    if (!e)
        e = cudaFree(NULL);
    return e ? tarn_cuda_failed(e, "cudaSetDevice", device) : 0;
}

void tarn_cuda_take_back(int before)
{
    cudaSetDevice(before);
}

int tarn_cuda_settle(int device)
{
    int before, rc = tarn_cuda_enter(device, &before);
    if (rc)
        return rc;
    cudaError_t e = cudaStreamSynchronize(cudaStreamLegacy);
    tarn_cuda_leave(device, before);
    return e ? tarn_cuda_failed(e, "cudaStreamSynchronize", device) : 0;
}

/* Without a driver, CUDA's own message is about versions. */
static int no_device(cudaError_t e)
{
    int driver = 0;
    if (e == cudaErrorInsufficientDriver && (cudaDriverGetVersion(&driver) || driver == 0))
        return tarn_fail(TARN_E_UNAVAILABLE, "no NVIDIA driver here: install it where there is a GPU");
    if (e == cudaErrorInsufficientDriver)
        return tarn_fail(TARN_E_UNAVAILABLE,
                         "the NVIDIA driver is for CUDA %d.%d, this build for %d.%d: install a newer driver",
                         driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                         CUDART_VERSION % 1000 / 10);
    if (!e || e == cudaErrorNoDevice)
        return tarn_fail(TARN_E_UNAVAILABLE,
                         "no GPU is visible to this process: see nvidia-smi -L and CUDA_VISIBLE_DEVICES");
    return tarn_fail(TARN_E_UNAVAILABLE, "CUDA: %s", cudaGetErrorString(e));
}

int tarn_cuda_count(int *n_p)
{
    cudaError_t e = cudaGetDeviceCount(n_p);
    if (!e && *n_p > 0)
        return 0;
    *n_p = 0;
    cudaGetLastError();
    return no_device(e);
}

void tarn_cuda_versions(int *driver_p, int *runtime_p)
{
    *driver_p = 0;
    *runtime_p = CUDART_VERSION;
    cudaDriverGetVersion(driver_p);
    cudaGetLastError();
}

int tarn_cuda_describe(int device, struct tarn_cuda_device *d)
{
    struct cudaDeviceProp p;
    cudaError_t e = cudaGetDeviceProperties(&p, device);
    if (e)
        return tarn_cuda_failed(e, "cudaGetDeviceProperties", device);
    memcpy(d->uuid, p.uuid.bytes, sizeof(d->uuid));
    snprintf(d->name, sizeof(d->name), "%.63s", p.name);
    return 0;
}

int tarn_cuda_pci(int device, char pci[TARN_CUDA_PCI])
{
    cudaError_t e = cudaDeviceGetPCIBusId(pci, TARN_CUDA_PCI, device);
    for (char *at = pci; !e && *at; at++)
        *at = (char)tolower((unsigned char)*at); /* as the kernel writes it */
    return e ? tarn_cuda_failed(e, "cudaDeviceGetPCIBusId", device) : 0;
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
                     "CUDA: none of the %d visible devices is the one asked for: see CUDA_VISIBLE_DEVICES",
                     n);
}

int tarn_cuda_free_bytes(int device, uint64_t *bytes_p)
{
    size_t unused = 0, total;
    int before, rc = tarn_cuda_enter(device, &before);
    if (rc)
        return rc;
    cudaError_t e = cudaMemGetInfo(&unused, &total);
    tarn_cuda_leave(device, before);
    *bytes_p = unused;
    return e ? tarn_cuda_failed(e, "cudaMemGetInfo", device) : 0;
}

bool tarn_cuda_reaches(int device, int peer)
{
    int can = 0, before;
    if (device == peer)
        return true;
    if (cudaDeviceCanAccessPeer(&can, device, peer) || !can || tarn_cuda_enter(device, &before))
        return false;
    cudaError_t e = cudaDeviceEnablePeerAccess(peer, 0);
    tarn_cuda_leave(device, before);
    cudaGetLastError();
    return !e || e == cudaErrorPeerAccessAlreadyEnabled;
}

/* --- memory ------------------------------------------------------------------------------------- */

typedef CUresult attributes_fn(unsigned n, CUpointer_attribute *what, void **out, CUdeviceptr at);

/* The number of libraries that the process has ever loaded. */
static int take_loads(struct dl_phdr_info *info, size_t bytes, void *arg)
{
    (void)bytes;
    *(uint64_t *)arg = info->dlpi_adds;
    return 1;
}

/* Looks for the driver, only if a library was loaded since the last look: looking for a missing one goes
 * through the file system. */
static attributes_fn *find_attributes(void)
{
    static _Atomic uint64_t looked; /* that number at the last failed look */
    attributes_fn *fn = NULL;
    uint64_t loads = 0;
    dl_iterate_phdr(take_loads, &loads);
    if (atomic_load(&looked) == loads)
        return NULL;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (driver) {
        *(void **)&fn = dlsym(driver, "cuPointerGetAttributes");
        dlclose(driver);
    }
    if (!fn)
        atomic_store(&looked, loads);
    return fn;
}

/*
 * The driver's function, if this process has loaded the driver; a process with device memory has. Looks
 * every 10 ms at most: nobody has device memory that soon after loading the driver. The driver stays
 * loaded.
 */
static attributes_fn *driver_attributes(void)
{
    static _Atomic(attributes_fn *) known;
    static _Atomic uint64_t again_ns;
    attributes_fn *fn = atomic_load_explicit(&known, memory_order_acquire);
    struct timespec t;
    if (fn)
        return fn;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    uint64_t now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    if (now < atomic_load_explicit(&again_ns, memory_order_acquire))
        return NULL;
    fn = find_attributes();
    if (fn)
        atomic_store_explicit(&known, fn, memory_order_release);
    else
        atomic_store_explicit(&again_ns, now + LOOK_NS, memory_order_release);
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

static void ask_driver(attributes_fn *get, const void *addr, struct tarn_cuda_memory *m)
{
    unsigned type = 0, managed = 0;
    int device = -1;
    CUdeviceptr begin = 0;
    size_t bytes = 0;
    CUpointer_attribute what[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                  CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    void *out[] = {&type, &managed, &device, &begin, &bytes};
    if (get(5, what, out, (CUdeviceptr)(uintptr_t)addr) || !type)
        return;
    m->kind = kind_of(type, managed);
    m->device = device;
    if (bytes) {
        m->begin = (uintptr_t)begin;
        m->end = (uintptr_t)begin + bytes;
    }
}

void tarn_cuda_memory_of(const void *addr, struct tarn_cuda_memory *m)
{
    attributes_fn *get = driver_attributes();

    *m = (struct tarn_cuda_memory){TARN_CUDA_HOST, -1, 0, UINTPTR_MAX};
    if (!get)
        return;
    m->begin = (uintptr_t)addr;
    m->end = (uintptr_t)addr + 1;
    ask_driver(get, addr, m);
}

int tarn_cuda_alloc(int device, uint64_t bytes, void **addr_p, uint8_t handle[TARN_CUDA_HANDLE])
{
    cudaIpcMemHandle_t h;
    char want[16], have[16];
    uint64_t unused = 0;
    int before, rc = tarn_cuda_enter(device, &before);
    if (rc)
        return rc;
    cudaError_t e = cudaMalloc(addr_p, bytes);
    if (!e && (e = cudaIpcGetMemHandle(&h, *addr_p)))
        cudaFree(*addr_p);
    tarn_cuda_leave(device, before);
    if (!e) {
        memcpy(handle, &h, TARN_CUDA_HANDLE);
        return 0;
    }
    if (e != cudaErrorMemoryAllocation)
        return tarn_cuda_failed(e, "cudaMalloc", device);
    cudaGetLastError();
    tarn_cuda_free_bytes(device, &unused);
    tarn_size_format(bytes, want);
    tarn_size_format(unused, have);
    return tarn_fail(
        TARN_E_NO_MEMORY,
        "device %d: %s of memory are needed and %s are free: make the pool smaller or free memory", device,
        want, have);
}

void tarn_cuda_free(int device, void *addr)
{
    int before;
    if (!addr || tarn_cuda_enter(device, &before))
        return;
    cudaFree(addr);
    tarn_cuda_leave(device, before);
}

int tarn_cuda_export(int device, void *begin, uint8_t handle[TARN_CUDA_HANDLE], uint64_t *number_p)
{
    attributes_fn *get = driver_attributes();
    unsigned long long number = 0;
    CUpointer_attribute what[] = {CU_POINTER_ATTRIBUTE_BUFFER_ID};
    void *out[] = {&number};
    cudaIpcMemHandle_t h;
    int before, rc = tarn_cuda_enter(device, &before);
    if (rc)
        return rc;
    cudaError_t e = cudaIpcGetMemHandle(&h, begin);
    tarn_cuda_leave(device, before);
    cudaGetLastError();
    if (e && tarn_cuda_is_lasting(e))
        return tarn_cuda_failed(e, "cudaIpcGetMemHandle", device);
    if (e || !get || get(1, what, out, (CUdeviceptr)(uintptr_t)begin))
        return tarn_fail(TARN_E_UNSUPPORTED,
                         "memory of GPU %d at %p: other processes cannot open it (cudaIpcGetMemHandle: %s): "
                         "allocate it with cudaMalloc(), not from a pool or by cuMemMap()",
                         device, begin, cudaGetErrorString(e));
    memcpy(handle, &h, TARN_CUDA_HANDLE);
    *number_p = number;
    return 0;
}

int tarn_cuda_copy_now(int device, const struct tarn_cuda_piece *pieces, size_t n)
{
    cudaStream_t stream;
    int before, rc = tarn_cuda_enter(device, &before);
    if (rc)
        return rc;
    cudaError_t e = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (!e) {
        for (size_t i = 0; !e && i < n; i++)
            e = cudaMemcpyAsync(pieces[i].to, pieces[i].from, pieces[i].bytes, cudaMemcpyDefault, stream);
        cudaError_t ended = cudaStreamSynchronize(stream);
        e = e ? e : ended;
        cudaStreamDestroy(stream);
    }
    tarn_cuda_leave(device, before);
    cudaGetLastError();
    return e ? tarn_cuda_failed(e, "a copy", device) : 0;
}

int tarn_cuda_open(int device, const uint8_t handle[TARN_CUDA_HANDLE], void **addr_p)
{
    cudaIpcMemHandle_t h;
    int before, rc = tarn_cuda_enter(device, &before);
    if (rc)
        return rc;
    memcpy(&h, handle, sizeof(h));
    cudaError_t e = cudaIpcOpenMemHandle(addr_p, h, cudaIpcMemLazyEnablePeerAccess);
    tarn_cuda_leave(device, before);
    return e ? tarn_cuda_failed(e, "cudaIpcOpenMemHandle", device) : 0;
}

void tarn_cuda_close(int device, void *addr)
{
    int before;
    if (!addr || tarn_cuda_enter(device, &before))
        return;
    cudaIpcCloseMemHandle(addr);
    cudaGetLastError();
    tarn_cuda_leave(device, before);
}

int tarn_cuda_pin(void *addr, uint64_t bytes, bool writable)
{
    unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
    cudaError_t e = cudaHostRegister(addr, bytes, flags | (writable ? 0 : cudaHostRegisterReadOnly));
    return e ? tarn_cuda_failed(e, "cudaHostRegister", -1) : 0;
}

void tarn_cuda_unpin(void *addr)
{
    cudaHostUnregister(addr);
    cudaGetLastError();
}

/* --- events and streams of the application ------------------------------------------------------ */

/* Asks the driver, because the runtime would make a context for the calling thread. A process with an
 * event or stream has loaded the driver. NULL: it lacks this call. */
static void *driver_call(_Atomic(void *) *known, const char *name)
{
    void *fn = atomic_load_explicit(known, memory_order_acquire);
    void *driver = fn ? NULL : dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (driver) {
        fn = dlsym(driver, name);
        dlclose(driver);
        atomic_store_explicit(known, fn, memory_order_release);
    }
    return fn;
}

/* Driver and runtime number their errors alike. */
static int driver_failed(CUresult r, const char *call)
{
    cudaError_t e = (cudaError_t)r;
    if (tarn_cuda_is_lasting(e))
        return tarn_fail(TARN_E_UNAVAILABLE, "%s: %s: the device is of no more use to this process", call,
                         cudaGetErrorString(e));
    return tarn_fail(TARN_E_INVALID, "%s: %s", call, cudaGetErrorString(e));
}

int tarn_cuda_passed(void *event)
{
    static _Atomic(void *) known;
    CUresult (*query)(CUevent e);
    *(void **)&query = driver_call(&known, "cuEventQuery");
    CUresult r = query ? query(event) : CUDA_ERROR_NOT_INITIALIZED;
    if (r == CUDA_ERROR_NOT_READY)
        return TARN_E_AGAIN;
    return r ? driver_failed(r, "cuEventQuery of the event to wait for") : 0;
}

int tarn_cuda_stream_wait(void *stream, void *event)
{
    static _Atomic(void *) known;
    CUresult (*wait)(CUstream s, CUevent e, unsigned flags);
    *(void **)&wait = driver_call(&known, "cuStreamWaitEvent");
    CUresult r = wait ? wait(stream, event, 0) : CUDA_ERROR_NOT_INITIALIZED;
    return r ? driver_failed(r, "cuStreamWaitEvent") : 0;
}

/* --- other devices that reach GPU memory -------------------------------------------------------- */

typedef CUresult export_fn(void *handle, CUdeviceptr at, size_t bytes, CUmemRangeHandleType type,
                           unsigned long long flags);

/* The driver's call needs a current context. Setting the device makes that of the memory's device current. */
static int export_pages(export_fn *get, int device, uintptr_t from, uint64_t bytes, int *fd_p)
{
    int before, rc = tarn_cuda_enter(device, &before);
    if (rc)
        return rc;
    cudaSetDevice(device);
    CUresult r = get(fd_p, (CUdeviceptr)from, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    tarn_cuda_leave(device, before);
    return r ? tarn_fail(TARN_E_UNSUPPORTED, "cuMemGetHandleForAddressRange: %s",
                         cudaGetErrorString((cudaError_t)r))
             : 0;
}

int tarn_cuda_dmabuf(const void *addr, uint64_t bytes, int *fd_p)
{
    static _Atomic(void *) known;
    struct tarn_cuda_memory m;
    export_fn *get;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)addr & ~(page - 1);
    uintptr_t to = ((uintptr_t)addr + bytes + page - 1) & ~(page - 1);
    *(void **)&get = driver_call(&known, "cuMemGetHandleForAddressRange");
    if (!get)
        return tarn_fail(TARN_E_UNSUPPORTED, "CUDA: the driver has no cuMemGetHandleForAddressRange");
    tarn_cuda_memory_of(addr, &m);
    int rc = m.kind == TARN_CUDA_DEVICE ? export_pages(get, m.device, from, to - from, fd_p)
                                        : tarn_fail(TARN_E_UNSUPPORTED, "CUDA: no memory of a GPU");
    if (!rc)
        fcntl(*fd_p, F_SETFD, FD_CLOEXEC);
    return rc;
}

/* Nothing to do if the platform orders writes up to their target device. */
int tarn_cuda_flush(int device)
{
    int order = 0, before;
    cudaError_t e = cudaDeviceGetAttribute(&order, cudaDevAttrGPUDirectRDMAWritesOrdering, device);
    if (!e && order >= cudaGPUDirectRDMAWritesOrderingOwner)
        return 0;
    int rc = tarn_cuda_enter(device, &before);
    if (rc)
        return rc;
    e = cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTargetCurrentDevice,
                                           cudaFlushGPUDirectRDMAWritesToOwner);
    tarn_cuda_leave(device, before);
    return e ? tarn_cuda_failed(e, "cudaDeviceFlushGPUDirectRDMAWrites", device) : 0;
}
