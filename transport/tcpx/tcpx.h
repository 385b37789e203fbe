/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCPX: moves tensors between hosts with a network plugin (tcpx_plugin.h). The plugin's connections carry
 * only bytes. Everything about them is said over a TCP connection of tarn's own, the link (docs/protocol.md):
 *
 *   client                                            node
 *   HELLO session token chunk           -->
 *                                       <--           HELLO status chunk
 *   gets: OPEN lane pool handle         -->           connects to the handle, sends on that
 *   puts: OPEN lane pool                -->
 *                                       <--           HANDLE lane handle: the client connects to that
 *   GET lane tag slot gen offset bytes  -->           pins the object
 *                                       <--           ANSWER lane tag status
 *   receives                            <==           sends, then unpins
 *   PUT lane tag slot gen offset bytes  -->           pins the reservation
 *                                       <--           ANSWER lane tag status
 *   sends                               ==>           receives, unpacks, unpins
 *                                       <--           DONE lane tag status
 *                                       <--           FAIL lane status sentence: the link is unusable
 *
 * Windows: a lease is pinned only while bytes are copied out of it or into it (tcpx_node_window.c).
 *
 *   TELL lane notice                    -->           the next PUT has this notification
 *                                       <--           DONE lane tag status, for gets, too: was the lease
 *                                                     there for all of it?
 *
 * A lane is a one-way comm of the plugin, for one pool of the node and one memory of the client (the host's
 * or a GPU's). Works of a lane are answered, moved and ended in the order of their requests, so bytes on the
 * plugin's connection need no names. A work's bytes are cut into messages of `chunk` bytes; the last has the
 * rest. Both sides know each message's length in advance. A work without bytes has no message.
 *
 * A sender closes a comm only when the receiver is done or gone. A client closes after DONE for its puts.
 * The node closes with the link, which the client closes when its gets' bytes have arrived.
 */
#ifndef TARN_TRANSPORT_TCPX_H
#define TARN_TRANSPORT_TCPX_H

#include "base/buf.h"
#include "transport/node_tokens.h"
#include "transport/notices.h"
#include "transport/tcpx/plugin/tcpx_abi.h"
#include "transport/transport.h"

enum { TARN_TCPX_CAPS = TARN_CAP_GPU | TARN_CAP_WINDOWS };

extern const struct tarn_transport_ops tarn_tcpx_ops;
extern const struct tarn_node_half_ops tarn_tcpx_node_ops;

int tarn_tcpx_probe(void);

/* --- frames ------------------------------------------------------------------------------------- */

#define TARN_TCPX_MAGIC 0x58545254u /* "TRTX" */
#define TARN_TCPX_WIRE 2
#define TARN_TCPX_OPS 64   /* unfinished works of a lane at the node, at most; */
#define TARN_TCPX_ASKED 48 /* at the client: the node learns a window later that its sends are done */
#define TARN_TCPX_LANES 64
#define TARN_TCPX_BODY 128 /* except FAIL's body, a sentence */

enum tarn_tcpx_op {
    TARN_TCPX_HELLO = 1, /* body: token */
    TARN_TCPX_OPEN,      /* body: handle */
    TARN_TCPX_HANDLE_IS, /* body: handle */
    TARN_TCPX_GET,
    TARN_TCPX_PUT,
    TARN_TCPX_ANSWER,
    TARN_TCPX_DONE,
    TARN_TCPX_FAIL, /* body: sentence */
    TARN_TCPX_UP,
    TARN_TCPX_TELL, /* body: struct tarn_notice */
};

enum { TARN_TCPX_PUTS = 1 << 0 /* OPEN */, TARN_TCPX_NO_TOUCH = 1 << 1 /* GET */ };

struct tarn_tcpx_frame {
    uint32_t magic;
    uint8_t version, op;
    uint16_t flags;
    uint32_t lane, pool, slot;
    int32_t status;
    uint64_t tag, gen, offset, bytes;
};
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "frames are little-endian and used in place");
_Static_assert(sizeof(struct tarn_tcpx_frame) == 56, "wire format");
_Static_assert(offsetof(struct tarn_tcpx_frame, lane) == 8, "wire format");
_Static_assert(offsetof(struct tarn_tcpx_frame, tag) == 24, "wire format");

struct tarn_tcpx_message {
    struct tarn_tcpx_frame frame;
    _Alignas(uint64_t) uint8_t body[TARN_SENTENCE]; /* for ops that have one */
};
_Static_assert(sizeof(struct tarn_notice) <= TARN_SENTENCE, "fits a body");

/* One end of a link: tcpx_wire.c. */
struct tarn_tcpx_wire {
    int fd; /* -1: closed */
    struct tarn_buf out;
    uint32_t have, at; /* bytes in `in`, and where the next message begins */
    bool drained;      /* the last read brought messages, and emptied the socket */
    uint8_t in[4096];
};

void tarn_tcpx_wire_say(struct tarn_tcpx_wire *w, struct tarn_tcpx_frame f, const void *body);
/* Sends what the socket takes. 1: something was sent; 0: nothing; NODE_DOWN. */
int tarn_tcpx_wire_flush(struct tarn_tcpx_wire *w);
/* 1: the next message; 0: none yet; NODE_DOWN: the connection has ended; PROTOCOL, VERSION. */
int tarn_tcpx_wire_next(struct tarn_tcpx_wire *w, struct tarn_tcpx_message *m);
void tarn_tcpx_wire_close(struct tarn_tcpx_wire *w);

#endif
