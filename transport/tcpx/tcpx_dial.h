/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A dial: what the plugin does to set one connection up (listen and accept, or connect), by a thread of its
 * own. Plugins may take seconds for these calls, and some do not return from them before the peer has come.
 *
 *   listening --handle--> joining --> ended: with a comm of the plugin's, or an error
 *
 * Nobody waits for such a thread: its owner looks at the dial and gives it up when that takes too long; the
 * end of the process ends it. A connect or accept that has begun cannot be taken back, since the plugin's
 * threads go on using what they were given. So a dial that was given up goes on for a while, and is then left
 * in a list of the plugin's, where the threads of later dials try to end it. An accept that does not return
 * has itself connected to, so that it does.
 *
 * The plugin for TCPX maps its bounce memory at the first accept for a GPU in a process, and not safely: of
 * two at once the second mapping replaces the first, whose connection then brings other bytes. So where there
 * is bounce memory the first accept for a GPU is alone until it has ended well, and the others wait for that.
 *
 * The plugin's lock is over all of a dial but what is said to be its thread's.
 */
#ifndef TARN_TRANSPORT_TCPX_DIAL_H
#define TARN_TRANSPORT_TCPX_DIAL_H

#include "transport/tcpx/plugin/tcpx_plugin.h"

enum tarn_tcpx_dials { TARN_TCPX_ACCEPTS, TARN_TCPX_CONNECTS };

struct tarn_tcpx_dial;

/* Which one has the plugin's memory for connections of memory of that GPU, -1 being the host: bounce memory
 * is a GPU's, whatever is unpacked from it. -1: none. */
int tarn_tcpx_dial_gpu(const struct tarn_tcpx_plugin *p, int nic, int gpu);
/* gpu: as that says. handle: to connect to; else NULL. */
int tarn_tcpx_dial_new(struct tarn_tcpx_plugin *p, enum tarn_tcpx_dials what, int nic, int gpu,
                       const uint8_t *handle, struct tarn_tcpx_dial **d_p);
/* What names the listening end. AGAIN: listen has not returned. */
int tarn_tcpx_dial_handle(struct tarn_tcpx_dial *d, uint8_t handle[TARN_TCPX_HANDLE]);
/* 0: the comm is the caller's, to be closed before the dial is left. AGAIN: it has not ended; *since_ns: when
 * the call that is awaited began. */
int tarn_tcpx_dial_poll(struct tarn_tcpx_dial *d, void **comm_p, uint64_t *since_ns);
/* Of an accept that has ended well: it lives as long as the dial. */
const struct tarn_tcpx_device_handle *tarn_tcpx_dial_device(const struct tarn_tcpx_dial *d);
/* Its owner needs it no more. NULL is allowed. */
void tarn_tcpx_dial_leave(struct tarn_tcpx_dial *d);

/* A connection of a device with itself: tcpx_pair.c. */
struct tarn_tcpx_pair {
    struct tarn_tcpx_plugin *plugin;
    struct tarn_tcpx_dial *accepts, *connects;
    void *recv, *send;
};
/* gpu: as for works. TIMEOUT: it is left to itself. */
int tarn_tcpx_pair_open(struct tarn_tcpx_plugin *p, int nic, int gpu, uint32_t most_ms,
                        struct tarn_tcpx_pair *pair);
void tarn_tcpx_pair_close(struct tarn_tcpx_pair *pair);

/* Around calls of the plugin that take the thread's current GPU for theirs; gpu -1: nothing is done. */
int tarn_tcpx_lend(int gpu, int *before_p);
void tarn_tcpx_take_back(int gpu, int before);

#endif
