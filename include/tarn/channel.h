/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels: messages between two clients, send and receive with tags.
 *
 * One client listens; another connects and tells a few bytes about itself (*hello*). Then both send and
 * receive over the channel, in both directions. A message is a list of items; tarn_send() and tarn_recv()
 * are for one. A send takes the oldest receive of its tag that the other side has posted, or waits for one.
 * Sends and receives of a tag match in the order in which they were called or submitted. Tags are
 * independent of one another.
 *
 * Bytes go straight into the receiver's memory: a receive of more than 4 KiB is a lease for writing
 * (window.h) that the sender gets to know, so its pieces must lie in one window. What fits into 4 KiB travels
 * with the command that tells of it.
 *
 * How races end. The receiver decides; a message is received once or not at all.
 *   - A receive times out or is canceled while a message is on its way: if the message was complete before,
 *     it counts as received, and the result is 0. Else the receive has ended: no byte arrives any more, and
 * the sender goes on to the next receive of the tag, or waits for one.
 *   - A send times out or is canceled: before it has found a receive, nothing has happened. Afterwards the
 *     receive ends with AGAIN, or with the message if only the receiver's word was missing.
 *   - The other client's process ends, it closes the channel, or a connection between the two breaks: the
 *     channel is broken. Each send and receive ends once, with NODE_DOWN and a sentence that names the peer.
 *     Receives of messages that were complete before end with 0.
 *   - tarn_channel_close(): sends and receives under way end with CLOSED.
 *
 * A peer that has stopped is no broken channel: calls end with TIMEOUT. If it was stopped in the middle of a
 * copy into a receive on this host, that receive ends with BUSY: the memory belongs to the lease until
 * tarn_window_close() has returned 0.
 *
 * Rules of tarn.h hold here, too. A channel may be used by any number of threads at once, but is closed by
 * one. Memory may be the host's or a GPU's at either end; what kernels still write must be waited for first.
 */
#ifndef TARN_CHANNEL_H
#define TARN_CHANNEL_H

#include <tarn/window.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* exported by libtarn.so, see client/libtarn.map */

#define TARN_HELLO_MAX 256           /* bytes that a connector tells */
#define TARN_SMALL_MAX 4096          /* bytes of a receive that needs no window */
#define TARN_CHANNEL_ITEMS_MAX 8192  /* items of a message */
#define TARN_CHANNEL_ADDRESS_MAX 128 /* bytes of an address, with its NUL */

struct tarn_channel;

/* --- connecting --------------------------------------------------------------------------------- */

/*
 * Lets others connect, at tarn_options.listen and at a Unix socket. CONFIG: tarn_options.listen is not a
 * loopback address, and this client has no secret (tarn_options.secret or $TARN_SECRET).
 */
int tarn_channel_listen(struct tarn_client *c);
/* Where this client listens: "host:port", and the path of the Unix socket. Either may be NULL. INVALID: it
 * does not listen. */
int tarn_channel_address(struct tarn_client *c, char address[TARN_CHANNEL_ADDRESS_MAX],
                         char unix_path[TARN_CHANNEL_ADDRESS_MAX]);
/*
 * Connects to a client that listens, at "host:port" or at the path of a Unix socket. The peer reaches this
 * client at tarn_options.listen. It need not have accepted yet: messages wait.
 *
 * Errors: AUTH (the peer wants a secret, and it is not this client's), NODE_DOWN (nobody answers),
 * NOT_FOUND (the client there does not listen), AGAIN (1024 channels wait to be accepted there), CONFIG
 * (the peer is on another host, and tarn_options.listen is a loopback address), VERSION, TIMEOUT, INVALID.
 */
int tarn_channel_connect(struct tarn_client *c, const char *address, const void *hello, size_t hello_bytes,
                         uint32_t timeout_ms, struct tarn_channel **ch_p);
/* The same as an operation of the client. *ch_p stays until the completion; with status 0 it is set. */
int tarn_submit_connect(struct tarn_client *c, const char *address, const void *hello, size_t hello_bytes,
                        uint32_t timeout_ms, uint64_t cookie, struct tarn_channel **ch_p, tarn_op *op_p);
/* Takes the oldest channel that waits. TIMEOUT: none has come. INVALID: this client does not listen. */
int tarn_channel_accept(struct tarn_client *c, uint32_t timeout_ms, struct tarn_channel **ch_p);
/* Readable while channels wait to be accepted. Owned by the client: poll it, never read or close it. */
int tarn_channel_accept_fd(struct tarn_client *c);

struct tarn_channel_peer {
    char address[TARN_CHANNEL_ADDRESS_MAX]; /* where it answers: "host:port" */
    uint64_t id;                            /* the same for all channels with that client */
    uint32_t hello_bytes;                   /* accepted channels: what the connector has told */
    uint32_t reserved;
    char hello[TARN_HELLO_MAX];
};
int tarn_channel_peer(const struct tarn_channel *ch, struct tarn_channel_peer *out);
/* Frees the channel; the peer finds it broken. NULL is allowed. */
void tarn_channel_close(struct tarn_channel *ch);

/* --- messages ----------------------------------------------------------------------------------- */

struct tarn_channel_options {
    size_t size;
    uint32_t timeout_ms;
    uint32_t flags; /* 0 */
};

/* One item of a message. */
struct tarn_channel_item {
    const struct tarn_piece *pieces;
    uint32_t npieces;
    uint32_t reserved;
    uint64_t bytes; /* receive: out: the size of what was sent; also when the status is SIZE and the two sides
                       have as many items */
};

/*
 * Sends a message. 0: it has been received. SIZE: the receive has other items, or smaller ones: it has ended
 * with SIZE, too, and nothing was written. Other errors: NODE_DOWN, TIMEOUT, CANCELED, CLOSED,
 * NOT_REACHABLE, INVALID.
 */
int tarn_send(struct tarn_channel *ch, uint64_t tag, const struct tarn_piece *pieces, uint32_t npieces,
              const struct tarn_channel_options *o);
/*
 * Receives a message of at most as many bytes as the pieces have. *bytes_p (may be NULL): its size, also with
 * SIZE, when it was longer. After an error the memory may hold a part of a message. Other errors: AGAIN (the
 * sender gave up in the middle: receive again), NODE_DOWN, TIMEOUT, CANCELED, CLOSED, BUSY, INVALID.
 */
int tarn_recv(struct tarn_channel *ch, uint64_t tag, const struct tarn_piece *pieces, uint32_t npieces,
              const struct tarn_channel_options *o, uint64_t *bytes_p);
/* The same for messages of n items, up to TARN_CHANNEL_ITEMS_MAX. Both sides have as many. */
int tarn_sendv(struct tarn_channel *ch, uint64_t tag, struct tarn_channel_item *items, size_t n,
               const struct tarn_channel_options *o);
int tarn_recvv(struct tarn_channel *ch, uint64_t tag, struct tarn_channel_item *items, size_t n,
               const struct tarn_channel_options *o);

/* The same as operations of the client (tarn_event_fd(), tarn_drain(), tarn_wait(), tarn_cancel()). One that
 * waits for its peer holds up no others. Items and pieces stay until the completion. */
int tarn_submit_send(struct tarn_channel *ch, uint64_t tag, const struct tarn_piece *pieces, uint32_t npieces,
                     const struct tarn_channel_options *o, uint64_t cookie, tarn_op *op_p);
int tarn_submit_recv(struct tarn_channel *ch, uint64_t tag, const struct tarn_piece *pieces, uint32_t npieces,
                     const struct tarn_channel_options *o, uint64_t *bytes_p, uint64_t cookie, tarn_op *op_p);
int tarn_submit_sendv(struct tarn_channel *ch, uint64_t tag, struct tarn_channel_item *items, size_t n,
                      const struct tarn_channel_options *o, uint64_t cookie, tarn_op *op_p);
int tarn_submit_recvv(struct tarn_channel *ch, uint64_t tag, struct tarn_channel_item *items, size_t n,
                      const struct tarn_channel_options *o, uint64_t cookie, tarn_op *op_p);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
