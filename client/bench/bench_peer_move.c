/* SPDX-License-Identifier: Apache-2.0 */
/* Contestants of `tarn-bench peer`: reads and writes of a lease, and memcpy. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/error.h"
#include "client/bench/bench_peer.h"

#define TAG 1

/* --- sources and destinations ------------------------------------------------------------------- */

static void prepare(const struct bench_peer_bank *b, uint64_t seed)
{
    struct bench_load *from = b->write ? b->load : b->lent, *to = b->write ? b->lent : b->load;

    if (from)
        bench_load_fill(from, seed);
    if (!to)
        return;
    bench_load_poison(to);
    to->seed = seed;
}

static int check(const struct bench_peer_bank *b)
{
    const struct bench_load *to = b->write ? b->lent : b->load;
    return to ? bench_load_check(to) : 0;
}

/* The load that gives a contestant its number of operations. */
static const struct bench_load *shape(const struct bench_peer_bank *b)
{
    return b->load ? b->load : b->lent;
}

/* --- operations --------------------------------------------------------------------------------- */

static struct tarn_move move_of(const struct bench_peer_mover *m, size_t object)
{
    return (struct tarn_move){.pieces = bench_load_pieces(m->bank.load, object),
                              .npieces = m->bank.load->npieces,
                              .offset = object * m->bank.load->bytes};
}

static int move(const struct bench_peer_mover *m, size_t object, const struct tarn_notify *n)
{
    const struct tarn_move_options o = {.size = sizeof o, .timeout_ms = BENCH_PEER_CALL_MS, .notify = n};
    struct tarn_move v = move_of(m, object);

    return m->bank.write ? tarn_write(m->reach, &v, 1, &o) : tarn_read(m->reach, &v, 1, &o);
}

static int submit(struct bench_peer_mover *m, struct tarn_move *v, tarn_op *op)
{
    const struct tarn_move_options o = {.size = sizeof o, .timeout_ms = BENCH_PEER_CALL_MS};
    uint64_t start = tarn_now_ns();
    int rc = m->bank.write ? tarn_submit_write(m->reach, v, 1, &o, 0, op)
                           : tarn_submit_read(m->reach, v, 1, &o, 0, op);

    bench_hist_add(&m->post, tarn_now_ns() - start);
    return rc;
}

static int await(struct tarn_client *c, tarn_op op)
{
    struct tarn_completion done;
    int rc = tarn_wait(c, op, BENCH_PEER_CALL_MS, &done);

    return rc || !done.status ? rc : tarn_fail(done.status, "%s", done.error);
}

static int call_op(void *arg, uint32_t thread, size_t i)
{
    (void)thread;
    return move(arg, i, NULL);
}

static int submit_op(void *arg, uint32_t thread, size_t i)
{
    struct bench_peer_mover *m = arg;
    struct tarn_move v[BENCH_PEER_DEPTH_MAX];
    tarn_op ops[BENCH_PEER_DEPTH_MAX];
    uint32_t n = 0, depth = m->bank.load->depth;
    int rc = 0;

    (void)thread;
    for (; rc == 0 && n < depth; n += rc == 0) {
        v[n] = move_of(m, i * depth + n);
        rc = submit(m, &v[n], &ops[n]);
    }
    for (uint32_t k = 0; k < n; k++) {
        int code = await(m->side->c, ops[k]);
        rc = rc ? rc : code;
    }
    return rc;
}

static int notify_op(void *arg, uint32_t thread, size_t i)
{
    const struct tarn_notify n = {.tag = TAG};

    (void)thread;
    return move(arg, i, &n);
}

/* B answers each write of A's with one of its own. */
static int ping_op(void *arg, uint32_t thread, size_t i)
{
    struct bench_peer_mover *m = arg;
    int rc = m->side->first ? notify_op(m, thread, i) : 0;

    if (rc == 0)
        rc = tarn_expect(m->lease, TAG, 1, BENCH_PEER_CALL_MS);
    return rc || m->side->first ? rc : notify_op(m, thread, i);
}

static int connect_once(struct bench_peer_mover *m, size_t object, uint64_t *took_ns)
{
    struct tarn_client *c = NULL;
    int rc = bench_peer_client(m->side, &c);
    uint64_t start = tarn_now_ns();

    if (rc == 0)
        rc = tarn_reach(c, m->peer, BENCH_PEER_CALL_MS, &m->reach);
    if (rc == 0)
        rc = move(m, object, NULL);
    *took_ns = tarn_now_ns() - start;
    tarn_reach_free(m->reach);
    m->reach = NULL;
    tarn_close(c);
    return rc;
}

/* Opening and closing the clients is not timed. */
static int connect_slice(void *arg, double *items_s, struct bench_hist *h)
{
    struct bench_peer_mover *m = arg;
    uint64_t took_ns, sum_ns = 0;
    size_t n = m->bank.load->objects;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < n; i++) {
        rc = connect_once(m, i, &took_ns);
        bench_hist_add(h, took_ns);
        sum_ns += took_ns;
    }
    *items_s = (double)n * 1e9 / (double)sum_ns;
    return rc;
}

/* --- movers ------------------------------------------------------------------------------------- */

static int begin(void *arg, uint64_t round)
{
    struct bench_peer_mover *m = arg;

    prepare(&m->bank, round + 1);
    return 0;
}

static int end(void *arg)
{
    struct bench_peer_mover *m = arg;
    int rc = 0;

    if (m->how == BENCH_PEER_NOTIFY && m->lease) /* takes the slice's, and the warm-up's */
        rc = tarn_expect(m->lease, TAG, (uint32_t)m->bank.lent->ops + 1, BENCH_PEER_CALL_MS);
    return rc ? rc : check(&m->bank);
}

static void free_window(struct bench_peer_mover *m)
{
    /* When the window cannot be closed, a peer may still touch its memory, which then stays. */
    if (m->window && tarn_window_close(m->window, BENCH_PEER_CALL_MS) != 0)
        return;
    if (m->memory && bench_peer_way(m->side)->memory == BENCH_PEER_SHARED)
        tarn_window_free(m->memory);
    else if (m->memory)
        munmap(m->memory, m->bank.lent->memory_bytes);
    bench_load_free(m->bank.lent);
}

static void mover_close(void *arg)
{
    struct bench_peer_mover *m = arg;

    tarn_reach_free(m->reach);
    free_window(m);
    free(m);
}

static const struct bench_ops mover_ops[] = {
    [BENCH_PEER_CALL] = {.begin = begin, .op = call_op, .end = end, .close = mover_close},
    [BENCH_PEER_SUBMIT] = {.begin = begin, .op = submit_op, .end = end, .close = mover_close},
    [BENCH_PEER_NOTIFY] = {.begin = begin, .op = notify_op, .end = end, .close = mover_close},
    [BENCH_PEER_PING] = {.begin = begin, .op = ping_op, .end = end, .close = mover_close},
    [BENCH_PEER_CONNECT] = {.begin = begin, .slice = connect_slice, .end = end, .close = mover_close},
};

static int map_window(struct bench_peer_mover *m, uint32_t vectors)
{
    const struct bench_peer_plan *p = &m->side->plan;
    enum bench_peer_memory kind = bench_peer_way(m->side)->memory;
    uint64_t bytes = (p->ops + 1) * p->depth * p->bytes;
    void *memory = NULL;
    if (kind == BENCH_PEER_GPU)
        return bench_peer_load_new(m->side, vectors, &m->bank.lent);
    int rc = kind == BENCH_PEER_SHARED ? tarn_window_alloc(bytes, 0, &memory)
                                       : bench_map(bytes, false, (char **)&memory);

    m->memory = memory;
    return rc ? rc : bench_load_new_over(memory, p->bytes, vectors, p->depth, p->ops, &m->bank.lent);
}

/* The lease's bytes are the objects, in order. Their pieces are scattered over the window as those of a load
 * are. */
static int lease(struct bench_peer_mover *m)
{
    const struct tarn_lease_options o = {.size = sizeof o, .flags = TARN_LEASE_WRITE};
    const struct bench_load *l = m->bank.lent;
    size_t n = l->npieces == 1 ? 0 : l->objects * l->npieces;
    struct tarn_run *runs = calloc(n + 1, sizeof *runs);

    if (!runs)
        return tarn_fail(TARN_E_NO_MEMORY, "a lease of %zu runs: out of memory", n);
    for (size_t i = 0; i < n; i++)
        runs[i] = (struct tarn_run){.offset = (uint64_t)((char *)l->pieces[i].addr - l->memory),
                                    .bytes = l->pieces[i].bytes};
    int rc = tarn_lease(m->window, n ? runs : NULL, (uint32_t)n, &o, &m->lease);
    free(runs);
    return rc;
}

static int lend(struct bench_peer_mover *m, uint32_t vectors)
{
    int rc = map_window(m, vectors);

    if (rc == 0)
        rc = tarn_window_new(m->side->c, m->bank.lent->memory, m->bank.lent->memory_bytes, &m->window);
    return rc ? rc : lease(m);
}

int bench_peer_add_mover(struct bench_peer_side *s, enum bench_role role, const char *name,
                         enum bench_peer_how how, uint32_t vectors)
{
    struct bench_peer_mover *m = calloc(1, sizeof *m);

    if (!m)
        return tarn_fail(TARN_E_NO_MEMORY, "%s: out of memory", name);
    m->side = s;
    m->how = how;
    m->bank = (struct bench_peer_bank){.write = s->plan.write, .load = vectors > 1 ? s->scattered : s->flat};
    int rc = bench_peer_lends(s) ? lend(m, vectors) : 0;
    if (rc != 0) {
        mover_close(m);
        return rc;
    }
    s->movers[s->nmovers++] = m;
    return bench_row_add(s->row, role, name, &mover_ops[how], m, shape(&m->bank));
}

int bench_peer_reach(struct bench_peer_mover *m, const char *descriptor)
{
    memcpy(m->peer, descriptor, sizeof m->peer);
    if (m->how == BENCH_PEER_CONNECT)
        return 0;
    return tarn_reach(m->side->c, m->peer, BENCH_PEER_CALL_MS, &m->reach);
}

/* --- memcpy ------------------------------------------------------------------------------------- */

struct copier {
    struct bench_peer_bank bank; /* lent: the own region */
    char *far;                   /* the other process's region */
};

static int copy_begin(void *arg, uint64_t round)
{
    struct copier *k = arg;

    prepare(&k->bank, round + 1);
    return 0;
}

static int copy_op(void *arg, uint32_t thread, size_t i)
{
    const struct copier *k = arg;
    const struct bench_load *l = k->bank.load;
    const struct tarn_piece *p = bench_load_pieces(l, i * l->depth);

    (void)thread;
    for (uint32_t n = 0; n < l->depth * l->npieces; n++) {
        char *near = p[n].addr, *far = k->far + (near - l->memory); /* both are cut alike */
        memcpy(k->bank.write ? far : near, k->bank.write ? near : far, p[n].bytes);
    }
    return 0;
}

static int copy_end(void *arg)
{
    struct copier *k = arg;
    return check(&k->bank);
}

static void copy_close(void *arg)
{
    struct copier *k = arg;

    bench_load_free(k->bank.lent);
    free(k);
}

static const struct bench_ops copy_ops = {
    .begin = copy_begin, .op = copy_op, .end = copy_end, .close = copy_close};

int bench_peer_add_memcpy(struct bench_peer_side *s)
{
    const struct bench_peer_plan *p = &s->plan;
    struct copier *k = calloc(1, sizeof *k);

    if (!k)
        return tarn_fail(TARN_E_NO_MEMORY, "memcpy: out of memory");
    k->far = s->other_region;
    k->bank = (struct bench_peer_bank){.write = p->write, .load = bench_peer_load(s)};
    int rc = bench_peer_lends(s)
                 ? bench_load_new_over(s->region, p->bytes, p->vectors, p->depth, p->ops, &k->bank.lent)
                 : 0;
    if (rc != 0) {
        copy_close(k);
        return rc;
    }
    return bench_row_add(s->row, BENCH_LIMIT, "memcpy", &copy_ops, k, shape(&k->bank));
}
