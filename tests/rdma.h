/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tests of rdma need besides a world: rails that can be pulled, counts of what devices hold, objects
 * whose bytes say which key and version they are, and traffic that goes on while something is done to it.
 *
 * Traffic is static: it may outlive a test that fails.
 *
 * The tests run in the VM of tests/rdma-vm, as root, from the top of the tree; elsewhere they are skipped.
 */
#ifndef TARN_TESTS_RDMA_H
#define TARN_TESTS_RDMA_H

#include <pthread.h>
#include <stdatomic.h>

#include "tests/world.h"

/* --- devices ------------------------------------------------------------------------------------ */

/* Skips the test where rdma does not work. With `wire`: or the far ends of the rails are no devices. Tells
 * clients of this process which devices are theirs. */
void rdma_need(bool wire);

/* rail.sh: "pull", "plug", "limit" ... on that rail; value may be NULL. Limits hold both ways. */
void rail(struct harness *h, const char *what, int number, const char *value);
/* Makes every rail whole again. */
void rails_mend(struct harness *h);
/* Bytes that the rail's near end has sent and received. */
unsigned long long rail_bytes(int number);

/* What all devices hold for all processes. */
struct rdma_objects {
    int qp, cq, mr, pd, ctx;
};
struct rdma_objects rdma_objects(void);
bool rdma_objects_same(const struct rdma_objects *a, const struct rdma_objects *b);

/* Open files and resident KiB of a process. */
int process_files(pid_t pid);
long process_rss(pid_t pid);

/* --- bytes that say whose they are -------------------------------------------------------------- */

void marked_fill(void *p, size_t bytes, uint32_t key, uint32_t version);
/* At least 8 bytes, or none. The version they show; -1 when they are not those of one version of that key. */
int64_t marked_version(const void *p, size_t bytes, uint32_t key);

/* Puts (replacing) and gets object <prefix><key>. The status; fails the test when bytes are wrong. */
int marked_put(struct tarn_client *c, const char *prefix, uint32_t key, uint32_t version, size_t bytes);
int marked_get(struct tarn_client *c, const char *prefix, uint32_t key, size_t bytes, int64_t *version_p);

/* --- traffic ------------------------------------------------------------------------------------ */

/*
 * A thread that gets, or replaces, objects <prefix>0 to <prefix>n-1 in turn. Every operation must end inside
 * its deadline, with 0 or a status of the classes retry, reconnect and relocate, and a get with 0 with right
 * bytes, not older than what its put had returned for before; what was not so is in `wrong`.
 */
struct traffic {
    struct tarn_client *client;
    const char *prefix;
    uint32_t objects;
    size_t bytes;
    uint32_t timeout_ms;
    bool puts;
    bool clean;              /* every operation must succeed */
    bool evicted;            /* objects may be absent */
    _Atomic uint32_t *acked; /* version of each that a put has returned for; NULL: not looked at */
    /* set by traffic_start() */
    pthread_t thread;
    atomic_bool stop;
    atomic_uint ended, good;
    uint64_t longest_ms;
    int last_failure;
    char wrong[400];
};

void traffic_start(struct traffic *t);
/* Waits until so many more operations have ended; with `good`: well. Fails the test after ms. */
void traffic_more(struct traffic *t, unsigned n, bool good, unsigned ms);
/* Ends it; fails the test when something was wrong. */
void traffic_stop(struct traffic *t);
/* Ends what a failed test has left running. */
void traffic_stop_all(void);
/* world_stop() for tests with traffic: it ends first, and every rail is whole again. */
int rdma_stop(void **state);

#endif
