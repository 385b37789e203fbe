/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What cases of the conformance suite work with: a client over one way, and objects under keys, which are
 * either objects of a node's pool or leases of a lender's window (leases.h).
 */
#ifndef TARN_TESTS_PLACE_H
#define TARN_TESTS_PLACE_H

#include "tests/conformance/leases.h"
#include "tests/device.h"
#include "tests/ways.h"
#include "tests/world.h"

#define SLACK_MS 5000
#define TRIES 400

/* What a way's cases share: a Redis and, with a pool, a node; with a window, the lender's process. */
struct fixture {
    struct harness *h;
    struct harness_redis *redis;
    struct harness_node *node;
    const char *lender; /* the path of its socket; NULL: pools */
    const char *self;   /* the program */
};

struct place {
    const struct way *way;
    struct fixture *fix;
    struct tarn_client *client;
    struct leases *leases; /* NULL: pools */
    struct device *device; /* NULL: host memory */
    uint64_t seed;
};

void place_open(struct place *p, const struct way *w, const char *redis, const char *lender);
void place_close(struct place *p);
struct tarn_client *client_by(const struct way *w, const char *redis);

/* Starts the second process, which works over the same way without faults: test_conformance --peer. */
struct harness_process *peer_start(struct place *p, const char *what);

/* Content that depends on the key, the version and the position, so that foreign, stale or torn bytes show.
 */
uint8_t *made(size_t bytes, const char *key, uint64_t version);
uint64_t rnd(struct place *p, uint64_t below);
/* Can be used in threads, where cmocka's own checks would end the program silently. */
void expect(bool ok, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* May the way's faults cause this? */
bool forgivable(const struct place *p, int status);

/* --- objects ------------------------------------------------------------------------------------ */

/* One get or put of one item. */
int run_once(struct place *p, bool put, struct tarn_item *item, uint32_t flags);
/* The same until it succeeds. Retries only injected faults. Returns the last status. */
int run(struct place *p, bool put, struct tarn_item *item, uint32_t flags);
int put_bytes(struct place *p, const char *key, const void *data, size_t bytes, uint32_t flags);
int get_bytes(struct place *p, const char *key, void *data, size_t bytes);
void put_these(struct place *p, const char *key, const uint8_t *data, size_t bytes);
void put_made(struct place *p, const char *key, size_t bytes, uint64_t version);
void expect_bytes(const char *key, const uint8_t *got, const uint8_t *want, size_t bytes);
void expect_made(struct place *p, const char *key, size_t bytes, uint64_t version);
void expect_status(struct place *p, const char *key, size_t bytes, int want);
void remove_key(struct place *p, const char *key);
/* How many gets have met an object that was gone or replaced. */
uint64_t stale_reads(struct place *p);

/* A get that was submitted. Its fields are kept until it is complete. */
struct ask {
    struct tarn_item item;
    struct tarn_move move;
};
int submit_get(struct place *p, struct ask *a, uint64_t cookie, tarn_op *op_p);
int ask_status(const struct place *p, const struct ask *a);

/* --- threads ------------------------------------------------------------------------------------ */

enum { THREADS_MAX = 16 };

struct thread {
    pthread_t id;
    struct place place;
    void *arg;
    int number, hits;
};

/* Runs fn in n threads that share the client. Their waits (delays, drops) overlap. Returns the sum of
 * their hits. */
int in_threads(struct place *p, int n, void *(*fn)(void *), void *arg);

#endif
