/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an application does with a GPU apart from tarn: streams, kernels, events, managed memory. Implemented
 * with the CUDA runtime (tests/gpu/stream.c) or the stand-in (tests/standin/streams.c). In builds without
 * either, the symbols are NULL; tests call devices_need() first, which skips them there.
 *
 * Use each stream from one thread. Any failure here fails the running cmocka test.
 */
#ifndef TARN_TESTS_STREAM_H
#define TARN_TESTS_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/cuda/cuda.h"

struct stream;
/* Opens a stream that does not wait for the default stream. */
struct stream *stream_open(int device) __attribute__((weak));
/* Waits for the stream's work, then closes the stream. */
void stream_close(struct stream *s) __attribute__((weak));
/* The cudaStream_t. Makes the stream's device the current device of the calling thread. */
void *stream_handle(struct stream *s) __attribute__((weak));
/* Kernels. Each begins when the previous one has ended. */
void stream_fill(struct stream *s, void *to, uint8_t byte, size_t bytes) __attribute__((weak));
void stream_copy(struct stream *s, void *to, const void *from, size_t bytes) __attribute__((weak));
/* One cudaMemcpyAsync() per piece; waits until all are done. Only on GPUs. */
void stream_copy_each(struct stream *s, const struct tarn_cuda_piece *pieces, size_t n) __attribute__((weak));
/* An event (cudaEvent_t) after all work given to the stream so far. */
void *stream_event(struct stream *s) __attribute__((weak));
void stream_event_free(void *event) __attribute__((weak));
bool stream_is_idle(struct stream *s) __attribute__((weak));
/* Work given to the stream from now on begins only when the word, in pinned memory, is 1. */
void stream_hold(struct stream *s, const uint32_t *word) __attribute__((weak));
/* The same by a kernel that runs meanwhile: what the driver does only when no kernel runs waits for it. */
void stream_spin(struct stream *s, const uint32_t *word) __attribute__((weak));

void *managed_new(size_t bytes) __attribute__((weak));
void managed_free(void *addr, size_t bytes) __attribute__((weak));

/* Work given to the stream from now on begins only with late_end() (tests/device.c): by stream_hold() and by
 * stream_spin(). */
struct late;
struct late *late_begin(struct stream *s);
struct late *late_begin_spinning(struct stream *s);
void late_end(struct late *l);
/* Call this once the stream is idle. */
void late_free(struct late *l);
/* Waits until the stream is idle. */
void stream_settle(struct stream *s);

#endif
