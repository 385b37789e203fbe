/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes: a test describes a scene and plays it with one plugin in its own process. The file also has a
 * connection of the plugin with itself and memory at both ends, which most scenes use.
 */
#ifndef TARN_TESTS_TCPX_SCENE_H
#define TARN_TESTS_TCPX_SCENE_H

#include "tests/tcpx/bare.h"
#include "tests/tcpx/child.h"
#include "tests/tcpx/counters.h"

#define SCENE_LATE_MS 20000 /* generous, so that only a hang fails */
#define SCENE_NEVER_MS 100  /* how long a test waits for an event that must not happen */

struct scene {
    const char *plugin;                      /* as child_plugin() takes it */
    const char *options;                     /* TCPX_FIXTURE; NULL: not set */
    const char *sockets;                     /* NULL: 1 */
    int (*body)(struct tarn_tcpx_plugin *p); /* runs in the child and CHECKs */
    const char *ends;     /* the plugin's message when it ends the process; NULL: it does not end it */
    const char *chunk;    /* NCCL_DYNAMIC_CHUNK_SIZE; NULL: not set */
    const char *counters; /* TCPX_FIXTURE_COUNTERS; NULL: not set */
};

/* Fails the running cmocka test unless the scene ends as expected. Shows output that begins with "random". */
void scene_play(const struct scene *s);

/* For use in the body: has the plugin logged `what`? */
bool scene_was_said(const char *what);
struct fixture_counters *scene_counters(const struct tarn_tcpx_plugin *p);
void scene_setenv(const char *name, const char *value); /* NULL: unset */

enum { WORLD_PAGE = 4096, WORLD_SOURCE = 1 << 20 };

/* Only one in a process, because its memory is static. */
struct world {
    struct tarn_tcpx_plugin *p;
    struct bare b;
    uint8_t *source, *target, *dummy; /* dummy: a page */
    void *source_mr, *target_mr,
        *dummy_mr; /* the target is registered as host memory, the others as GPU memory in mode UNPACK */
};

struct world world_new(struct tarn_tcpx_plugin *p);
void world_end(struct world *w);
void *world_send(struct world *w, uint64_t off, uint32_t bytes);
/* Posts a receive of one byte into the dummy. */
void *world_recv(struct world *w);
/* Waits until both requests are done. One thread drives both ends. */
void world_pass(struct world *w, void *send, void *recv);
/* Checks that the k-th receive brought these bytes of the source. */
void world_check(struct world *w, uint64_t k, uint64_t off, uint64_t bytes);

#endif
