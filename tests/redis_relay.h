/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A network that delivers late: stands between a node and Redis, on Unix sockets. Armed, it holds back what
 * the node sends next on the connection on which it sends the word, until it is told to deliver, whether or
 * not the node still waits. All else passes.
 *
 *   struct redis_relay *r = redis_relay_start(h, redis->unix_path, "o:key");
 *   ... start a node with --redis unix://<r->path> ...
 *   r->armed = true;
 *   HARNESS_UNTIL(!r->armed, 5000);      it holds something now
 *   r->deliver = true;
 *   HARNESS_UNTIL(r->delivered, 5000);
 *   redis_relay_end(r);
 */
#ifndef TARN_TESTS_REDIS_RELAY_H
#define TARN_TESTS_REDIS_RELAY_H

#include <pthread.h>
#include <stdatomic.h>

#include "tests/harness.h"

enum { RELAY_PAIRS_MAX = 32, RELAY_HELD_MAX = 65536 };

struct redis_relay {
    char path[256]; /* where it listens */
    atomic_bool armed, deliver, delivered;
    /* its own */
    char redis_path[128];
    const char *word;
    int listener;
    pthread_t thread;
    atomic_bool stop;
    struct {
        int node, redis; /* -1: closed */
    } pairs[RELAY_PAIRS_MAX];
    int npairs, holding; /* index of the pair that is held; -1: none */
    char held[RELAY_HELD_MAX];
    size_t nheld;
};

struct redis_relay *redis_relay_start(struct harness *h, const char *redis_path, const char *word);
void redis_relay_end(struct redis_relay *r);

#endif
