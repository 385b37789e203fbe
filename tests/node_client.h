/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Speaks the control protocol directly, for tests of nodes: one connection, one session. Errors fail the
 * running cmocka test unless the function's name says otherwise.
 */
#ifndef TARN_TESTS_NODE_CLIENT_H
#define TARN_TESTS_NODE_CLIENT_H

#include "tests/harness.h"

struct tarn_client;
struct tarn_peer_node;

struct node_client {
    struct tarn_resp *resp;
    char session[17];
    uint64_t tick_base_ns; /* the node's, by this host's clock */
};

/* A reservation. */
struct node_grant {
    char pool[16], slot[16], gen[20];
    unsigned long long offset;
};

/* Connects and sends HELLO with a random session number. */
struct node_client node_connect(const char *address);
void node_close(struct node_client *c);
/* Sends HELLO with the given session number. Several connections may share a session. */
struct tarn_resp *node_join(const char *address, const char *session);
/* Sends ATTACH shm, with access "r" or "w". Closes the descriptors that it receives. */
void node_attach(struct tarn_resp *r, const char *access);

/* Reserves `bytes` plain bytes under key; mode "absent" or "replace". Returns the error's text, or NULL on
 * success. */
const char *node_try_reserve(struct node_client *c, const char *mode, const char *key, unsigned bytes,
                             struct node_grant *g);
struct node_grant node_reserve(struct node_client *c, const char *mode, const char *key, unsigned bytes);
/* A deadline for COMMIT, timeout_ms from now. Valid until the next call. */
const char *node_deadline(const struct node_client *c, unsigned timeout_ms);
/* Commits one reservation. Returns the item's reply, an array or an error; free it with freeReplyObject(). */
redisReply *node_commit(struct node_client *c, const struct node_grant *g, const char *timeout_ms);
/* Reserves and commits. Returns the item's error ("EXISTS ...") or ""; valid until the next call. */
const char *node_put(struct node_client *c, const char *mode, const char *key, unsigned bytes);
/* Puts, and asks again while the node answers AGAIN: on a busy host its record may expire. Must succeed. */
void node_must_put(struct node_client *c, const char *mode, const char *key, unsigned bytes);

/* Puts <prefix>0 .. <prefix>n-1 in batches. Every item must succeed. */
void node_put_many(struct node_client *c, const char *prefix, int n, unsigned bytes);

/* Fails unless the text has the prefix. assert_error() checks an error reply, and frees it. */
void assert_prefix(const char *text, const char *prefix);
void assert_error(redisReply *reply, const char *prefix);

/* The value of "name:" in INFO, or "" (valid until the next call). node_figure() returns it as a number. */
const char *node_info(const char *address, const char *name);
long long node_figure(const char *address, const char *name);
/* A field ("objects", "reserved") of the first pool in INFO. */
long long node_pool_figure(const char *address, const char *field);

/* --- raw bytes ---------------------------------------------------------------------------------- */

int raw_connect(const char *address);
/* Sends everything, or as much as the node takes. False: the node closed, or did not take it in time. */
bool raw_send(int fd, const char *data, size_t bytes);
/* Sends bytes and reads until the node closes. Stores what the node sent, NUL-terminated. */
void raw_talk(const char *address, const char *bytes, size_t n, char *out, size_t out_bytes);

/* --- contents of the directory ------------------------------------------------------------------ */

#define OBJECT "tarn:default:o:"

/* True if the directory has a record of the (escaped) key. */
bool directory_has(const struct harness_redis *r, const char *key);
/* A field of the record ("tensor", "@node0/cpu0"), or ""; valid until the next call. */
const char *directory_field(const struct harness_redis *r, const char *key, const char *field);
/* The number of objects in the directory. */
long long directory_count(const struct harness_redis *r);

/* --- a world for a test: Redis; node_world_with_node() adds a node "node0" with a pool cpu0 of 1 MiB
 * ----- */

struct node_world {
    struct harness *h;
    struct harness_redis *redis;
    struct harness_node *node, *other; /* other: for tests that start a second node */
    struct node_client c, other_c;     /* if a test has connected them, they are closed with the world */
};

/* Setup and teardown functions for cmocka. */
int node_world(void **state);
int node_world_with_node(void **state);
int node_world_end(void **state);
#define WITH_NODE(test_) cmocka_unit_test_setup_teardown(test_, node_world_with_node, node_world_end)
#define WITH_REDIS(test_) cmocka_unit_test_setup_teardown(test_, node_world, node_world_end)

/* What the client knows of the node with this id. */
struct tarn_peer_node *client_remote(struct tarn_client *c, const char *id);

#endif
