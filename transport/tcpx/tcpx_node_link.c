/* SPDX-License-Identifier: Apache-2.0 */
/* TCPX, node half: one link, from HELLO to its end. */
#include "transport/tcpx/tcpx_node.h"

#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/error.h"

enum { UNREAD_BYTES = 1 << 20 }; /* limit for a client that reads no answers */

void tarn_tcpx_complain(struct tarn_tcpx_node_link *l, const char *why)
{
    struct tarn_tcpx_node *s = l->node;
    uint64_t now = tarn_now_ns();
    if (now - s->complained_ns < TARN_NS_PER_S)
        return;
    s->complained_ns = now;
    tarn_log(s->half.serve.log, TARN_LOG_WARN, "tcpx", "msg=\"closed a link\" cause=\"%s\" session=%016llx",
             why, (unsigned long long)l->session);
}

static int hello(struct tarn_tcpx_node_link *l, const struct tarn_tcpx_message *m)
{
    struct tarn_tcpx_node *s = l->node;
    uint8_t body[TARN_TCPX_BODY] = {0};
    struct tarn_tcpx_frame f = {.op = TARN_TCPX_HELLO};
    if (m->frame.op != TARN_TCPX_HELLO)
        return tarn_fail(TARN_E_PROTOCOL, "no HELLO");
    pthread_mutex_lock(&s->lock);
    l->admitted = tarn_token_is(s->tokens, m->frame.gen, (const char *)m->body);
    l->session = m->frame.gen;
    pthread_mutex_unlock(&s->lock);
    l->chunk_bytes = m->frame.bytes < s->gear.chunk_bytes ? (uint32_t)m->frame.bytes : s->gear.chunk_bytes;
    f.status = l->admitted ? 0 : TARN_E_AUTH;
    f.bytes = l->chunk_bytes;
    tarn_tcpx_wire_say(&l->wire, f, body);
    if (!l->admitted)
        return tarn_fail(TARN_E_AUTH, "the token is not that of a living session");
    if (l->chunk_bytes == 0)
        return tarn_fail(TARN_E_PROTOCOL, "messages of no bytes");
    l->hello_until_ns = 0;
    return 0;
}

static int request(struct tarn_tcpx_node_link *l, const struct tarn_tcpx_message *m)
{
    struct tarn_tcpx_node_lane *n;
    if (!l->admitted)
        return hello(l, m);
    switch (m->frame.op) {
    case TARN_TCPX_OPEN:
        return tarn_tcpx_lane_open(l, m);
    case TARN_TCPX_GET:
    case TARN_TCPX_PUT:
        DL_SEARCH_SCALAR(l->lanes, n, id, m->frame.lane);
        return n ? tarn_tcpx_lane_ask(n, &m->frame) : tarn_fail(TARN_E_PROTOCOL, "a request of no lane");
    case TARN_TCPX_TELL:
        DL_SEARCH_SCALAR(l->lanes, n, id, m->frame.lane);
        return n && tarn_tcpx_lends(n)
                   ? tarn_tcpx_window_tell(n, (const struct tarn_notice *)(const void *)m->body)
                   : tarn_fail(TARN_E_PROTOCOL, "a notification of no lane");
    default:
        return tarn_fail(TARN_E_PROTOCOL, "a message of no use");
    }
}

void tarn_tcpx_node_fail(struct tarn_tcpx_node_link *l, uint32_t lane, int status)
{
    struct tarn_reason why = {0};
    tarn_reason_keep(&why, status);
    tarn_tcpx_complain(l, why.text);
    tarn_tcpx_wire_say(
        &l->wire, (struct tarn_tcpx_frame){.op = TARN_TCPX_FAIL, .lane = lane, .status = status}, why.text);
    tarn_tcpx_wire_flush(&l->wire);
}

bool tarn_tcpx_node_hear(struct tarn_tcpx_node_link *l)
{
    struct tarn_tcpx_message m;
    int r;
    while ((r = tarn_tcpx_wire_next(&l->wire, &m)) > 0) {
        r = request(l, &m);
        if (r)
            break;
    }
    if (r && r != TARN_E_NODE_DOWN) /* a client closing the connection is normal */
        tarn_tcpx_node_fail(l, m.frame.lane, r);
    return r == 0;
}

enum tarn_tcpx_moved tarn_tcpx_node_move(struct tarn_tcpx_node_link *l)
{
    struct tarn_tcpx_node_lane *n;
    enum tarn_tcpx_moved moved = TARN_TCPX_IDLE;
    DL_FOREACH (l->lanes, n) {
        if (!tarn_tcpx_lane_busy(n))
            continue;
        int r = tarn_tcpx_lane_move(n);
        if (r < 0) {
            tarn_tcpx_node_fail(l, n->id, r);
            return TARN_TCPX_BROKEN;
        }
        enum tarn_tcpx_moved this = r ? TARN_TCPX_MOVED : n->ready ? TARN_TCPX_WAITS : TARN_TCPX_OPENS;
        moved = this > moved ? this : moved;
    }
    if (tarn_tcpx_wire_flush(&l->wire) < 0)
        return TARN_TCPX_BROKEN;
    if (l->wire.out.bytes > UNREAD_BYTES) {
        tarn_tcpx_complain(l, "the client does not read what it is told");
        return TARN_TCPX_BROKEN;
    }
    return moved;
}

int tarn_tcpx_node_let_go(struct tarn_tcpx_node_link *l)
{
    struct tarn_tcpx_node_lane *n, *next;
    DL_FOREACH_SAFE(l->lanes, n, next)
    tarn_tcpx_lane_close(n);
    return l->lanes ? TARN_E_AGAIN : 0;
}
