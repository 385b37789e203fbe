/* SPDX-License-Identifier: Apache-2.0 */
/* cuda.h for builds without the CUDA toolkit. */
#include "transport/cuda/cuda.h"

#include "base/error.h"

static int without(void)
{
    return tarn_fail(TARN_E_UNAVAILABLE,
                     "this tarn was built without CUDA: install the CUDA toolkit and build again");
}

int tarn_cuda_count(int *n_p)
{
    *n_p = 0;
    return without();
}

void tarn_cuda_versions(int *driver_p, int *runtime_p)
{
    *driver_p = *runtime_p = 0;
}

int tarn_cuda_describe(int device, struct tarn_cuda_device *d)
{
    (void)device, (void)d;
    return without();
}

int tarn_cuda_pci(int device, char pci[TARN_CUDA_PCI])
{
    (void)device, (void)pci;
    return without();
}

int tarn_cuda_find(const uint8_t uuid[TARN_CUDA_UUID], int *device_p)
{
    (void)uuid, (void)device_p;
    return without();
}

int tarn_cuda_free_bytes(int device, uint64_t *bytes_p)
{
    (void)device, (void)bytes_p;
    return without();
}

int tarn_cuda_lend(int device, int *before_p)
{
    (void)device, (void)before_p;
    return without();
}

void tarn_cuda_take_back(int before)
{
    (void)before;
}

int tarn_cuda_settle(int device)
{
    (void)device;
    return 0;
}

bool tarn_cuda_reaches(int device, int peer)
{
    (void)device, (void)peer;
    return false;
}

void tarn_cuda_memory_of(const void *addr, struct tarn_cuda_memory *m)
{
    (void)addr;
    *m = (struct tarn_cuda_memory){TARN_CUDA_HOST, -1, 0, UINTPTR_MAX};
}

int tarn_cuda_alloc(int device, uint64_t bytes, void **addr_p, uint8_t handle[TARN_CUDA_HANDLE])
{
    (void)device, (void)bytes, (void)addr_p, (void)handle;
    return without();
}

void tarn_cuda_free(int device, void *addr)
{
    (void)device, (void)addr;
}

int tarn_cuda_export(int device, void *begin, uint8_t handle[TARN_CUDA_HANDLE], uint64_t *number_p)
{
    (void)device, (void)begin, (void)handle, (void)number_p;
    return without();
}

int tarn_cuda_copy_now(int device, const struct tarn_cuda_piece *pieces, size_t n)
{
    (void)device, (void)pieces, (void)n;
    return without();
}

int tarn_cuda_open(int device, const uint8_t handle[TARN_CUDA_HANDLE], void **addr_p)
{
    (void)device, (void)handle, (void)addr_p;
    return without();
}

void tarn_cuda_close(int device, void *addr)
{
    (void)device, (void)addr;
}

int tarn_cuda_pin(void *addr, uint64_t bytes, bool writable)
{
    (void)addr, (void)bytes, (void)writable;
    return without();
}

void tarn_cuda_unpin(void *addr)
{
    (void)addr;
}

int tarn_cuda_queue_open(int device, struct tarn_cuda_queue **q_p)
{
    (void)device, (void)q_p;
    return without();
}

void tarn_cuda_queue_close(struct tarn_cuda_queue *q)
{
    (void)q;
}

int tarn_cuda_copy(struct tarn_cuda_queue *q, const struct tarn_cuda_piece *pieces, size_t n, size_t *taken)
{
    (void)q, (void)pieces, (void)n, (void)taken;
    return without();
}

struct tarn_cuda_piece *tarn_cuda_list(struct tarn_cuda_queue *q, size_t *room)
{
    (void)q, (void)room;
    return NULL;
}

int tarn_cuda_start(struct tarn_cuda_queue *q, size_t n, uint64_t bytes)
{
    (void)q, (void)n, (void)bytes;
    return without();
}

int tarn_cuda_start_pages(struct tarn_cuda_queue *q, const struct tarn_cuda_paged *buffer, size_t n, bool put)
{
    (void)q, (void)n, (void)buffer;
    (void)put;
    return without();
}

int tarn_cuda_mark(struct tarn_cuda_queue *q, uint64_t *mark_p)
{
    (void)q, (void)mark_p;
    return without();
}

int tarn_cuda_poll(struct tarn_cuda_queue *q, uint64_t mark)
{
    (void)q, (void)mark;
    return without();
}

void *tarn_cuda_mark_event(struct tarn_cuda_queue *q)
{
    (void)q;
    return NULL;
}

void tarn_cuda_relax(void)
{
}

int tarn_cuda_time(int device, uint64_t *at)
{
    (void)device, (void)at;
    return without();
}

int tarn_cuda_gather_ready(int device)
{
    (void)device;
    return without();
}

int tarn_cuda_gather(int device, const struct tarn_dev_table *table, const struct tarn_cuda_rows *r,
                     void *stream)
{
    (void)device, (void)table, (void)r, (void)stream;
    return without();
}

int tarn_cuda_passed(void *event)
{
    (void)event;
    return without();
}

int tarn_cuda_stream_wait(void *stream, void *event)
{
    (void)stream, (void)event;
    return without();
}

int tarn_cuda_dmabuf(const void *addr, uint64_t bytes, int *fd_p)
{
    (void)addr, (void)bytes, (void)fd_p;
    return without();
}

int tarn_cuda_flush(int device)
{
    (void)device;
    return without();
}
