/* SPDX-License-Identifier: Apache-2.0 */
/* TCP, node half: the answers of a connection, their pins, and its log lines. */
#include "base/clock.h"
#include "base/error.h"
#include "transport/tcp/tcp_node.h"

void tarn_tcp_complain(struct tarn_tcp_conn *c, const char *what, const char *why)
{
    struct tarn_node_half *s = c->server;
    uint64_t now = tarn_now_ns(), last = atomic_load(&s->refused_log_ns);
    if (now - last < TARN_NS_PER_S || !atomic_compare_exchange_strong(&s->refused_log_ns, &last, now))
        return;
    tarn_log(s->serve.log, TARN_LOG_WARN, "tcp", "msg=\"%s\" cause=\"%s\" session=%016llx", what, why,
             (unsigned long long)c->session);
}

struct tarn_tcp_reply *tarn_tcp_reply_at(struct tarn_tcp_conn *c, uint32_t i)
{
    return &c->replies[(c->first + i) % TARN_TCP_ANSWERS];
}

bool tarn_tcp_names_a_slot(const struct tarn_tcp_conn *c, const struct tarn_tcp_frame *f)
{
    const struct tarn_serve *s = &c->server->serve;
    return f->pool < s->npools && f->slot < s->pools[f->pool].nslots;
}

void tarn_tcp_unpin_slot(struct tarn_tcp_conn *c, const struct tarn_tcp_frame *f)
{
    const struct tarn_guard *g = &c->server->serve.guard;
    g->unpin(g->arg, f->pool, f->slot, f->gen);
}

void tarn_tcp_unpin(struct tarn_tcp_conn *c, struct tarn_tcp_reply *r)
{
    if (r->pinned)
        tarn_tcp_unpin_slot(c, &r->frame);
    r->pinned = false;
}

void tarn_tcp_ready_get(struct tarn_tcp_conn *c, struct tarn_tcp_reply *r)
{
    const struct tarn_guard *g = &c->server->serve.guard;
    struct tarn_tcp_frame *f = &r->frame;
    f->status = TARN_E_STALE;
    if (tarn_tcp_names_a_slot(c, f))
        f->status = g->pin_read(g->arg, f->pool, f->slot, f->gen, f->offset, f->bytes, &r->payload);
    r->pinned = f->status == 0;
    if (f->status)
        f->bytes = 0;
    else if (!(f->op & TARN_TCP_NO_TOUCH))
        g->touch(g->arg, f->pool, f->slot);
    f->op = TARN_TCP_GET | TARN_TCP_ANSWER;
    r->ready = true;
}
