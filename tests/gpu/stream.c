/* SPDX-License-Identifier: Apache-2.0 */
/* tests/stream.h with the CUDA runtime. */
#include "tests/stream.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "tests/harness.h"

struct stream {
    int device;
    cudaStream_t handle;
};

static void must(cudaError_t e)
{
    if (e)
        fail_msg("%s", cudaGetErrorString(e));
}

struct stream *stream_open(int device)
{
    struct stream *s = calloc(1, sizeof(*s));
    assert_non_null(s);
    s->device = device;
    must(cudaSetDevice(device));
    must(cudaStreamCreateWithFlags(&s->handle, cudaStreamNonBlocking));
    return s;
}

void stream_close(struct stream *s)
{
    must(cudaStreamSynchronize(s->handle));
    must(cudaStreamDestroy(s->handle));
    free(s);
}

void *stream_handle(struct stream *s)
{
    must(cudaSetDevice(s->device));
    return s->handle;
}

void stream_fill(struct stream *s, void *to, uint8_t byte, size_t bytes)
{
    must(cudaMemsetAsync(to, byte, bytes, stream_handle(s)));
}

void stream_copy(struct stream *s, void *to, const void *from, size_t bytes)
{
    must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_handle(s)));
}

void stream_copy_each(struct stream *s, const struct tarn_cuda_piece *pieces, size_t n)
{
    cudaStream_t stream = stream_handle(s);
    cudaError_t e = cudaSuccess;
    for (size_t i = 0; i < n && !e; i++)
        e = cudaMemcpyAsync(pieces[i].to, pieces[i].from, pieces[i].bytes, cudaMemcpyDefault, stream);
    must(e);
    must(cudaStreamSynchronize(stream));
}

void *stream_event(struct stream *s)
{
    cudaEvent_t event;
    stream_handle(s);
    must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    must(cudaEventRecord(event, s->handle));
    return event;
}

void stream_event_free(void *event)
{
    must(cudaEventDestroy(event));
}

bool stream_is_idle(struct stream *s)
{
    cudaError_t e = cudaStreamQuery(s->handle);
    if (e != cudaErrorNotReady)
        must(e);
    return e == cudaSuccess;
}

void stream_hold(struct stream *s, const uint32_t *word)
{
    CUresult (*wait)(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    assert_non_null(driver);
    *(void **)&wait = dlsym(driver, "cuStreamWaitValue32_v2");
    assert_non_null(wait);
    must((cudaError_t)wait(stream_handle(s), (CUdeviceptr)(uintptr_t)word, 1, CU_STREAM_WAIT_VALUE_EQ));
    dlclose(driver);
}

void *managed_new(size_t bytes)
{
    void *addr;
    must(cudaMallocManaged(&addr, bytes, cudaMemAttachGlobal));
    return addr;
}

void managed_free(void *addr, size_t bytes)
{
    (void)bytes;
    must(cudaFree(addr));
}
