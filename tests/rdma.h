/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helpers for rdma tests, in addition to a world: rails that can be pulled, counts of the devices' objects,
 * objects whose bytes show their key and version, and background traffic.
 *
 * Declare struct traffic static: the traffic may outlive a failed test.
 *
 * The tests run in the VM of tests/rdma-vm, as root, from the root of the tree. Elsewhere they are skipped.
 */
#ifndef TARN_TESTS_RDMA_H
#define TARN_TESTS_RDMA_H

#include <pthread.h>
#include <stdatomic.h>

#include "tests/world.h"

/* --- devices ------------------------------------------------------------------------------------ */

/* Skips the test if rdma does not work or, with `wire`, if the rails' far ends are not devices. With
 * `wire`, also sets TARN_RDMA_DEVICES, so that clients of this process use the near ends. */
void rdma_need(bool wire);

/* Runs rail.sh ("pull", "plug", "limit" ...) on this rail; value may be NULL. Limits apply in both
 * directions. */
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

/* --- bytes that show their key and version ------------------------------------------------------ */

void marked_fill(void *p, size_t bytes, uint32_t key, uint32_t version);
/* The version that the bytes show, or -1 if they are not all of one version of that key. `bytes` is 0 or
 * at least 8. */
int64_t marked_version(const void *p, size_t bytes, uint32_t key);

/* Puts (with replace) or gets object <prefix><key>. Returns the status. Wrong bytes fail the test. */
int marked_put(struct tarn_client *c, const char *prefix, uint32_t key, uint32_t version, size_t bytes);
int marked_get(struct tarn_client *c, const char *prefix, uint32_t key, size_t bytes, int64_t *version_p);

/* --- traffic ------------------------------------------------------------------------------------ */

/*
 * A thread that gets, or replaces, objects <prefix>0 to <prefix>n-1 in turn. Each operation must end by its
 * deadline, with 0 or a status of the classes retry, reconnect and relocate. A get with status 0 must have
 * right bytes, at least as new as the last put that returned before the get began. `wrong` describes the
 * first violation.
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
    _Atomic uint32_t *acked; /* version of each object's last successful put; NULL: not checked */
    /* set by traffic_start() */
    pthread_t thread;
    atomic_bool stop;
    atomic_uint ended, good;
    uint64_t longest_ms;
    int last_failure;
    char wrong[400];
};

void traffic_start(struct traffic *t);
/* Waits until n more operations have ended (with `good`: succeeded). Fails the test after ms. */
void traffic_more(struct traffic *t, unsigned n, bool good, unsigned ms);
/* Ends the thread. Fails the test on violations. */
void traffic_stop(struct traffic *t);
/* Ends the traffic that a failed test has left running. */
void traffic_stop_all(void);
/* world_stop() for tests with traffic. First ends the traffic and restores every rail. */
int rdma_stop(void **state);

#endif
