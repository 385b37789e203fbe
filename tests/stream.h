/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an application does with a GPU beside using tarn: streams, kernels, events, managed memory. By the
 * CUDA runtime (tests/gpu/stream.c) or by the stand-in (tests/standin/streams.c); in builds without either,
 * the symbols are NULL, and tests have said devices_need() before they come to them.
 *
 * One thread a stream. Whatever fails here fails the running cmocka test.
 */
#ifndef TARN_TESTS_STREAM_H
#define TARN_TESTS_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/cuda/cuda.h"

struct stream;
/* It does not wait for the default stream. */
struct stream *stream_open(int device) __attribute__((weak));
/* Waits for what was given. */
void stream_close(struct stream *s) __attribute__((weak));
/* The cudaStream_t; its device becomes the thread's. */
void *stream_handle(struct stream *s) __attribute__((weak));
/* Kernels: each begins when the one before has ended. */
void stream_fill(struct stream *s, void *to, uint8_t byte, size_t bytes) __attribute__((weak));
void stream_copy(struct stream *s, void *to, const void *from, size_t bytes) __attribute__((weak));
/* One bare cudaMemcpyAsync() for each, and waits until all are done. Only on GPUs. */
void stream_copy_each(struct stream *s, const struct tarn_cuda_piece *pieces, size_t n) __attribute__((weak));
/* An event (cudaEvent_t) behind all that was given so far. */
void *stream_event(struct stream *s) __attribute__((weak));
void stream_event_free(void *event) __attribute__((weak));
bool stream_is_idle(struct stream *s) __attribute__((weak));
/* What is given from now on does not begin before the word, in pinned memory, is 1. */
void stream_hold(struct stream *s, const uint32_t *word) __attribute__((weak));

void *managed_new(size_t bytes) __attribute__((weak));
void managed_free(void *addr, size_t bytes) __attribute__((weak));

/* A kernel that takes its time (tests/device.c): what is given to the stream behind it does not begin before
 * late_end(). */
struct late;
struct late *late_begin(struct stream *s);
void late_end(struct late *l);
/* Once the stream is idle. */
void late_free(struct late *l);
/* Waits until the stream is idle. */
void stream_settle(struct stream *s);

#endif
