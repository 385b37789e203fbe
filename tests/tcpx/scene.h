/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes: one plugin in a process of its own, which a test sets up and plays, and what most of them use
 * there: a connection of the plugin with itself, and memory at both ends.
 */
#ifndef TARN_TESTS_TCPX_SCENE_H
#define TARN_TESTS_TCPX_SCENE_H

#include "tests/tcpx/bare.h"
#include "tests/tcpx/child.h"
#include "tests/tcpx/counters.h"

#define SCENE_LATE_MS 20000 /* generous: only a hang is to fail */
#define SCENE_NEVER_MS 100  /* how long what must not happen is waited for */

struct scene {
    const char *plugin;                      /* as child_plugin() takes it */
    const char *options;                     /* TCPX_FIXTURE; NULL: not set, as below */
    const char *sockets;                     /* NULL: 1 */
    int (*body)(struct tarn_tcpx_plugin *p); /* runs in the child and CHECKs */
    const char *ends;     /* what the plugin says when it ends the process; NULL: it does not */
    const char *chunk;    /* NCCL_DYNAMIC_CHUNK_SIZE */
    const char *counters; /* TCPX_FIXTURE_COUNTERS */
};

/* Fails the running cmocka test unless the scene ends as it says. Shows output that begins with "random". */
void scene_play(const struct scene *s);

/* In the body: has the plugin logged that? */
bool scene_was_said(const char *what);
struct fixture_counters *scene_counters(const struct tarn_tcpx_plugin *p);
void scene_setenv(const char *name, const char *value); /* NULL: unset */

enum { WORLD_PAGE = 4096, WORLD_SOURCE = 1 << 20 };

/* One a process: the memory is static. */
struct world {
    struct tarn_tcpx_plugin *p;
    struct bare b;
    uint8_t *source, *target, *dummy; /* the last is a page */
    void *source_mr, *target_mr,
        *dummy_mr; /* target: as host memory; the others as the GPU's where it unpacks */
};

struct world world_new(struct tarn_tcpx_plugin *p);
void world_end(struct world *w);
void *world_send(struct world *w, uint64_t off, uint32_t bytes);
/* One byte into the dummy. */
void *world_recv(struct world *w);
/* Both requests to their ends; both ends are one thread. */
void world_pass(struct world *w, void *send, void *recv);
/* The k-th receive brought these bytes of the source. */
void world_check(struct world *w, uint64_t k, uint64_t off, uint64_t bytes);

#endif
