/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tests ask of the stand-in beyond transport/cuda/cuda.h. The symbols are weak: over another
 * implementation they are NULL, so one test program runs over all and skips what only the stand-in can do.
 */
#ifndef TARN_TESTS_STANDIN_CUDA_STANDIN_H
#define TARN_TESTS_STANDIN_CUDA_STANDIN_H

#include <stdbool.h>
#include <stdint.h>

/* Replaces STANDIN_FAIL, whose form it has, and counts anew. NULL: nothing fails; lost devices are back. */
void tarn_standin_fail(const char *what) __attribute__((weak));
/* Replaces STANDIN_DELAY_US. */
void tarn_standin_delay(uint64_t us) __attribute__((weak));

/* From now on calls that may take long wait until it says true: starting the driver, opening handles and
 * queues, registering, enabling peer access. NULL: no more. */
void tarn_standin_block(bool (*until)(void *arg), void *arg) __attribute__((weak));
/* Where the host finds memory that the device reaches; NULL: it does not. */
uint8_t *tarn_standin_reach(int device, const void *addr, uint64_t bytes) __attribute__((weak));
/* What lies in a descriptor of tarn_cuda_dmabuf: the range that it exports. */
struct tarn_standin_export {
    uintptr_t begin;
    uint64_t bytes;
};
void *tarn_standin_managed(uint64_t bytes) __attribute__((weak));
void tarn_standin_managed_free(void *addr, uint64_t bytes) __attribute__((weak));

/* What tarn_cuda_mark_event() is here: who waits for it keeps it, also when its queue has a new one or is
 * gone. */
struct tarn_standin_mark {
    bool passed;
    unsigned users;
};
void tarn_standin_mark_drop(struct tarn_standin_mark *m) __attribute__((weak));

/* Inside the stand-in: 0, or the failure of such a call (of STANDIN_FAIL's) on the device. */
int tarn_standin_check(int device, const char *what);
/* Inside the stand-in, where such a call begins. */
void tarn_standin_wait(void);

#endif
