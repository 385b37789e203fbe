/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ways in which the conformance suite runs its cases: by each transport that is usable here, between each
 * kind of memory that it moves, without faults and with them.
 */
#ifndef TARN_TESTS_WAYS_H
#define TARN_TESTS_WAYS_H

#include <stdbool.h>
#include <stdint.h>

enum { WAYS_MAX = 64, WAY_TIMEOUT_MS = 3000 }; /* and what connecting takes */

struct way {
    const char *transport;
    const char *faults; /* options of the fault injector, NULL: none */
    uint32_t timeout_ms;
    bool gpu_pool;       /* the node's memory */
    int device;          /* of the client's memory; -1: the host's */
    const char *missing; /* why it cannot be run here, NULL: it can */
    char name[96];
};

/* The list ends with a way without a transport. */
void ways_find(struct way ways[WAYS_MAX]);

#endif
