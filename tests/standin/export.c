/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exports the stand-in's memory to other devices. A file takes the place of a dma-buf and names the exported
 * range. Code that plays the other device reads the file and finds the memory with tarn_standin_reach().
 */
#include "tests/standin/cuda_standin.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "transport/cuda/cuda.h"

/* The stand-in's GPUs have no PCI address. */
void tarn_cuda_versions(int *driver_p, int *runtime_p)
{
    const char *text = getenv("STANDIN_CUDA");
    *driver_p = *runtime_p = text ? (int)strtol(text, NULL, 10) : 12020;
}

int tarn_cuda_pci(int device, char pci[TARN_CUDA_PCI])
{
    (void)device, (void)pci;
    return tarn_fail(TARN_E_UNSUPPORTED, "CUDA stand-in: no PCI device");
}

int tarn_cuda_dmabuf(const void *addr, uint64_t bytes, int *fd_p)
{
    uintptr_t from = (uintptr_t)addr & ~(uintptr_t)4095,
              to = ((uintptr_t)addr + bytes + 4095) & ~(uintptr_t)4095;
    struct tarn_standin_export e = {from, to - from};
    struct tarn_cuda_memory m;
    tarn_cuda_memory_of((const void *)from, &m);
    if (m.kind != TARN_CUDA_DEVICE || to > m.end)
        return tarn_fail(TARN_E_UNSUPPORTED, "stand-in: a dma-buf is of memory of one allocation");
    int rc = tarn_standin_check(m.device, "dmabuf");
    if (rc)
        return rc;
    int fd = memfd_create("tarn-standin-dmabuf", MFD_CLOEXEC);
    if (fd >= 0 && pwrite(fd, &e, sizeof(e), 0) == sizeof(e)) {
        *fd_p = fd;
        return 0;
    }
    rc = tarn_fail(TARN_E_SYSTEM, "stand-in: dma-buf: %m");
    if (fd >= 0)
        close(fd);
    return rc;
}

int tarn_cuda_flush(int device)
{
    return tarn_standin_check(device, "flush");
}
