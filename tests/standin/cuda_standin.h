/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stand-in's interface for tests, besides transport/cuda/cuda.h. The symbols are weak: with another
 * implementation they are NULL. So a test program runs with every implementation, and skips the parts that
 * need the stand-in.
 */
#ifndef TARN_TESTS_STANDIN_CUDA_STANDIN_H
#define TARN_TESTS_STANDIN_CUDA_STANDIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Replaces STANDIN_FAIL, in the same form, and restarts the counts. NULL: no call fails, and lost devices
 * work again. */
void tarn_standin_fail(const char *what) __attribute__((weak));
/* Replaces STANDIN_DELAY_US. */
void tarn_standin_delay(uint64_t us) __attribute__((weak));

/* Makes slow calls wait until the function returns true: starting the driver, opening handles and queues,
 * registering, enabling peer access. NULL: they do not wait. */
void tarn_standin_block(bool (*until)(void *arg), void *arg) __attribute__((weak));
/* Runs a kernel in the calling thread. Meanwhile all threads can access memory of devices. */
void tarn_standin_play(void (*kernel)(void *arg), void *arg) __attribute__((weak));
/* The host address of memory that the device reaches. NULL: the device cannot reach it. */
uint8_t *tarn_standin_reach(int device, const void *addr, uint64_t bytes) __attribute__((weak));
/* Content of a descriptor of tarn_cuda_dmabuf: the exported range. */
struct tarn_standin_export {
    uintptr_t begin;
    uint64_t bytes;
};
void *tarn_standin_managed(uint64_t bytes) __attribute__((weak));
void tarn_standin_managed_free(void *addr, uint64_t bytes) __attribute__((weak));

/* The stand-in's tarn_cuda_mark_event() returns this. A waiter may use it even after the queue has a newer
 * one or is closed. */
struct tarn_standin_mark {
    bool passed;
    unsigned users;
};
void tarn_standin_mark_drop(struct tarn_standin_mark *m) __attribute__((weak));

/* Inside the stand-in: 0, or the failure of this call (as in STANDIN_FAIL) on the device. */
int tarn_standin_check(int device, const char *what);
/* Inside the stand-in: so many more threads play kernels. */
void tarn_standin_players(int more);
/* Inside the stand-in: a kernel behind the stream's work, with a copy of its argument. */
struct stream;
void tarn_standin_launch(struct stream *s, void (*kernel)(void *arg), const void *arg, size_t bytes);
/* Inside the stand-in: called at the begin of a slow call. */
void tarn_standin_wait(void);

#endif
