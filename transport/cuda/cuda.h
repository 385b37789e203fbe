/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything tarn needs of CUDA. The build links one of these:
 *
 *   cuda_runtime.c, cuda_queue.c, kernels.cu   with the CUDA toolkit; needs no driver until it is used
 *   cuda_none.c                                without: there are no devices, all memory is the host's
 *
 * Only calls that name a device make a CUDA context, so a process that uses only host memory never has one.
 * Calls change the calling thread's current device and restore it.
 *
 * Errors: 0, or a negative TARN_E_* with a sentence that has the CUDA call and its message. A permanent
 * error (a fault of a kernel, a lost device) is UNAVAILABLE: give the device up.
 */
#ifndef TARN_TRANSPORT_CUDA_H
#define TARN_TRANSPORT_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TARN_CUDA_UUID 16
#define TARN_CUDA_HANDLE 64

/* --- devices ------------------------------------------------------------------------------------ */

struct tarn_cuda_device {
    uint8_t uuid[TARN_CUDA_UUID];
    char name[64];
};

/* The number of devices. UNAVAILABLE: none, with the reason (no driver, hidden, built without CUDA). */
int tarn_cuda_count(int *n_p);
/* As CUDA counts, 12020 for 12.2: the newest version that the driver has, 0 without a driver; and that of the
 * runtime that tarn was built with, 0 without CUDA. */
void tarn_cuda_versions(int *driver_p, int *runtime_p);
int tarn_cuda_describe(int device, struct tarn_cuda_device *d);
/* Ordinals differ between processes (CUDA_VISIBLE_DEVICES); uuids do not. NOT_REACHABLE: not visible. */
int tarn_cuda_find(const uint8_t uuid[TARN_CUDA_UUID], int *device_p);
/* The device's name in sysfs: "0000:0a:00.0". */
#define TARN_CUDA_PCI 32
int tarn_cuda_pci(int device, char pci[TARN_CUDA_PCI]);
/* The device's free memory now. */
int tarn_cuda_free_bytes(int device, uint64_t *bytes_p);
/* Makes the device current in the calling thread, with its context, for code that uses the current one;
 * then restores the previous one. */
int tarn_cuda_lend(int device, int *before_p);
void tarn_cuda_take_back(int before);
/* Waits for other users' work on the device's default stream. cuMemcpy() from pageable memory returns
 * before the bytes have arrived. */
int tarn_cuda_settle(int device);
/* Can kernels and copies on `device` access memory of `peer`? Enables that access. */
bool tarn_cuda_reaches(int device, int peer);

/* --- memory ------------------------------------------------------------------------------------- */

enum tarn_cuda_kind { TARN_CUDA_HOST, TARN_CUDA_PINNED, TARN_CUDA_MANAGED, TARN_CUDA_DEVICE };

struct tarn_cuda_memory {
    enum tarn_cuda_kind kind;
    int device;           /* for DEVICE, and the preferred one for MANAGED; else -1 */
    uintptr_t begin, end; /* address range of the same allocation; HOST: only the address itself, or
                           * everything */
};

/* The kind of memory at an address. Until this process has loaded the driver, all is HOST, which is cheap
 * to find out. Any thread. */
void tarn_cuda_memory_of(const void *addr, struct tarn_cuda_memory *m);

/* Allocates a pool's device memory, with the handle by which other processes open it. NO_MEMORY says how
 * much is free. */
int tarn_cuda_alloc(int device, uint64_t bytes, void **addr_p, uint8_t handle[TARN_CUDA_HANDLE]);
void tarn_cuda_free(int device, void *addr);
/* The handle by which other processes open the allocation of `device` that begins at `begin`, and a number
 * that no other allocation of this process ever has. UNSUPPORTED: CUDA has no handle for this kind of memory.
 */
int tarn_cuda_export(int device, void *begin, uint8_t handle[TARN_CUDA_HANDLE], uint64_t *number_p);
/* Maps another process's memory for `device`, which may differ from the device that the memory is on. */
int tarn_cuda_open(int device, const uint8_t handle[TARN_CUDA_HANDLE], void **addr_p);
void tarn_cuda_close(int device, void *addr);
/* Makes mapped host memory accessible to all devices, at its own address. Slow for large ranges. */
int tarn_cuda_pin(void *addr, uint64_t bytes, bool writable);
void tarn_cuda_unpin(void *addr);

/* --- copies ------------------------------------------------------------------------------------- */

/*
 * A queue: asynchronous copies on one device, carried out in order. One thread at a time. After a call,
 * only the memory copied from and to is still used.
 */
struct tarn_cuda_queue;

struct tarn_cuda_piece {
    const void *from;
    void *to;
    uint64_t bytes;
};

/* Copies n pieces between this device's memory and the host's, and waits, on a stream of its own: for few
 * bytes that come seldom. */
int tarn_cuda_copy_now(int device, const struct tarn_cuda_piece *pieces, size_t n);

/* Also warms up everything copies need, so that the first one is not slower. */
int tarn_cuda_queue_open(int device, struct tarn_cuda_queue **q_p);
/* Waits for running copies. NULL is allowed. */
void tarn_cuda_queue_close(struct tarn_cuda_queue *q);
/*
 * Copies pieces between memories that the device reaches (its own, a peer's, pinned host memory). Pieces
 * must not overlap; one may span adjoining allocations. *taken: how many the queue had room for; give the
 * others again later. Many small pieces become one launch. Large pieces and single ones go to the copy
 * engines.
 */
int tarn_cuda_copy(struct tarn_cuda_queue *q, const struct tarn_cuda_piece *pieces, size_t n, size_t *taken);
/*
 * The same for many pieces made one by one, written directly to where the device reads them. list():
 * returns room for *room pieces of 1 to TARN_CUDA_PIECE_MAX bytes each; NULL: none now. start(): launches
 * the first n that were written there, `bytes` in total. A list that was not started is dropped by the
 * next call, except by mark() and poll().
 */
#define TARN_CUDA_PIECE_MAX (64u << 10)
struct tarn_cuda_piece *tarn_cuda_list(struct tarn_cuda_queue *q, size_t *room);
int tarn_cuda_start(struct tarn_cuda_queue *q, size_t n, uint64_t bytes);

/* A buffer of pages: page p of base b lies at bases[b] + p * stride. */
struct tarn_cuda_paged {
    void *const *bases;
    uint32_t nbases;             /* at most TARN_CUDA_BASES_MAX */
    uint64_t page_bytes, stride; /* page_bytes: 1 to TARN_CUDA_PIECE_MAX */
};
#define TARN_CUDA_BASES_MAX 256
/* Some pages of all bases. Page number j of base b belongs to far + b * far_stride + j * page_bytes. */
struct tarn_cuda_pages {
    uint8_t *far;
    uint64_t far_stride;
    uint32_t n, page[11];
};
#define TARN_CUDA_PAGES_MAX 11
/* The same for the first n struct tarn_cuda_pages that were written to what list() returned, which has room
 * for fewer of them. put: from the buffer to far. */
int tarn_cuda_start_pages(struct tarn_cuda_queue *q, const struct tarn_cuda_paged *buffer, size_t n,
                          bool put);
static inline size_t tarn_cuda_pages_room(size_t pieces)
{
    return pieces * sizeof(struct tarn_cuda_piece) / sizeof(struct tarn_cuda_pages);
}
/* Sets a mark after everything given so far. Marks count up from 1. Free of cost after a launch. AGAIN:
 * too many marks have not been polled. */
int tarn_cuda_mark(struct tarn_cuda_queue *q, uint64_t *mark_p);
/* 0: everything before the mark is done. AGAIN: not yet. */
int tarn_cuda_poll(struct tarn_cuda_queue *q, uint64_t mark);
/* An event (cudaEvent_t) after the last mark. Ask for it before giving anything else. NULL: CUDA failed,
 * or too many events are in use. The queue owns it, and records it again for a later mark after this one
 * was polled. */
void *tarn_cuda_mark_event(struct tarn_cuda_queue *q);

/* --- hit tables (include/tarn/device.h) --------------------------------------------------------- */

/* From now on CUDA calls of this thread do not disturb other threads' captures of graphs. */
void tarn_cuda_relax(void);
/* Has the device store its tarn_dev_now() to pinned memory some time later. Does not wait. */
int tarn_cuda_time(int device, uint64_t *at);

struct tarn_dev_table;
struct tarn_cuda_rows {
    const uint32_t *rows;
    uint32_t n; /* at least 1 */
    void *to;
    uint64_t stride;
    int32_t *status;
};
/* Before the device's first gather, while no graph is captured and no kernel waits for this process. */
int tarn_cuda_gather_ready(int device);
/* Launches tarn_dev_get() on a stream (cudaStream_t) of the device, with memory that it reaches. */
int tarn_cuda_gather(int device, const struct tarn_dev_table *table, const struct tarn_cuda_rows *r,
                     void *stream);

/* --- events and streams of the application ------------------------------------------------------ */

/* Has everything recorded before the event (cudaEvent_t) ended? AGAIN: not yet. UNAVAILABLE: it failed.
 * Never waits; any thread; makes no context. */
int tarn_cuda_passed(void *event);

/* Makes later work of the stream (cudaStream_t, of the thread's device) wait for what the event was
 * recorded after, on any device. The event is not needed after the call. */
int tarn_cuda_stream_wait(void *stream, void *event);

/* --- other devices that reach GPU memory -------------------------------------------------------- */

/* Exports the whole pages (of the host's page size) around a range of device memory as a dma-buf; the
 * first page is at offset 0. An importer keeps it alive; the caller closes the descriptor. UNSUPPORTED:
 * not possible. */
int tarn_cuda_dmabuf(const void *addr, uint64_t bytes, int *fd_p);
/* Makes other devices' earlier writes to the device's memory visible to all work started there from now
 * on. */
int tarn_cuda_flush(int device);

#ifdef __cplusplus
}
#endif
#endif
