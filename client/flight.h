/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Works in flight: one thread's transfers over the links that it has taken (flight links).
 *
 * A transfer is pending (its flight link has no room yet) or posted (the transport has it) until it ends;
 * then tarn_flight_next() returns it. The only way to take a posted work back is to close the link. So a
 * transfer that must end early (deadline, cancel, silence) closes its flight link. The others on it end as
 * SHIFTED and may be sent again. Closed links are not pooled.
 *
 * A flight link whose works show no sign of life for the shortest patience among them belongs to a silent
 * node.
 */
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
    TARN_END_DONE,     /* the transport has ended it: work.status */
    TARN_END_BROKEN,   /* the link broke */
    TARN_END_SILENT,   /* the node was silent for longer than the patience */
    TARN_END_EXPIRED,  /* its own deadline passed */
    TARN_END_CANCELED, /* its own cancel */
    TARN_END_SHIFTED,  /* another transfer closed the link: send it again */
};

struct tarn_transfer {
    struct tarn_work work;
    struct tarn_transfer *prev, *next;
    struct tarn_flight_link *fl;
    uint64_t term; /* puts: of the session in which the extent is reserved */
    uint64_t deadline_ns, patience_ns;
    const struct tarn_cancel *cancel; /* its own; NULL: none */
    enum tarn_end end;
    bool fresh;                       /* its link was made for this flight */
    bool refused;                     /* by the transport, for a reason that `why` has */
    const struct tarn_side *quiet_on; /* the side over which nothing came so far; the owner sets NULL first */
    uint64_t quiet_ns;                /* ... since when */
    struct tarn_reason *why;          /* the owner's, so that it is not among what every transfer uses */
};

/* The transfers of a flight over one link. */
struct tarn_flight_link {
    struct tarn_flight_link *next;
    struct tarn_side *side;
    bool fresh;
    bool kick;  /* works were posted since the last progress() */
    bool loose; /* a closed link may still write: tarn_link_close() got no answer */
    struct tarn_flight *flight;
    struct tarn_open_link *open_link; /* NULL: closed */
    struct tarn_transfer *transfers;  /* posted ones first */
    struct tarn_transfer *unposted;   /* the first pending one */
    uint64_t since_ns;                /* when the wait for works began */
    uint64_t active_ns;               /* last sign of life since; since_ns: there was none */
    uint64_t ended_ns;                /* when a transfer last ended */
    uint64_t deadline_ns;             /* at most the transfers' earliest */
    uint64_t patience_ns;             /* at most the transfers' shortest */
    enum tarn_end closing;            /* why, while it is being closed */
    uint64_t closing_ns;
};

/* Must not move in memory while in use. */
struct tarn_flight {
    struct tarn_client *client;
    struct tarn_flight_link *links, first; /* most flights need one */
    void *fds; /* struct pollfd: one a flight link, then the cancel's; NULL while nothing is polled */
    uint32_t nlinks, room;
    uint32_t inflight;
    struct tarn_transfer *ended;
    struct tarn_cancel *cancel; /* of all that the thread runs, in flight or not; NULL: none */
};

void tarn_flight_init(struct tarn_flight *f, struct tarn_client *c, struct tarn_cancel *cancel);
/*
 * Posts a transfer. The caller has filled its work (but for done, owner, why), deadline, patience, cancel and
 * the pointer to its reason.
 * tarn_flight_next() returns it exactly once. On failure (no link) it stays the caller's. Opening a link ends
 * at until_ns at the latest, since others wait; UINT64_MAX: nobody does.
 */
int tarn_flight_post(struct tarn_flight *f, struct tarn_side *s, struct tarn_transfer *x, uint64_t until_ns);
/* Would a post have to open a link? That may take a while, so post first what needs none. */
bool tarn_flight_opens(const struct tarn_flight *f, struct tarn_side *s);
/* Sends what was posted, without waiting. */
void tarn_flight_push(struct tarn_flight *f);
/* Ends the canceled transfers. */
void tarn_flight_cancel(struct tarn_flight *f);
/* Waits for the next transfer to end. NULL: none is in flight, or something that is not in flight was
 * canceled. */
struct tarn_transfer *tarn_flight_next(struct tarn_flight *f);
/* Closes the flight's own link of that side, if no transfer is on it: the next one opens another. */
void tarn_flight_drop(const struct tarn_flight *f, const struct tarn_side *s);
/* Ends what is still in flight and gives the links back. */
void tarn_flight_end(struct tarn_flight *f);

#endif
