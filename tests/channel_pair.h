/* SPDX-License-Identifier: Apache-2.0 */
/* Two clients with a channel between them, and a window each, for tests of channels. */
#ifndef TARN_TESTS_CHANNEL_PAIR_H
#define TARN_TESTS_CHANNEL_PAIR_H

#include <tarn/channel.h>

#include "tests/world.h"

#define CHANNEL_ROOM (4u * MIB) /* of each window */

/* One end. */
struct channel_end {
    struct tarn_client *client;
    struct tarn_channel *channel;
    struct tarn_window *window;
    unsigned char *memory; /* CHANNEL_ROOM bytes, in the window */
};

struct channel_pair {
    struct world *w;
    const char *transports;
    struct channel_end a, b; /* a has connected to b */
};

/* For tables of tests: over tcp, and over shm with memory that is shared. */
int channel_start_tcp(void **state);
int channel_start_shm(void **state);
int channel_stop(void **state);

/* Opens a client with a window; channel_end_close() closes both. options: NULL: all defaults. */
void channel_end_open(const char *redis, const char *transports, const struct tarn_options *options,
                      struct channel_end *e);
void channel_end_close(struct channel_end *e);
/* Has `from` connect to `to`, which listens. */
void channel_connect(struct channel_end *from, struct channel_end *to);

/* Starts this program once more, with a client of its own that connects to b, a role and a number. Waits
 * until it has printed "ready". */
struct harness_process *channel_peer_start(const struct channel_pair *p, const char *role, size_t number);
/* In main(): is this process such a peer? Then *e is its end, argv[5] its role, and argv[6] the number. */
bool channel_peer_is(int argc, char **argv, struct channel_end *e);

/* Blocking, with one piece; timeout_ms 0: the client's. */
int channel_send(const struct channel_end *e, uint64_t tag, void *addr, uint64_t bytes, uint32_t timeout_ms);
int channel_recv(const struct channel_end *e, uint64_t tag, void *addr, uint64_t bytes, uint32_t timeout_ms,
                 uint64_t *bytes_p);
/* Submitted. The piece stays until the completion. */
tarn_op channel_submit_send(const struct channel_end *e, uint64_t tag, const struct tarn_piece *piece,
                            uint32_t timeout_ms);
tarn_op channel_submit_recv(const struct channel_end *e, uint64_t tag, const struct tarn_piece *piece,
                            uint32_t timeout_ms, uint64_t *bytes_p);
/* Waits for the completion. Returns its status. */
int channel_done(const struct channel_end *e, tarn_op op);
/* The sentence of the last completion that channel_done() has taken. */
const char *channel_error(void);
/* A number of INFO of the client's lender. */
unsigned channel_info(const struct channel_end *e, const char *name);

/* Fills memory so that each seed gives other bytes; checks it. */
void channel_fill(unsigned char *at, size_t bytes, unsigned seed);
bool channel_filled(const unsigned char *at, size_t bytes, unsigned seed);

/* Over tcp, then over shm. */
#define CHANNEL_TESTS(test) \
    {"tcp: " #test, test, channel_start_tcp, channel_stop, NULL}, \
    { \
        "shm: " #test, test, channel_start_shm, channel_stop, NULL \
    }

#endif
