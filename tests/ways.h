/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The combinations in which the conformance suite runs its cases: each usable transport, over pools and, if
 * it lends them, over windows; each pair of memory kinds that it moves, without and with faults.
 */
#ifndef TARN_TESTS_WAYS_H
#define TARN_TESTS_WAYS_H

#include <stdbool.h>
#include <stdint.h>

enum { WAYS_MAX = 128, WAY_TIMEOUT_MS = 3000 }; /* WAY_TIMEOUT_MS includes connecting */

struct way {
    const char *transport;
    const char *faults; /* options of the fault injector; NULL: no faults */
    uint32_t timeout_ms;
    bool window;         /* a lender's window takes the place of a node's pool */
    bool gpu_pool;       /* the pool or window is in GPU memory */
    bool afar;           /* clients do not reach Unix sockets, as on another host */
    int device;          /* of the client's memory; -1: host memory */
    const char *missing; /* why this way cannot run here; NULL: it can */
    char name[96];
};

/* A way without a transport ends the list. */
void ways_find(struct way ways[WAYS_MAX]);

#endif
