/* SPDX-License-Identifier: Apache-2.0 */
/* TCPX: messages of a link as bytes on its connection. Nothing here waits. */
#include "transport/tcpx/tcpx.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "base/net.h"

#define FRAME sizeof(struct tarn_tcpx_frame)

static size_t body_bytes(uint8_t op)
{
    if (op == TARN_TCPX_FAIL)
        return TARN_SENTENCE;
    if (op == TARN_TCPX_TELL)
        return sizeof(struct tarn_notice);
    return op == TARN_TCPX_HELLO || op == TARN_TCPX_OPEN || op == TARN_TCPX_HANDLE_IS ? TARN_TCPX_BODY : 0;
}

void tarn_tcpx_wire_say(struct tarn_tcpx_wire *w, struct tarn_tcpx_frame f, const void *body)
{
    f.magic = TARN_TCPX_MAGIC;
    f.version = TARN_TCPX_WIRE;
    tarn_buf_add(&w->out, &f, FRAME);
    tarn_buf_add(&w->out, body, body_bytes(f.op));
}

int tarn_tcpx_wire_flush(struct tarn_tcpx_wire *w)
{
    if (w->out.failed)
        return tarn_fail(TARN_E_NO_MEMORY, "tcpx: out of memory for what is to be said");
    if (w->out.bytes == 0)
        return 0;
    ssize_t n = send(w->fd, w->out.data, w->out.bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && tarn_net_would_block(errno))
        return 0;
    if (n < 0)
        return tarn_fail(TARN_E_NODE_DOWN, "tcpx: send: %m");
    tarn_buf_consume(&w->out, (size_t)n);
    return 1;
}

/* Is there a whole message? */
static int look(struct tarn_tcpx_wire *w, struct tarn_tcpx_message *m)
{
    uint32_t left = w->have - w->at;
    if (left < FRAME)
        return 0;
    memcpy(&m->frame, w->in + w->at, FRAME);
    if (m->frame.magic != TARN_TCPX_MAGIC)
        return tarn_fail(TARN_E_PROTOCOL, "tcpx: received something that is no message of tarn");
    if (m->frame.version != TARN_TCPX_WIRE)
        return tarn_fail(TARN_E_VERSION, "tcpx: the peer speaks version %u, this end %u: update one of them",
                         m->frame.version, TARN_TCPX_WIRE);
    size_t body = body_bytes(m->frame.op);
    if (left < FRAME + body)
        return 0;
    memcpy(m->body, w->in + w->at + FRAME, body);
    w->at += (uint32_t)(FRAME + body);
    return 1;
}

int tarn_tcpx_wire_next(struct tarn_tcpx_wire *w, struct tarn_tcpx_message *m)
{
    int r = look(w, m);
    if (r)
        return r;
    if (w->drained) {
        w->drained = false;
        return 0;
    }
    memmove(w->in, w->in + w->at, w->have - w->at);
    w->have -= w->at;
    w->at = 0;
    ssize_t n = recv(w->fd, w->in + w->have, sizeof(w->in) - w->have, MSG_DONTWAIT);
    if (n < 0 && tarn_net_would_block(errno))
        return 0;
    if (n <= 0)
        return tarn_fail(TARN_E_NODE_DOWN, n ? "tcpx: receive: %m" : "tcpx: the peer closed the connection");
    w->have += (uint32_t)n;
    r = look(w, m);
    w->drained = r > 0 && w->have < sizeof(w->in);
    return r;
}

void tarn_tcpx_wire_close(struct tarn_tcpx_wire *w)
{
    if (w->fd >= 0)
        close(w->fd);
    w->fd = -1;
    tarn_buf_free(&w->out);
}
