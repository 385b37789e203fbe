/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank 1 of `tarn-bench ring --peer` (bench_writes.h). Parts are forwarded from the landing place, memory of
 * the host, to their final place: memory of the first GPU, or of the host where there is none. They are
 * verified there, in the order of their counts; those of a GPU are fetched first. A wire's parts are verified
 * in the landing place.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tarn/forward.h>

#include "base/clock.h"
#include "base/error.h"
#include "client/bench/bench_writes.h"
#include "transport/cuda/cuda.h"

#define NAP_NS 50000 /* polls and rests in turn for so long, to leave the CPU to those who work */

/* What an order SET_UP has set up. */
struct stage {
    struct bench_landing landing;
    char *landing_place;
    struct tarn_window *window;
    struct tarn_lease *lease;
    void *final_place; /* of the GPU, or `seen` */
    char *seen;        /* what was forwarded, in memory of the host */
    uint64_t fetched;  /* parts that `seen` has */
    struct tarn_forward *forward;
    struct tarn_arrivals arrivals;
    struct tarn_reach *credit;
    const struct bench_wire_ops *wire_ops;
    struct bench_wire *wire;
};

struct rank1 {
    const struct bench_env *e;
    struct tarn_client *c;
    struct tarn_channel *ch;
    struct bench_bare *bare; /* of the first GPU; NULL: there is none */
    struct stage stage;
};

/* --- parts -------------------------------------------------------------------------------------- */

static uint32_t slot_of(const struct stage *s, uint64_t count)
{
    return (uint32_t)((count - 1) % s->landing.shape.slots);
}

/* How often its place has been written when part `count` is there. */
static uint64_t turn_of(const struct stage *s, uint64_t count)
{
    return (count - 1) / s->landing.shape.slots + 1;
}

static int await_part(const struct stage *s, uint64_t count)
{
    uint64_t deadline = tarn_deadline(BENCH_WRITES_PATIENCE_MS), turn = turn_of(s, count), turns;
    const struct timespec nap = {.tv_nsec = NAP_NS};
    int rc;

    while ((rc = tarn_dev_wait_part(&s->arrivals, slot_of(s, count), turn, NAP_NS)) == TARN_E_TIMEOUT &&
           tarn_now_ns() < deadline && !bench_interrupted())
        nanosleep(&nap, NULL);
    if (rc != 0)
        return tarn_fail(rc, "part %llu has not come: %s", (unsigned long long)count, tarn_strerror(rc));
    turns = tarn_dev_load64(&s->arrivals.counts[slot_of(s, count)]);
    tarn_dev_fence();
    if (turns == turn)
        return 0;
    return tarn_fail(TARN_E_INVALID, "part %llu came again, or one of its place that is not due",
                     (unsigned long long)count);
}

/* Fetches this part, and those behind it that have arrived and lie behind it. */
static int fetch_parts(const struct rank1 *r, struct stage *s, uint64_t count)
{
    const struct bench_writes_shape *shape = &s->landing.shape;
    uint32_t first = slot_of(s, count), n = 1;

    while (first + n < shape->slots && count + n <= s->landing.last &&
           tarn_dev_load64(&s->arrivals.counts[first + n]) == turn_of(s, count + n))
        n++;
    s->fetched = count + n - 1;
    tarn_dev_fence();
    uint64_t from = (uint64_t)first * shape->bytes;
    return bench_bare_fetch(r->bare, (char *)s->final_place + from, (size_t)n * shape->bytes, s->seen + from);
}

/* The next part that has arrived at its final place. */
static int next_part(const struct rank1 *r, struct stage *s, uint64_t *count_p)
{
    uint64_t count = s->landing.verified + 1;
    int rc = await_part(s, count);

    *count_p = count;
    if (rc == 0 && r->bare && count > s->fetched)
        rc = fetch_parts(r, s, count);
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

static int take_parts(struct rank1 *r)
{
    struct stage *s = &r->stage;
    struct bench_landing *l = &s->landing;
    uint64_t told = l->verified, count;
    int rc = 0;

    l->memory = s->seen;
    while (rc == 0 && l->verified < l->last) {
        rc = next_part(r, s, &count);
        if (rc == 0)
            rc = bench_landing_take(l, count, count);
        if (rc == 0 && bench_landing_owes(l, told)) {
            rc = give_credit(s, l->verified);
            told = l->verified;
        }
    }
    if (rc == 0 && tarn_dev_load64(s->arrivals.total) != l->last)
        return tarn_fail(TARN_E_INVALID, "more parts than %llu have come", (unsigned long long)l->last);
    return rc;
}

/* --- the stage ---------------------------------------------------------------------------------- */

static int tear_down(struct rank1 *r)
{
    struct stage *s = &r->stage;

    tarn_forward_free(s->forward);
    int rc = s->window ? tarn_window_close(s->window, BENCH_WRITES_PATIENCE_MS) : 0;
    tarn_reach_free(s->credit);
    if (s->wire_ops)
        s->wire_ops->close(s->wire);
    if (rc == 0) /* else a peer may still write there */
        tarn_window_free(s->landing_place);
    if (r->bare && s->final_place)
        bench_bare_drop(r->bare, s->final_place);
    free(s->seen);
    free(s->landing.landed);
    memset(s, 0, sizeof *s);
    return rc;
}

static uint64_t bytes_of(const struct stage *s)
{
    return (uint64_t)s->landing.shape.bytes * s->landing.shape.slots;
}

static int lend(struct rank1 *r, char *descriptor)
{
    const struct tarn_lease_options o = {.size = sizeof o, .flags = TARN_LEASE_WRITE};
    struct stage *s = &r->stage;
    void *memory;
    int rc = tarn_window_alloc(bytes_of(s), 0, &memory);

    if (rc != 0)
        return rc;
    s->landing_place = memset(memory, BENCH_POISON, bytes_of(s));
    rc = tarn_window_new(r->c, memory, bytes_of(s), &s->window);
    if (rc == 0)
        rc = tarn_lease(s->window, NULL, 0, &o, &s->lease);
    return rc ? rc : tarn_lease_descriptor(s->lease, descriptor);
}

static int forward(struct rank1 *r)
{
    struct stage *s = &r->stage;
    const struct bench_writes_shape *shape = &s->landing.shape;
    int rc = 0;

    s->seen = malloc(bytes_of(s));
    if (!s->seen)
        return tarn_fail(TARN_E_NO_MEMORY, "%u slots: out of memory", shape->slots);
    memset(s->seen, BENCH_POISON, bytes_of(s));
    s->final_place = s->seen;
    if (r->bare) {
        s->final_place = NULL;
        rc = bench_bare_upload(r->bare, s->seen, bytes_of(s), &s->final_place);
    }
    const struct tarn_forward_options o = {.size = sizeof o,
                                           .lease = s->lease,
                                           .to = s->final_place,
                                           .bytes = shape->bytes,
                                           .slots = shape->slots,
                                           .parts = shape->slots};
    if (rc == 0)
        rc = tarn_forward_new(r->c, &o, &s->forward);
    return rc ? rc : tarn_forward_arrivals(s->forward, &s->arrivals);
}

static int set_up(struct rank1 *r, const struct bench_writes_order *q, struct bench_writes_answer *a)
{
    struct stage *s = &r->stage;
    int rc = tear_down(r);

    if (rc != 0)
        return rc;
    s->landing.shape = q->shape;
    s->landing.landed = calloc(q->shape.slots, sizeof *s->landing.landed);
    if (!s->landing.landed)
        return tarn_fail(TARN_E_NO_MEMORY, "%u slots: out of memory", q->shape.slots);
    rc = lend(r, a->landing);
    if (rc == 0)
        rc = forward(r);
    if (rc == 0)
        rc = tarn_reach(r->c, q->credit, BENCH_WRITES_PATIENCE_MS, &s->credit);
    s->wire_ops = bench_wire_beside(q->beside);
    if (rc != 0 || !s->wire_ops)
        return rc;
    rc = s->wire_ops->offer(r->e, &q->shape, s->landing_place, a->wire, &s->wire);
    return rc ? rc : s->wire_ops->join(s->wire, q->wire);
}

static int obey(struct rank1 *r, const struct bench_writes_order *q, struct bench_writes_answer *a)
{
    struct stage *s = &r->stage;

    if (q->what == BENCH_WRITES_SET_UP)
        return set_up(r, q, a);
    s->landing.verified = q->counted;
    s->landing.last = q->last;
    if (q->what == BENCH_WRITES_OURS)
        return take_parts(r);
    s->landing.memory = s->landing_place;
    return s->wire_ops->take(s->wire, &s->landing);
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
    printf("parts go to %s\nlistening at %s\n", r->bare ? "GPU 0" : "memory of the host", address);
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
    a.status = *ended ? tear_down(r) : obey(r, &q, &a);
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
    int n, rc = bench_start_directory(e);

    if (rc == 0 && tarn_cuda_count(&n) == 0 && n > 0)
        rc = bench_bare_open(0, &r.bare);
    if (rc == 0)
        rc = bench_writes_client(e, NULL, &r.c);
    if (rc == 0)
        rc = accept_rank0(&r);
    if (rc == 0)
        rc = serve(&r);
    struct tarn_reason why;
    tarn_reason_keep(&why, rc);
    (void)tear_down(&r); /* tarn_close() ends what could not be */
    tarn_channel_close(r.ch);
    tarn_close(r.c);
    bench_bare_close(r.bare);
    return tarn_reason_fail(&why);
}
