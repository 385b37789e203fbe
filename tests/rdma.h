/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of rdma, in addition to a world: rails that can be pulled, counts of devices' objects, objects
 * whose bytes show their key and version, and background traffic.
 *
 * Traffic is static, because it may outlive a failed test.
 *
 * The tests run in the VM of tests/rdma-vm, as root, in the top folder of the tree. Elsewhere they are
 * skipped.
 */
#ifndef TARN_TESTS_RDMA_H
#define TARN_TESTS_RDMA_H

#include <pthread.h>
#include <stdatomic.h>

#include "tests/world.h"

/* --- devices ------------------------------------------------------------------------------------ */

/* Skips the test if rdma does not work or, with `wire`, if the rails' far ends are no devices. Tells this
 * process's clients which devices are theirs. */
void rdma_need(bool wire);

/* rail.sh: "pull", "plug", "limit" ... on that rail; value may be NULL. Limits apply in both directions. */
void rail(struct harness *h, const char *what, int number, const char *value);
/* Restores every rail. */
void rails_mend(struct harness *h);
/* Bytes sent and received by the rail's near end. */
unsigned long long rail_bytes(int number);

/* Objects that all devices hold for all processes. */
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
/* At least 8 bytes, or none. The version that they show; -1 if they do not belong to one version of that
 * key. */
int64_t marked_version(const void *p, size_t bytes, uint32_t key);

/* Puts (replacing) and gets object <prefix><key>. Returns the status; fails the test on wrong bytes. */
int marked_put(struct tarn_client *c, const char *prefix, uint32_t key, uint32_t version, size_t bytes);
int marked_get(struct tarn_client *c, const char *prefix, uint32_t key, size_t bytes, int64_t *version_p);

/* --- traffic ------------------------------------------------------------------------------------ */

/*
 * A thread that gets, or replaces, objects <prefix>0 to <prefix>n-1 in turn. Each operation must end by
 * its deadline, with 0 or a status of the classes retry, reconnect and relocate. A get with 0 must have
 * right bytes, not older than those of the last put that had returned before. `wrong` has violations.
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
    _Atomic uint32_t *acked; /* version that each object's last put returned for; NULL: not checked */
    /* set by traffic_start() */
    pthread_t thread;
    atomic_bool stop;
    atomic_uint ended, good;
    uint64_t longest_ms;
    int last_failure;
    char wrong[400];
};

void traffic_start(struct traffic *t);
/* Waits until this many more operations have ended; with `good`: successfully. Fails the test after ms. */
void traffic_more(struct traffic *t, unsigned n, bool good, unsigned ms);
/* Ends it. Fails the test on violations. */
void traffic_stop(struct traffic *t);
/* Ends what a failed test has left running. */
void traffic_stop_all(void);
/* world_stop() for tests with traffic: first ends traffic and restores every rail. */
int rdma_stop(void **state);

#endif
