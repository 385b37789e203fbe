/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simplest possible loop over a plugin, both ends in one process: isend, irecv, test, and the copy out of
 * the bounce memory. It is the baseline for a transport over the same plugin, and a check of the plugin
 * itself. Host memory only.
 */
#ifndef TARN_TESTS_TCPX_BARE_H
#define TARN_TESTS_TCPX_BARE_H

#include "transport/tcpx/tcpx_dial.h"

struct bare {
    struct tarn_tcpx_plugin *plugin;
    struct tarn_tcpx_pair pair;
    void *send, *recv;
    struct tarn_tcpx_device_handle device; /* of the receiving end, in mode UNPACK */
    const struct tarn_tcpx_unpack *unpack; /* NULL in mode PLAIN */
    uint64_t received;                     /* number of received requests; gives the next one's slot */
};

/* Opens a connection of device `dev` with itself. */
int bare_open(struct tarn_tcpx_plugin *p, int dev, struct bare *b);
void bare_close(struct bare *b);

struct bare_load {
    uint64_t messages;
    uint64_t bytes;  /* of each message; with `seed`: at most */
    uint64_t places; /* number of sources and targets, used in turn; 0: one source, targets in a window */
    uint64_t seed;   /* not 0: sizes and contents are random */
    uint32_t chunk;  /* messages are cut to requests of this size */
    uint32_t window; /* requests in flight */
    bool discard;    /* do not copy out of the bounce memory */
    bool gather;     /* copy to registered memory first, as for unregistered memory */
};

struct bare_result {
    uint64_t bytes;
    uint64_t requests;
    uint64_t wrong; /* requests that brought wrong bytes */
    double seconds;
};

/* Compares contents only with a seed. Fails when nothing moves for a long time. */
int bare_run(struct bare *b, const struct bare_load *load, struct bare_result *result);

/* Waits until the request is done. AGAIN: it is not done in time. */
int bare_wait(struct tarn_tcpx_plugin *p, void *request, uint32_t timeout_ms);
/* Copies the k-th receive of the comm to `to`. Returns its size; UINT64_MAX if that is not `room`. */
uint64_t bare_place(const struct bare *b, uint64_t k, uint8_t *to, uint64_t room);

#endif
