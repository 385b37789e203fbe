/* SPDX-License-Identifier: Apache-2.0 */
/* Works in flight. */
#ifndef TARN_CLIENT_FLIGHT_H
#define TARN_CLIENT_FLIGHT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/cancel.h"
#include "base/error.h"
#include "client/peer_node.h"
#include "transport/transport.h"

struct tarn_flight_link;

enum tarn_end {
    TARN_END_DONE,     /* work.status is the transport's word */
    TARN_END_BROKEN,   /* the link broke */
    TARN_END_SILENT,   /* the node kept silent for longer than the patience */
    TARN_END_EXPIRED,  /* the transfer's own deadline */
    TARN_END_CANCELED, /* the transfer's own cancel */
    TARN_END_SHIFTED,  /* its link was closed on another transfer's account; nothing speaks against trying
                          again */
};

struct tarn_transfer {
    struct tarn_work work;
    struct tarn_transfer *prev, *next;
    struct tarn_flight_link *fl;
    uint64_t deadline_ns, patience_ns;
    const struct tarn_cancel *cancel; /* its own; NULL: none */
    enum tarn_end end;
    bool fresh; /* its link was made for this flight */
    const struct tarn_side
        *quiet_on;           /* over which nothing came when it was waited for before; NULL: none. Set it */
    uint64_t quiet_ns;       /* ... since when */
    char why[TARN_SENTENCE]; /* the transport's sentence when it refused the work; "" otherwise */
};

/* The transfers of a flight over one link. */
struct tarn_flight_link {
    struct tarn_flight_link *next;
    struct tarn_side *side;
    bool fresh;
    bool kick;  /* works were posted since progress was made: it may send at once */
    bool loose; /* a link was closed on which the node may still take what was put: tarn_link_close() */
    struct tarn_flight *flight;
    struct tarn_open_link *open_link; /* NULL: closed */
    struct tarn_transfer *transfers;  /* posted ones first */
    struct tarn_transfer *unposted;   /* the first pending one */
    uint64_t since_ns;                /* when works began to be waited for */
    uint64_t active_ns;               /* last sign of life since; since_ns: there was none */
    uint64_t ended_ns;                /* the same of transfers that ended */
    uint64_t deadline_ns;             /* not later than the earliest of the transfers */
    uint64_t patience_ns;             /* not longer than the shortest of the transfers */
    enum tarn_end closing;            /* why, while it is being closed */
    uint64_t closing_ns;
};

/* The works of one thread, and the links it has taken for them. It stays where it is. */
struct tarn_flight {
    struct tarn_client *client;
    struct tarn_flight_link *links, first; /* most flights need one lane */
    void *fds; /* struct pollfd, one a lane and one for the cancel; none while there is nothing to poll */
    uint32_t nlinks, room;
    uint32_t inflight;
    struct tarn_transfer *ended;
    struct tarn_cancel *cancel; /* of all that the thread runs, in flight or not; NULL: none */
    uint64_t until_ns;          /* opening a link may not take longer: others wait for it; 0: no such limit */
};

void tarn_flight_init(struct tarn_flight *f, struct tarn_client *c, struct tarn_cancel *cancel);
/*
 * Sends a transfer on its way: work filled but for done and owner's link, deadline, patience, cancel set.
 * Completed inline on a shared link or later, it comes out of tarn_flight_next exactly once. A failure
 * (no link) leaves it with the caller.
 */
int tarn_flight_post(struct tarn_flight *f, struct tarn_side *s, struct tarn_transfer *x, uint64_t now_ns);
/* Would a post have to make a link first? That may take a while, so post what needs none before. */
bool tarn_flight_opens(const struct tarn_flight *f, struct tarn_side *s);
/* Sends what was posted, without waiting. */
void tarn_flight_push(struct tarn_flight *f);
/* Canceled transfers have ended when this returns. */
void tarn_flight_cancel(struct tarn_flight *f);
/* The next transfer that ended, waiting for it; NULL when none is in flight, or something was canceled
 * that is not. */
struct tarn_transfer *tarn_flight_next(struct tarn_flight *f);
/* Gives the links back. Nothing is in flight any more: either all came out, or they are ended here. */
void tarn_flight_end(struct tarn_flight *f);

#endif
