/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A world for tests of libtarn: Redis, some nodes, clients; and objects whose bytes are all alike, so that
 * one that is torn, stale or foreign shows. Nodes are called "node0", "node1" ...
 *
 *   static const struct world_plan plan = {.nodes = 2, .args = {"--pool", "cpu0:bytes=64M"}};
 *   static int start(void **state) { return world_start(state, &plan); }
 *   ... cmocka_unit_test_setup_teardown(test, start, world_stop)
 *
 * Whatever is not as it should be fails the running cmocka test, but for the statuses that are returned.
 */
#ifndef TARN_TESTS_WORLD_H
#define TARN_TESTS_WORLD_H

#include "tests/harness.h"
#include <tarn/tarn.h>

#define MIB (1024u * 1024u)

enum { WORLD_NODES_MAX = 3, WORLD_ARGS_MAX = 16 };

struct world_plan {
    int nodes;
    const char *args[WORLD_ARGS_MAX]; /* of each node, NULL-ended */
    struct tarn_options client;       /* of clients; world_start() fills in redis and size */
};

struct world {
    const struct world_plan *plan;
    struct harness *h;
    struct harness_redis *redis;
    struct harness_node *nodes[WORLD_NODES_MAX];
    struct tarn_client *client; /* NULL until a test opens one here; closed with the world */
};

int world_start(void **state, const struct world_plan *plan);
/* The same, and opens the client. */
int world_start_client(void **state, const struct world_plan *plan);
int world_stop(void **state);
/* Starts another node under any id: a new one, or one that comes back. */
struct harness_node *world_node(struct world *w, const char *id);
/* A new client with these transports (NULL: all). */
struct tarn_client *world_client(const struct world *w, const char *transports);

/* Its deadline, from 1500 ms on, is for a host at rest: here times harness_slower(). */
struct tarn_client *client_open(const char *redis, struct tarn_options o);
/* With these faults (docs/faults.md), regardless of the environment; NULL: none. */
struct tarn_client *client_open_faulty(const char *redis, struct tarn_options o, const char *faults);
struct tarn_key key_of(const char *text);
/* Puts `bytes` bytes of that kind. Returns the status. */
int client_put(struct tarn_client *c, const char *key, char byte, size_t bytes,
               const struct tarn_put_options *o);
/* Gets `bytes` bytes. Returns the status. On success all bytes are equal, and *byte_p is their value.
 * timeout_ms 0: the client's. */
int client_read(struct tarn_client *c, const char *key, size_t bytes, uint32_t timeout_ms, char *byte_p);
/* Returns the status. On success the bytes are of that kind. */
int client_get(struct tarn_client *c, const char *key, char byte, size_t bytes);
/* Puts <prefix>0 to <prefix>n-1; gets them. All must succeed. Returns the longest get in milliseconds. */
void client_put_each(struct tarn_client *c, const char *prefix, int n, char byte, size_t bytes,
                     const struct tarn_put_options *o);
uint64_t client_get_each(struct tarn_client *c, const char *prefix, int n, char byte, size_t bytes);

/* Is there a record of this node? */
bool world_lists(const struct world *w, const char *node);

/* Options for puts: replace what is there; store two copies. */
extern const struct tarn_put_options replacing, twice;

#endif
