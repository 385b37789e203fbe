/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control protocol by hand, for tests of nodes: one connection, one session. Errors fail the running
 * cmocka test unless the function's name says otherwise.
 */
#ifndef TARN_TESTS_NODE_CLIENT_H
#define TARN_TESTS_NODE_CLIENT_H

#include "tests/harness.h"

struct tarn_client;
struct tarn_peer_node;

struct node_client {
    struct tarn_resp *resp;
    char session[17];
    uint64_t tick_base_ns; /* of the node, by this host's clock */
};

/* A reservation. */
struct node_grant {
    char pool[16], slot[16], gen[20];
    unsigned long long offset;
};

/* Connects and sends HELLO with a random session number. */
struct node_client node_connect(const char *address);
void node_close(struct node_client *c);
/* Sends HELLO with the given session number, which connections may share. */
struct tarn_resp *node_join(const char *address, const char *session);
/* ATTACH shm; access "r" or "w". Closes the descriptors that it receives. */
void node_attach(struct tarn_resp *r, const char *access);

/* Reserves `bytes` plain bytes under key; mode "absent" or "replace". Returns the error's text, or NULL on
 * success. */
const char *node_try_reserve(struct node_client *c, const char *mode, const char *key, unsigned bytes,
                             struct node_grant *g);
struct node_grant node_reserve(struct node_client *c, const char *mode, const char *key, unsigned bytes);
/* COMMIT's deadline, in milliseconds from now; valid until the next call. */
const char *node_deadline(const struct node_client *c, unsigned timeout_ms);
/* Commits one reservation. Returns the item's reply, an array or an error; free it with freeReplyObject(). */
redisReply *node_commit(struct node_client *c, const struct node_grant *g, const char *timeout_ms);
/* Reserves and commits. Returns the item's error ("EXISTS ...") or ""; valid until the next call. */
const char *node_put(struct node_client *c, const char *mode, const char *key, unsigned bytes);

/* Puts <prefix>0 .. <prefix>n-1 in batches. Every item must succeed. */
void node_put_many(struct node_client *c, const char *prefix, int n, unsigned bytes);

/* Fails unless the text has the prefix. The second checks and frees an error reply. */
void assert_prefix(const char *text, const char *prefix);
void assert_error(redisReply *reply, const char *prefix);

/* The value of "name:" in INFO, or "" (valid until the next call); as a number. */
const char *node_info(const char *address, const char *name);
long long node_figure(const char *address, const char *name);
/* A field ("objects", "reserved") of the first pool in INFO. */
long long node_pool_figure(const char *address, const char *field);

/* --- bytes that are no protocol ----------------------------------------------------------------- */

int raw_connect(const char *address);
/* Sends everything, or as much as the node takes. False if it closes or does not take it in time. */
bool raw_send(int fd, const char *data, size_t bytes);
/* Sends bytes and reads until the node closes. Returns what it said, NUL-terminated. */
void raw_talk(const char *address, const char *bytes, size_t n, char *out, size_t out_bytes);

/* --- what the directory has --------------------------------------------------------------------- */

#define OBJECT "tarn:default:o:"

/* Does the directory have a record of the (escaped) key? */
bool directory_has(const struct harness_redis *r, const char *key);
/* A field of the record ("tensor", "@node0/cpu0"), or ""; valid until the next call. */
const char *directory_field(const struct harness_redis *r, const char *key, const char *field);
/* The number of objects in it. */
long long directory_count(const struct harness_redis *r);

/* --- a world for a test: Redis, and with node_world_with_node a node "node0" with a pool cpu0 of 1 MiB -- */

struct node_world {
    struct harness *h;
    struct harness_redis *redis;
    struct harness_node *node, *other; /* other: for tests that start a second one */
    struct node_client c, other_c;     /* closed with the world if tests have connected them */
};

/* Setups and teardown for cmocka. */
int node_world(void **state);
int node_world_with_node(void **state);
int node_world_end(void **state);
#define WITH_NODE(test_) cmocka_unit_test_setup_teardown(test_, node_world_with_node, node_world_end)
#define WITH_REDIS(test_) cmocka_unit_test_setup_teardown(test_, node_world, node_world_end)

/* What the client knows of the node with this id. */
struct tarn_peer_node *client_remote(struct tarn_client *c, const char *id);

#endif
