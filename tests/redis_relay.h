/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A relay between a node and Redis, on Unix sockets, that can deliver late. When armed, it waits for the
 * word. It then holds back everything that the node sends on that connection, from the chunk with the word
 * on, until `deliver` is set, whether or not the node still waits. It forwards everything else at once.
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
    /* private to the relay */
    char redis_path[128];
    const char *word;
    int listener;
    pthread_t thread;
    atomic_bool stop;
    struct {
        int node, redis; /* -1: closed */
    } pairs[RELAY_PAIRS_MAX];
    int npairs, holding; /* holding: index of the pair that is held; -1: none */
    char held[RELAY_HELD_MAX];
    size_t nheld;
};

struct redis_relay *redis_relay_start(struct harness *h, const char *redis_path, const char *word);
void redis_relay_end(struct redis_relay *r);

#endif
