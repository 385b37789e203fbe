/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All that tarn asks of CUDA. One of these is linked:
 *   cuda_runtime.c, cuda_queue.c, kernels.cu   where the CUDA toolkit was found; needs no driver until it is
 * used cuda_none.c                   elsewhere: there are no devices, all memory is the host's
 *
 * Nothing here makes a CUDA context but calls that name a device: a process that keeps to host memory
 * never has one. Calls change the calling thread's current device and put it back.
 *
 * Errors: 0 or a negative TARN_E_* with a sentence that names the CUDA call and its words. An error that
 * CUDA repeats for ever (a fault of a kernel, a lost device) is UNAVAILABLE: give the device up.
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
    uint64_t total_bytes;
};

/* How many there are. UNAVAILABLE: none, with the reason (no driver, hidden, built without). */
int tarn_cuda_count(int *n_p);
int tarn_cuda_describe(int device, struct tarn_cuda_device *d);
/* Ordinals differ from process to process (CUDA_VISIBLE_DEVICES), uuids do not. NOT_REACHABLE: not visible.
 */
int tarn_cuda_find(const uint8_t uuid[TARN_CUDA_UUID], int *device_p);
/* Where sysfs has it: "0000:0a:00.0". */
#define TARN_CUDA_PCI 32
int tarn_cuda_pci(int device, char pci[TARN_CUDA_PCI]);
/* Free memory of a device now. */
int tarn_cuda_free_bytes(int device, uint64_t *bytes_p);
/* Makes the device, and its context, the calling thread's, for code that takes the current one; and puts back
 * what was there. */
int tarn_cuda_lend(int device, int *before_p);
void tarn_cuda_take_back(int before);
/* Waits for what others have given to the device's default stream: of a copy from pageable memory, cuMemcpy()
 * returns before the bytes are there. */
int tarn_cuda_settle(int device);
/* Whether kernels and copies on `device` reach memory of `peer`; enables it. */
bool tarn_cuda_reaches(int device, int peer);

/* --- memory ------------------------------------------------------------------------------------- */

enum tarn_cuda_kind { TARN_CUDA_HOST, TARN_CUDA_PINNED, TARN_CUDA_MANAGED, TARN_CUDA_DEVICE };

struct tarn_cuda_memory {
    enum tarn_cuda_kind kind;
    int device;           /* DEVICE, and what MANAGED prefers; else -1 */
    uintptr_t begin, end; /* addresses of the same allocation; HOST: just the one asked about, or all */
};

/* What an address is. While this process has not loaded the driver all are HOST: that is cheap to find out.
 * Any thread. */
void tarn_cuda_memory_of(const void *addr, struct tarn_cuda_memory *m);

/* Device memory of a pool, and the handle other processes open it by. NO_MEMORY says what is free. */
int tarn_cuda_alloc(int device, uint64_t bytes, void **addr_p, uint8_t handle[TARN_CUDA_HANDLE]);
void tarn_cuda_free(int device, void *addr);
/* Maps another process's memory for use by `device`, which may be another one than it is on. */
int tarn_cuda_open(int device, const uint8_t handle[TARN_CUDA_HANDLE], void **addr_p);
void tarn_cuda_close(int device, void *addr);
/* Makes host memory that is mapped here reachable by all devices, at its own address. Large ranges take long.
 */
int tarn_cuda_pin(void *addr, uint64_t bytes, bool writable);
void tarn_cuda_unpin(void *addr);

/* --- copies ------------------------------------------------------------------------------------- */

/*
 * A queue: copies carried out in the order given, on one device, without a thread waiting. One thread at
 * a time. Nothing of the caller's but the memory copied from and to is used after a call.
 */
struct tarn_cuda_queue;

struct tarn_cuda_piece {
    const void *from;
    void *to;
    uint64_t bytes;
};

/* Warms all that copies need, so that the first one is as fast as the others. */
int tarn_cuda_queue_open(int device, struct tarn_cuda_queue **q_p);
/* Waits for what is under way. NULL is allowed. */
void tarn_cuda_queue_close(struct tarn_cuda_queue *q);
/*
 * Copies pieces between any memory the device reaches (its own, a peer's, pinned host memory); pieces must
 * not overlap, and one may lie across allocations that adjoin. *taken: how many of them the queue had room
 * for; give the others again later. Many small pieces become one launch; large ones, and one that comes
 * alone, go to the copy engines.
 */
int tarn_cuda_copy(struct tarn_cuda_queue *q, const struct tarn_cuda_piece *pieces, size_t n, size_t *taken);
/*
 * The same for many pieces that are made one by one: they are written to where the device reads them, and
 * nowhere else. list(): room for *room of them, each to be of 1 to TARN_CUDA_PIECE_MAX bytes; NULL: none now.
 * start(): one launch for the first n that were written there, of so many bytes in all. The next call of any
 * but mark() and poll() takes a list back that was not started.
 */
#define TARN_CUDA_PIECE_MAX (64u << 10)
struct tarn_cuda_piece *tarn_cuda_list(struct tarn_cuda_queue *q, size_t *room);
int tarn_cuda_start(struct tarn_cuda_queue *q, size_t n, uint64_t bytes);
/* A mark behind all given so far; marks count up from 1. Costs nothing behind a launch. AGAIN: too many have
 * not been polled for. */
int tarn_cuda_mark(struct tarn_cuda_queue *q, uint64_t *mark_p);
/* 0: all before the mark is done. AGAIN: not yet. */
int tarn_cuda_poll(struct tarn_cuda_queue *q, uint64_t mark);
/* An event (a cudaEvent_t) behind the last mark, to be asked for before anything else is given; NULL: CUDA
 * failed, or too many are waited for. It is the queue's: gone with it, and recorded again behind a later mark
 * once this one has been polled for. */
void *tarn_cuda_mark_event(struct tarn_cuda_queue *q);

/* --- events and streams of the application ------------------------------------------------------ */

/* Has all passed that the event (a cudaEvent_t) was recorded behind? AGAIN: not yet. UNAVAILABLE: that has
 * failed. Never waits; any thread; makes no context. */
int tarn_cuda_passed(void *event);

/* What is given to the stream (a cudaStream_t, whose device is the thread's) from now on waits for what the
 * event has been recorded behind, of whatever device. The event is not needed after the call. */
int tarn_cuda_stream_wait(void *stream, void *event);

/* --- other devices that reach GPU memory -------------------------------------------------------- */

/* Exports the whole pages (of the host's size) that a range of device memory lies in as a dma-buf, the first
 * of them at 0. Whoever imports it keeps it; the caller closes the descriptor. UNSUPPORTED: it cannot be had.
 */
int tarn_cuda_dmabuf(const void *addr, uint64_t bytes, int *fd_p);
/* What other devices have written to the device's memory is seen by all that is started there from now on. */
int tarn_cuda_flush(int device);

#ifdef __cplusplus
}
#endif
#endif
