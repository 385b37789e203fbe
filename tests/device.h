/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a device for tests, over whichever implementation of transport/cuda/cuda.h is linked. Host code
 * never touches device memory: bytes go there and come back through a queue, by way of pinned memory.
 *
 * Whatever fails here fails the running cmocka test.
 */
#ifndef TARN_TESTS_DEVICE_H
#define TARN_TESTS_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tarn/tarn.h>

#include "transport/cuda/cuda.h"

#define DEVICE_TIMEOUT_MS 20000

/* How many devices there are; 0: none, and tarn_last_error() says why. */
int devices_there(void);
/* Skips the test ("gpu") where there are fewer. */
void devices_need(int n);

/* A way to a device's memory, for any thread. Below, NULL is one to the host's. */
struct device;
struct device *device_open(int ordinal);
void device_close(struct device *d);

/* Memory of the device, zeroed. */
void *device_alloc(struct device *d, size_t bytes);
void device_drop(struct device *d, void *addr);
void device_write(struct device *d, void *to, const void *from, size_t bytes);
void device_read(struct device *d, void *to, const void *from, size_t bytes);
void device_set(struct device *d, void *to, uint8_t byte, size_t bytes);

/* All of the bytes are of that kind. */
void device_expect(struct device *d, const void *addr, uint8_t byte, size_t bytes);

/* An object in one piece, wherever that is. The status. place: of struct tarn_put_options. */
int piece_put(struct tarn_client *c, const char *key, void *addr, size_t bytes, const char *place);
int piece_get(struct tarn_client *c, const char *key, void *addr, size_t bytes);

/* Gives all pieces, waiting for room. */
void queue_give(struct tarn_cuda_queue *q, const struct tarn_cuda_piece *pieces, size_t n);
/* And waits until they are done. */
void queue_copy(struct tarn_cuda_queue *q, const struct tarn_cuda_piece *pieces, size_t n);
void queue_wait(struct tarn_cuda_queue *q, uint64_t mark);

/* Page-aligned host memory that devices reach. */
void *pinned_new(size_t bytes);
void pinned_free(void *addr, size_t bytes);

/*
 * An item's memory in twin: a range of device memory that stands for the host range around all of its pieces.
 * The pieces are pointed there, at the same distances, and the bytes between them are carried along.
 */
struct twin {
    struct device *device;
    uint8_t *host, *there;
    size_t bytes;
    struct tarn_piece *pieces;
};
void twin_make(struct twin *t, struct device *d, struct tarn_item *item);
/* Brings the bytes to the host, points the item to its own pieces again and frees the range. */
void twin_end(struct twin *t, struct tarn_item *item, const struct tarn_piece *own);

#endif
