/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory for tests, with any implementation of transport/cuda/cuda.h. Host code never accesses device
 * memory: a queue copies the bytes through pinned memory.
 *
 * A failure fails the running cmocka test.
 */
#ifndef TARN_TESTS_DEVICE_H
#define TARN_TESTS_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tarn/tarn.h>

#include "transport/cuda/cuda.h"

#define DEVICE_TIMEOUT_MS 20000

/* The number of devices. If 0, tarn_last_error() has the reason. */
int devices_there(void);
/* Skips the test if there is no device ("gpu"), or are fewer than n ("gpus"). */
void devices_need(int n);

/* Access to a device's memory, from any thread. In the functions below, NULL means host memory. */
struct device;
struct device *device_open(int ordinal);
void device_close(struct device *d);

/* Zeroed memory of the device. */
void *device_alloc(struct device *d, size_t bytes);
void device_drop(struct device *d, void *addr);
void device_write(struct device *d, void *to, const void *from, size_t bytes);
void device_read(struct device *d, void *to, const void *from, size_t bytes);
void device_set(struct device *d, void *to, uint8_t byte, size_t bytes);

/* Checks that every byte has this value. */
void device_expect(struct device *d, const void *addr, uint8_t byte, size_t bytes);

/* Puts or gets an object in one piece, from or into any memory. Returns the status. `place` is as in
 * struct tarn_put_options. */
int piece_put(struct tarn_client *c, const char *key, void *addr, size_t bytes, const char *place);
int piece_get(struct tarn_client *c, const char *key, void *addr, size_t bytes);

/* Gives all pieces to the queue. Waits while the queue is full. */
void queue_give(struct tarn_cuda_queue *q, const struct tarn_cuda_piece *pieces, size_t n);
/* Like queue_give(), and waits until the copies are done. */
void queue_copy(struct tarn_cuda_queue *q, const struct tarn_cuda_piece *pieces, size_t n);
void queue_wait(struct tarn_cuda_queue *q, uint64_t mark);

/* Page-aligned host memory that devices can access. */
void *pinned_new(size_t bytes);
void pinned_free(void *addr, size_t bytes);

/*
 * A copy of an item's memory on a device. It covers the host range that contains all of the item's pieces.
 * The item's pieces point into it, at the same distances. Bytes between the pieces are copied, too.
 */
struct twin {
    struct device *device;
    uint8_t *host, *there;
    size_t bytes;
    struct tarn_piece *pieces;
};
void twin_make(struct twin *t, struct device *d, struct tarn_item *item);
/* Copies the bytes to the host, points the item to its own pieces again and frees the range. */
void twin_end(struct twin *t, struct tarn_item *item, const struct tarn_piece *own);

#endif
