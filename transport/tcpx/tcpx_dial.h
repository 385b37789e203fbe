/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A dial: the plugin's calls for one connection (listen and accept, or connect), made by a thread of its own.
 * Plugins may take seconds for these calls; some return only when the peer has come.
 *
 *   listening --handle--> joining --> ended: with a comm of the plugin's, or an error
 *
 * Nobody joins such a thread. Its owner polls the dial and gives it up when it takes too long; the thread may
 * last until the process ends. An accept or connect that has begun cannot be undone, because the plugin's
 * threads keep using what they were given. So a dial that was given up continues for a while and then goes to
 * a list of the plugin, where threads of later dials try to finish it. If an accept does not return, a
 * connection from this process makes it return.
 *
 * The plugin for TCPX maps its bounce memory at a process's first accept for a GPU, and not thread-safely: of
 * two at once the second mapping replaces the first, whose connection then delivers wrong bytes. So with
 * bounce memory, the first accept for a GPU runs alone until it has succeeded, and others wait for it.
 *
 * The plugin's lock guards all of a dial except the fields marked as its thread's.
 */
#ifndef TARN_TRANSPORT_TCPX_DIAL_H
#define TARN_TRANSPORT_TCPX_DIAL_H

#include "transport/tcpx/plugin/tcpx_plugin.h"

enum tarn_tcpx_dials { TARN_TCPX_ACCEPTS, TARN_TCPX_CONNECTS };

struct tarn_tcpx_dial;

/* The GPU whose memory the plugin uses for connections to memory of `gpu` (-1: the host's). Bounce memory
 * is always a GPU's. -1: no GPU. */
int tarn_tcpx_dial_gpu(const struct tarn_tcpx_plugin *p, int nic, int gpu);
/* gpu: the result of that function. handle: to connect to; else NULL. */
int tarn_tcpx_dial_new(struct tarn_tcpx_plugin *p, enum tarn_tcpx_dials what, int nic, int gpu,
                       const uint8_t *handle, struct tarn_tcpx_dial **d_p);
/* The listening end's handle. AGAIN: listen has not returned. */
int tarn_tcpx_dial_handle(struct tarn_tcpx_dial *d, uint8_t handle[TARN_TCPX_HANDLE]);
/* 0: the comm belongs to the caller, who closes it before leaving the dial. AGAIN: not ended; *since_ns:
 * when the current call began. */
int tarn_tcpx_dial_poll(struct tarn_tcpx_dial *d, void **comm_p, uint64_t *since_ns);
/* For an accept that succeeded; valid as long as the dial. */
const struct tarn_tcpx_device_handle *tarn_tcpx_dial_device(const struct tarn_tcpx_dial *d);
/* The owner's last call. NULL is allowed. */
void tarn_tcpx_dial_leave(struct tarn_tcpx_dial *d);

/* A connection of a device to itself: tcpx_pair.c. */
struct tarn_tcpx_pair {
    struct tarn_tcpx_plugin *plugin;
    struct tarn_tcpx_dial *accepts, *connects;
    void *recv, *send;
};
/* gpu: as for works. TIMEOUT: the attempt is left to itself. */
int tarn_tcpx_pair_open(struct tarn_tcpx_plugin *p, int nic, int gpu, uint32_t most_ms,
                        struct tarn_tcpx_pair *pair);
void tarn_tcpx_pair_close(struct tarn_tcpx_pair *pair);

/* Wrap calls of the plugin that use the thread's current GPU. gpu -1: they do nothing. */
int tarn_tcpx_lend(int gpu, int *before_p);
void tarn_tcpx_take_back(int gpu, int before);

#endif
