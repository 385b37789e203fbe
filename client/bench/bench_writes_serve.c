/* SPDX-License-Identifier: Apache-2.0 */
/* Rank 1 of `tarn-bench ring --peer` (bench_writes.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "client/bench/bench_writes.h"

/* What an order SET_UP has set up. */
struct stage {
    struct bench_landing landing;
    struct tarn_window *window;
    struct tarn_lease *lease;
    struct tarn_reach *credit;
    const struct bench_wire_ops *wire_ops;
    struct bench_wire *wire;
};

struct rank1 {
    const struct bench_env *e;
    struct tarn_client *c;
    struct tarn_channel *ch;
    struct stage stage;
};

/* --- parts -------------------------------------------------------------------------------------- */

/* The next part that has arrived. */
static int next_part(const struct stage *s, uint64_t *count_p)
{
    struct tarn_notification got;
    int rc = tarn_notification_next(s->window, BENCH_WRITES_PATIENCE_MS, &got);

    *count_p = rc == 0 ? got.tag : 0;
    return rc;
}

static int give_credit(const struct stage *s, uint64_t count)
{
    struct bench_credit credit = {count, ~count};
    const struct tarn_piece piece = {.addr = &credit, .bytes = sizeof credit};
    const struct tarn_move_options o = {.size = sizeof o, .timeout_ms = BENCH_WRITES_PATIENCE_MS};
    struct tarn_move m = {.pieces = &piece, .npieces = 1};

    return tarn_write(s->credit, &m, 1, &o);
}

static int take_parts(struct stage *s)
{
    struct bench_landing *l = &s->landing;
    uint64_t told = l->verified, count;
    int rc = 0;

    while (rc == 0 && l->verified < l->last) {
        rc = next_part(s, &count);
        if (rc == 0)
            rc = bench_landing_take(l, count, count);
        if (rc == 0 && bench_landing_owes(l, told)) {
            rc = give_credit(s, l->verified);
            told = l->verified;
        }
        if (rc == 0 && bench_interrupted())
            rc = tarn_fail(TARN_E_CANCELED, "interrupted");
    }
    return rc;
}

/* --- the stage ---------------------------------------------------------------------------------- */

static int tear_down(struct stage *s)
{
    int rc = s->window ? tarn_window_close(s->window, BENCH_WRITES_PATIENCE_MS) : 0;

    tarn_reach_free(s->credit);
    if (s->wire_ops)
        s->wire_ops->close(s->wire);
    if (rc == 0) /* else a peer may still write there */
        tarn_window_free(s->landing.memory);
    free(s->landing.landed);
    memset(s, 0, sizeof *s);
    return rc;
}

static int lend(struct rank1 *r, char *descriptor)
{
    const struct tarn_lease_options o = {.size = sizeof o, .flags = TARN_LEASE_WRITE};
    struct stage *s = &r->stage;
    uint64_t bytes = (uint64_t)s->landing.shape.bytes * s->landing.shape.slots;
    void *memory;
    int rc = tarn_window_alloc(bytes, 0, &memory);

    if (rc != 0)
        return rc;
    s->landing.memory = memset(memory, BENCH_POISON, bytes);
    rc = tarn_window_new(r->c, memory, bytes, &s->window);
    if (rc == 0)
        rc = tarn_lease(s->window, NULL, 0, &o, &s->lease);
    return rc ? rc : tarn_lease_descriptor(s->lease, descriptor);
}

static int set_up(struct rank1 *r, const struct bench_writes_order *q, struct bench_writes_answer *a)
{
    struct stage *s = &r->stage;
    int rc = tear_down(s);

    if (rc != 0)
        return rc;
    s->landing.shape = q->shape;
    s->landing.landed = calloc(q->shape.slots, sizeof *s->landing.landed);
    if (!s->landing.landed)
        return tarn_fail(TARN_E_NO_MEMORY, "%u slots: out of memory", q->shape.slots);
    rc = lend(r, a->landing);
    if (rc == 0)
        rc = tarn_reach(r->c, q->credit, BENCH_WRITES_PATIENCE_MS, &s->credit);
    s->wire_ops = bench_wire_beside(q->beside);
    if (rc != 0 || !s->wire_ops)
        return rc;
    rc = s->wire_ops->offer(r->e, &q->shape, s->landing.memory, a->wire, &s->wire);
    return rc ? rc : s->wire_ops->join(s->wire, q->wire);
}

static int obey(struct rank1 *r, const struct bench_writes_order *q, struct bench_writes_answer *a)
{
    struct stage *s = &r->stage;

    if (q->what == BENCH_WRITES_SET_UP)
        return set_up(r, q, a);
    s->landing.verified = q->counted;
    s->landing.last = q->last;
    return q->what == BENCH_WRITES_OURS ? take_parts(s) : s->wire_ops->take(s->wire, &s->landing);
}

/* --- serving ------------------------------------------------------------------------------------ */

static int accept_rank0(struct rank1 *r)
{
    char address[TARN_CHANNEL_ADDRESS_MAX];
    struct tarn_channel_peer peer;
    int rc = tarn_channel_listen(r->c);

    if (rc == 0)
        rc = tarn_channel_address(r->c, address, NULL);
    if (rc != 0)
        return rc;
    printf("listening at %s\n", address);
    fflush(stdout);
    do
        rc = tarn_channel_accept(r->c, BENCH_WRITES_ANSWER_MS, &r->ch);
    while (rc == TARN_E_TIMEOUT);
    if (rc == 0)
        rc = tarn_channel_peer(r->ch, &peer);
    if (rc == 0 && strcmp(peer.hello, tarn_version()) != 0)
        rc = tarn_fail(TARN_E_VERSION, "rank 0 at %s is version \"%.*s\", this is %s: run the same at both",
                       peer.address, 32, peer.hello, tarn_version());
    return rc;
}

/* One order and its answer. */
static int serve_one(struct rank1 *r, bool *ended)
{
    struct bench_writes_answer a = {0};
    struct bench_writes_order q;
    int rc = bench_writes_receive(r->ch, &q, sizeof q);

    if (rc != 0)
        return rc;
    *ended = q.what == BENCH_WRITES_END;
    a.status = *ended ? tear_down(&r->stage) : obey(r, &q, &a);
    if (a.status != 0)
        snprintf(a.error, sizeof a.error, "%s", tarn_last_error());
    rc = bench_writes_send(r->ch, &a, sizeof a);
    return a.status ? tarn_fail(a.status, "%s", a.error) : rc;
}

static int serve(struct rank1 *r)
{
    bool ended = false;
    int rc = 0;

    while (rc == 0 && !ended)
        rc = serve_one(r, &ended);
    return rc;
}

int bench_writes_serve(struct bench_env *e)
{
    struct rank1 r = {.e = e};
    int rc = bench_start_directory(e);

    if (rc == 0)
        rc = bench_writes_client(e, NULL, &r.c);
    if (rc == 0)
        rc = accept_rank0(&r);
    if (rc == 0)
        rc = serve(&r);
    struct tarn_reason why;
    tarn_reason_keep(&why, rc);
    (void)tear_down(&r.stage); /* tarn_close() ends what could not be */
    tarn_channel_close(r.ch);
    tarn_close(r.c);
    return tarn_reason_fail(&why);
}
