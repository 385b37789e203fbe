/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A world for tests of libtarn: Redis, some nodes, and clients. All bytes of an object are equal, so that a
 * torn, stale or foreign object shows. Nodes are called "node0", "node1" ...
 *
 *   static const struct world_plan plan = {.nodes = 2, .args = {"--pool", "cpu0:bytes=64M"}};
 *   static int start(void **state) { return world_start(state, &plan); }
 *   ... cmocka_unit_test_setup_teardown(test, start, world_stop)
 *
 * Any error fails the running cmocka test, except where a function returns the status.
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
/* Like world_start(), and opens the client. */
int world_start_client(void **state, const struct world_plan *plan);
int world_stop(void **state);
/* Starts a node under any id, new or used earlier. */
struct harness_node *world_node(struct world *w, const char *id);
/* A new client with these transports (NULL: all). */
struct tarn_client *world_client(const struct world *w, const char *transports);

/* Multiplies a timeout_ms of 1500 ms or more by harness_slower(). */
struct tarn_client *client_open(const char *redis, struct tarn_options o);
/* Opens a client with these faults (docs/faults.md), regardless of the environment. NULL: no faults. */
struct tarn_client *client_open_faulty(const char *redis, struct tarn_options o, const char *faults);
struct tarn_key key_of(const char *text);
/* Puts `bytes` bytes of this value. Returns the status. */
int client_put(struct tarn_client *c, const char *key, char byte, size_t bytes,
               const struct tarn_put_options *o);
/* Gets `bytes` bytes. Returns the status. On success all bytes are equal, and *byte_p is their value.
 * timeout_ms 0: the client's timeout. */
int client_read(struct tarn_client *c, const char *key, size_t bytes, uint32_t timeout_ms, char *byte_p);
/* Gets `bytes` bytes. Returns the status. On success all bytes must have this value. */
int client_get(struct tarn_client *c, const char *key, char byte, size_t bytes);
/* Gets the key for this many milliseconds. Each get must succeed. Returns how many took longer than 100 ms.
 */
unsigned client_gets_for(struct tarn_client *c, const char *key, char byte, size_t bytes, uint64_t ms);
/* The same, but at most 2 gets may take longer than 100 ms: not every get waits for Redis. */
void client_gets_quickly_for(struct tarn_client *c, const char *key, char byte, size_t bytes, uint64_t ms);
/* Puts or gets <prefix>0 to <prefix>n-1. All must succeed. client_get_each() returns the longest get in
 * milliseconds. */
void client_put_each(struct tarn_client *c, const char *prefix, int n, char byte, size_t bytes,
                     const struct tarn_put_options *o);
uint64_t client_get_each(struct tarn_client *c, const char *prefix, int n, char byte, size_t bytes);

/* True if the directory has this node's record. */
bool world_lists(const struct world *w, const char *node);

/* Options for puts. replacing: replace what is there. twice: store two copies. */
extern const struct tarn_put_options replacing, twice;

#endif
