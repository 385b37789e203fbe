/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/cuda/cuda.h"
#include "transport/cuda/cuda_runtime.h"
#include "transport/cuda/table_kernels.h"

void tarn_cuda_relax(void)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    cudaGetLastError();
}

int tarn_cuda_time(int device, uint64_t *at)
{
    cudaStream_t stream;
    int before, rc = tarn_cuda_enter(device, &before);
    if (rc)
        return rc;
    cudaError_t e = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (!e) {
        e = tarn_kernel_time(at, stream);
        cudaStreamDestroy(stream);
    }
    tarn_cuda_leave(device, before);
    cudaGetLastError();
    return e ? tarn_cuda_failed(e, "a kernel", device) : 0;
}

int tarn_cuda_gather_ready(int device)
{
    struct tarn_kernel_device d;
    int before, rc = tarn_cuda_enter(device, &before);
    if (rc)
        return rc;
    cudaError_t e = tarn_kernel_look(device, &d);
    if (!e)
        e = tarn_kernel_gather_ready();
    tarn_cuda_leave(device, before);
    return e ? tarn_cuda_failed(e, "cudaFuncSetAttribute", device) : 0;
}

int tarn_cuda_gather(int device, const struct tarn_dev_table *table, const struct tarn_cuda_rows *r,
                     void *stream)
{
    struct tarn_kernel_device d;
    int before, rc = tarn_cuda_enter(device, &before);
    if (rc)
        return rc;
    cudaError_t e = tarn_kernel_look(device, &d);
    if (!e)
        e = tarn_kernel_gather(table, r->rows, r->n, r->to, r->stride, r->status, &d, stream);
    tarn_cuda_leave(device, before);
    cudaGetLastError();
    return e ? tarn_cuda_failed(e, "a gather", device) : 0;
}
