/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The channels of a client, and what their two ends have told each other.
 *
 * A receive goes through these states; it is in its channel's `receives` until it ends:
 *
 *   NEW --its turn--> POSTING --the peer has it--> POSTED --the peer has delivered--> DONE
 *                        \------------- the peer was quick ------------------^
 *
 * POSTs of a channel go out one after the other, in the order of the receives, so the peer knows it. Their
 * ids count up: a POST that is late, and was given up, is told from the next ones.
 *
 * A send is in its channel's `sends` until it ends. The first send of a tag is at its turn: it takes the
 * oldest announcement of the tag, or waits for one. So sends of a tag do not overtake one another.
 *
 * The receiver decides. DELIVER ends a receive that is still in `receives`, under the lock; if it has ended,
 * the answer is STALE, and the send takes the next announcement. So UNPOST, which withdraws an announcement,
 * may be late or lost.
 *
 * A channel ends once (`end`): it was closed, or is broken. What ends it:
 *   - at both ends, a command to the peer that finds the connection broken, or the channel unknown;
 *   - at both ends, the peer's HANGUP;
 *   - at the connector, the end of its lifeline, the connection on which it has said CONNECT;
 *   - at the acceptor, the end of the connector's session, which lives as long as the lifeline.
 * The acceptor's session at the connector proves nothing: it dials when it needs to, and may hang up.
 *
 * Threads: any. `lock` guards all of it; nothing is waited for under it but conditions. The operations' lock
 * and that of what the lender lends (lent.h) are taken under it.
 */
#ifndef TARN_CLIENT_WINDOW_CHANNELS_H
#define TARN_CLIENT_WINDOW_CHANNELS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include <tarn/channel.h>

#include "base/error.h"
#include "base/loop.h"
#include "client/peer_node.h"
#include "client/window/lent.h"
#include "client/window/party.h"
#include "client/window/reach.h"
#include "transport/host/host.h"

#define TARN_UNACCEPTED_MAX 1024
#define TARN_ANNOUNCED_MAX 65536 /* of a channel, not taken yet */

/* A receive that the peer has posted. */
struct tarn_announcement {
    struct tarn_announcement *prev, *next;
    uint64_t id, tag;
    struct tarn_reach *reach; /* NULL: for at most TARN_SMALL_MAX bytes, which go with DELIVER */
    size_t n;
    uint64_t capacities[];
};

enum tarn_receive_state { TARN_RECEIVE_NEW, TARN_RECEIVE_POSTING, TARN_RECEIVE_POSTED, TARN_RECEIVE_DONE };

/* A send or receive under way. */
struct tarn_channel_call {
    struct tarn_channel_call *prev, *next; /* in its channel */
    struct tarn_channel *channel;
    bool send;
    uint64_t tag, bytes; /* bytes: of all items */
    struct tarn_channel_item *items, one;
    size_t n;
    uint64_t *bytes_p;
    struct tarn_channel_options options;
    struct tarn_lease *lease; /* NULL: a send, or a receive of at most TARN_SMALL_MAX bytes */

    bool submitted;
    _Atomic tarn_op op; /* submitted */
    /* A receive is DONE; on the lender's thread, with the lock held. The call may be freed by this. */
    void (*done)(struct tarn_channel_call *k);
    pthread_cond_t woken; /* else */

    enum tarn_receive_state state;
    uint64_t id;                /* of the announcement */
    struct tarn_reason outcome; /* DONE */
    char *data;                 /* DONE: the bytes that came with DELIVER; NULL: they are in place */
};

struct tarn_channel {
    struct tarn_channel *prev, *next;
    struct tarn_channels *all;
    uint64_t id, peer_id; /* what it is called here, and at the peer */
    uint64_t session;     /* the peer's, at this lender */
    bool accepts;         /* the peer has connected */
    struct tarn_peer_node *node;
    struct tarn_channel_peer peer;
    char who[256];          /* for sentences */
    bool unaccepted;        /* waits for tarn_channel_accept() */
    uint32_t refs;          /* the application's handle, and each call */
    struct tarn_reason end; /* code 0: it is open */
    struct tarn_channel_call *sends, *receives;
    struct tarn_announcement *announced;
    uint32_t nannounced;
    uint64_t last_announced, last_posted; /* ids */
    struct tarn_control_conn *lifeline;   /* the lender's thread, as the next one */
    struct tarn_watch *watch;
};

struct tarn_channels {
    struct tarn_client *client;
    struct tarn_lent *lent;
    const struct tarn_host *host;
    struct tarn_party self;
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    struct tarn_channel *list;
    uint32_t nunaccepted;
    int accept_fd; /* an eventfd: readable while there are some; -1: this client does not listen */
    uint64_t last_id;
};

void tarn_channels_init(struct tarn_channels *all, struct tarn_client *c, struct tarn_lent *lent,
                        const struct tarn_host *host);
/* At close of the client. The lender's thread does not run. */
void tarn_channels_end(struct tarn_channels *all);
/* Has tarn_channel_listen() been called? */
bool tarn_channels_listen(struct tarn_channels *all);
/* Adds lines for INFO. */
void tarn_channels_info(struct tarn_channels *all, struct tarn_buf *text);
/* The session is over: its channels are broken. */
void tarn_channels_forget(struct tarn_channels *all, uint64_t session);

/* Makes a channel with one reference. NO_MEMORY. Takes the lock. */
int tarn_channel_new(struct tarn_channels *all, const struct tarn_party *peer, struct tarn_channel **ch_p);
/* Lets others know that it waits to be accepted. AGAIN: too many do. The lock is held. */
int tarn_channel_arrive(struct tarn_channel *ch);
/* The oldest that waits; NULL: none. The lock is held. */
struct tarn_channel *tarn_channel_take_arrived(struct tarn_channels *all);
/* NULL: there is none of that name for that session. The lock is held. */
struct tarn_channel *tarn_channel_find(struct tarn_channels *all, uint64_t id, uint64_t session);
/* Gives a reference back. The lock is held. */
void tarn_channel_unref(struct tarn_channel *ch);
/* Ends the channel with that code, unless it has ended, and wakes its calls. The lock is held. */
void tarn_channel_end(struct tarn_channel *ch, int code, const char *cause);
/* Makes the reason of its end the last error. */
int tarn_channel_fail(const struct tarn_channel *ch);

/* Must the call end without having done its part? 0: not yet. The lock is held. */
int tarn_channel_call_over(const struct tarn_channel_call *k, uint64_t deadline_ns,
                           const struct tarn_cancel *cancel);
/* Has the call look at what has changed. The lock is held. */
void tarn_channel_wake(struct tarn_channel_call *k);
/* The first send of that tag; NULL: none. The lock is held. */
struct tarn_channel_call *tarn_channel_first_send(const struct tarn_channel *ch, uint64_t tag);
void tarn_announcement_free(struct tarn_announcement *a);

/* How many bytes the pieces of each item have, with spaces between. */
void tarn_sizes_format(const struct tarn_channel_item *items, size_t n, struct tarn_buf *text);
/* How many sizes the text has. INVALID: too many. */
int tarn_sizes_count(const redisReply *text, size_t *n_p);
/* INVALID: they are no numbers. */
int tarn_sizes_parse(const redisReply *text, size_t n, uint64_t *sizes);

#endif
