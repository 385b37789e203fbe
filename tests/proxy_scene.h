/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A world with a proxy, for tests. The test's thread plays a kernel at ring 0; threads of the test may play
 * others. So all runs on the machine's GPU or the stand-in.
 */
#ifndef TARN_TESTS_PROXY_SCENE_H
#define TARN_TESTS_PROXY_SCENE_H

#include <tarn/proxy.h>

#include "base/clock.h"
#include "tests/device.h"
#include "tests/world.h"

enum { PAGES = 64, BYTES = 65536, ROOM = 1 << 20 };
#define LONG_NS (30 * TARN_NS_PER_S)

struct scene {
    struct world *w;
    struct tarn_client *client;
    struct device *device;
    struct tarn_table *table;
    struct tarn_proxy *proxy;
    struct tarn_ring_producer ring; /* ring 0, open */
    uint8_t *host, *gpu;            /* ROOM bytes each: the ranges */
    uint8_t *seen;                  /* ROOM bytes, to look at */
    unsigned seed;
};

/* A node with a pool in host memory, cpu0, and one of the GPU, gpu0. Without a GPU *state is NULL. */
int scene_start(void **state);
/* Two nodes with pools in host memory. */
int scene_start_two(void **state);
int scene_stop(void **state);
/* Skips the test if there is no GPU. */
struct scene *scene_need(void **state);

/* Options of a proxy with a table of PAGES pages and both memories. */
struct tarn_proxy_options scene_options(struct scene *s, uint32_t nrings, uint32_t ring_size);
void scene_proxy(struct scene *s, const struct tarn_proxy_options *given);
/* A client over these transports, and a proxy with one ring. */
void scene_begin(struct scene *s, const char *transports);
/* The same with faults (docs/faults.md). timeout_ms 0: the client's. */
void scene_begin_faulty(struct scene *s, const char *transports, const char *faults, uint32_t timeout_ms);
/* Closes the client, with table and proxy. */
void scene_end(struct scene *s);
void scene_open_ring(struct scene *s, uint32_t i, struct tarn_ring_producer *p);

/* Makes the page the object of that name. */
void scene_name(struct scene *s, uint32_t page, const char *name);
/* The same, after a put of BYTES bytes of this value. */
void scene_put(struct scene *s, uint32_t page, const char *name, char byte, const char *place);

/* --- what a kernel does ------------------------------------------------------------------------- */

extern const struct tarn_ring_command quiet, refresh;
struct tarn_ring_command get_of(uint32_t page, uint32_t offset, uint32_t bytes, const void *to);
uint64_t push(struct scene *s, const struct tarn_ring_command *c);
int status_of(struct scene *s, uint64_t number);
/* Pushes it, and waits for its status. */
int ask(struct scene *s, const struct tarn_ring_command *c);
bool is_under_way(struct scene *s, uint64_t number);

#endif
