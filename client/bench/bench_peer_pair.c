/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes of `tarn-bench peer` and the commands between them (bench_peer.h). Contestants of the
 * measured row stand for those of A's side: they run them, and have B do its part.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "client/bench/bench_peer.h"

#define ANSWER_S (2 * BENCH_PEER_CALL_MS / 1000)

enum command { SET_UP, BEGIN, RUN, END, TEAR_DOWN };

struct request {
    enum command command;
    struct bench_peer_plan plan; /* SET_UP */
    bench_peer_descriptors leases;
    size_t contestant;
    uint64_t round;
};

struct answer {
    int status;
    char error[TARN_SENTENCE];
    bench_peer_descriptors leases;
    double items_s;
};

/* --- B ------------------------------------------------------------------------------------------ */

static int set_up(struct bench_peer_side *s, const struct request *q, struct answer *a)
{
    int rc = bench_peer_side_set_up(s, &q->plan);

    if (rc != 0)
        return rc;
    rc = bench_peer_side_reach(s, q->leases);
    if (rc == 0)
        rc = bench_peer_side_describe(s, a->leases);
    if (rc != 0)
        bench_peer_side_tear_down(s);
    return rc;
}

static int do_part(struct bench_contestant *c, const struct request *q, struct answer *a)
{
    static struct bench_hist latency; /* too large for a stack; only A's are shown */

    if (q->command == BEGIN)
        return c->ops->begin(c->arg, q->round);
    if (q->command == RUN)
        return bench_slice_timed(c, &latency, &a->items_s);
    return c->ops->end(c->arg);
}

static int serve_request(struct bench_peer_side *s, const struct request *q, struct answer *a)
{
    switch (q->command) {
    case SET_UP:
        return set_up(s, q, a);
    case TEAR_DOWN:
        bench_peer_side_tear_down(s);
        return 0;
    default: /* B has no part in contestants that only A can run */
        return q->contestant < s->row->n ? do_part(s->row->contestants[q->contestant], q, a) : 0;
    }
}

/* Serves until A closes its end or dies. */
__attribute__((noreturn)) static void other_process(struct bench_peer_side *s, int fd)
{
    struct request q;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, "bench-lender");
    setpgid(0, 0);
    while (recv(fd, &q, sizeof q, 0) == sizeof q) {
        struct answer a = {0};
        a.status = serve_request(s, &q, &a);
        if (a.status != 0)
            snprintf(a.error, sizeof a.error, "%s", tarn_last_error());
        if (send(fd, &a, sizeof a, MSG_NOSIGNAL) != sizeof a)
            break;
    }
    _exit(0);
}

/* --- commands ----------------------------------------------------------------------------------- */

static int lost(struct bench_peer_pair *p, const char *what)
{
    if (p->fd >= 0)
        close(p->fd);
    p->fd = -1;
    if (bench_interrupted())
        return tarn_fail(TARN_E_CANCELED, "interrupted");
    return tarn_fail(TARN_E_NODE_DOWN, "the other process (pid %d) %s: run the benchmark again",
                     (int)p->other, what);
}

static int tell(struct bench_peer_pair *p, const struct request *q)
{
    if (p->fd < 0 || send(p->fd, q, sizeof *q, MSG_NOSIGNAL) != sizeof *q)
        return lost(p, "has ended");
    return 0;
}

static int hear(struct bench_peer_pair *p, struct answer *a)
{
    ssize_t n;

    while ((n = recv(p->fd, a, sizeof *a, 0)) < 0 && errno == EINTR && !bench_interrupted())
        ;
    if (n != sizeof *a)
        return lost(p, n < 0 && errno == EAGAIN ? "does not answer" : "has ended");
    return a->status ? tarn_fail(a->status, "the other process: %s", a->error) : 0;
}

static int ask(struct bench_peer_pair *p, const struct request *q, struct answer *a)
{
    int rc = tell(p, q);
    return rc ? rc : hear(p, a);
}

/* --- the measured row's contestants ------------------------------------------------------------- */

struct stand_in {
    struct bench_peer_pair *pair;
    struct bench_contestant *own; /* A's */
    size_t contestant;
    double lender_s, bytes; /* CPU time of B; bytes moved meanwhile */
};

static int begin(void *arg, uint64_t round)
{
    struct stand_in *s = arg;
    const struct request q = {.command = BEGIN, .contestant = s->contestant, .round = round};
    struct answer a;
    int rc = tell(s->pair, &q);

    if (rc != 0)
        return rc;
    int own = s->own->ops->begin ? s->own->ops->begin(s->own->arg, round) : 0;
    rc = hear(s->pair, &a);
    return own ? own : rc;
}

/* Both ways the rate is that of both processes. A ping-pong has one rate. */
static int run_both(struct stand_in *s, double *items_s, struct bench_hist *h)
{
    const struct request q = {.command = RUN, .contestant = s->contestant};
    struct answer a;
    int rc = tell(s->pair, &q);

    if (rc != 0)
        return rc;
    int own = bench_slice_timed(s->own, h, items_s);
    rc = hear(s->pair, &a);
    if (rc == 0 && s->pair->side.plan.how != BENCH_PEER_PING)
        *items_s += a.items_s;
    return own ? own : rc;
}

static int slice(void *arg, double *items_s, struct bench_hist *h)
{
    struct stand_in *s = arg;
    double before = bench_cpu_s(s->pair->other);
    int rc = s->pair->side.plan.both ? run_both(s, items_s, h) : bench_slice_timed(s->own, h, items_s);

    s->lender_s += bench_cpu_s(s->pair->other) - before;
    s->bytes += (double)((s->own->nops + 1) * s->own->depth * s->pair->side.plan.bytes);
    return rc;
}

static int end(void *arg)
{
    struct stand_in *s = arg;
    const struct request q = {.command = END, .contestant = s->contestant};
    struct answer a;
    int rc = tell(s->pair, &q);

    if (rc != 0)
        return rc;
    int own = s->own->ops->end ? s->own->ops->end(s->own->arg) : 0;
    rc = hear(s->pair, &a);
    return own ? own : rc;
}

static const struct bench_ops stand_in_ops = {.begin = begin, .slice = slice, .end = end, .close = free};

static int add_stand_in(struct bench_peer_pair *p, size_t contestant, struct bench_row *r)
{
    const struct bench_peer_side *side = &p->side;
    struct bench_contestant *own = side->row->contestants[contestant];
    struct stand_in *s = calloc(1, sizeof *s);

    if (!s)
        return tarn_fail(TARN_E_NO_MEMORY, "%s: out of memory", own->name);
    *s = (struct stand_in){.pair = p, .own = own, .contestant = contestant};
    return bench_row_add(r, own->role, own->name, &stand_in_ops, s,
                         own->role == BENCH_OURS ? bench_peer_load(side) : side->flat);
}

double bench_peer_lender_ms(const struct bench_row *r, size_t k)
{
    const struct stand_in *s = r->contestants[k]->arg;
    return s->bytes > 0 ? s->lender_s * 1e3 / (s->bytes / 1e9) : 0;
}

/* --- a row -------------------------------------------------------------------------------------- */

int bench_peer_set_up(struct bench_peer_pair *p, const struct bench_peer_plan *plan, struct bench_row *r)
{
    struct request q = {.command = SET_UP, .plan = *plan};
    struct answer a;
    int rc = bench_peer_side_set_up(&p->side, plan);

    if (rc == 0)
        rc = bench_peer_side_describe(&p->side, q.leases);
    if (rc == 0)
        rc = ask(p, &q, &a);
    if (rc == 0)
        rc = bench_peer_side_reach(&p->side, a.leases);
    for (size_t i = 0; rc == 0 && i < p->side.row->n; i++)
        rc = add_stand_in(p, i, r);
    return rc;
}

void bench_peer_tear_down(struct bench_peer_pair *p)
{
    const struct request q = {.command = TEAR_DOWN};
    struct answer a;

    if (p->fd >= 0)
        (void)ask(p, &q, &a); /* a failure shows when the next row is set up */
    bench_peer_side_tear_down(&p->side);
}

/* --- processes ---------------------------------------------------------------------------------- */

static int map_regions(char *regions[2])
{
    for (int i = 0; i < 2; i++) {
        regions[i] = mmap(NULL, BENCH_PEER_REGION_BYTES, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (regions[i] == MAP_FAILED) {
            regions[i] = NULL;
            return tarn_fail(TARN_E_NO_MEMORY, "%llu bytes of shared memory for the benchmark: %m: free some",
                             BENCH_PEER_REGION_BYTES);
        }
    }
    return 0;
}

static int start_other(struct bench_peer_pair *p, const struct bench_peer_side *other)
{
    const struct timeval patience = {.tv_sec = ANSWER_S};
    struct bench_peer_side side = *other;
    int ends[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return tarn_fail(TARN_E_SYSTEM, "a socket to the other process: %m");
    setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    p->fd = ends[0];
    p->other = fork();
    if (p->other == 0) {
        close(ends[0]);
        other_process(&side, ends[1]);
    }
    close(ends[1]);
    return p->other > 0 ? 0 : tarn_fail(TARN_E_SYSTEM, "the other process: fork: %m");
}

int bench_peer_start(const struct bench_env *e, struct bench_peer_pair *p)
{
    char *regions[2] = {NULL, NULL};
    uint16_t ports[2] = {0, 0};
    int rc = map_regions(regions);

    *p = (struct bench_peer_pair){.fd = -1};
    for (int i = 0; rc == 0 && i < 2; i++)
        rc = bench_start_loop(&ports[i], &p->loops[i]);
    p->side = (struct bench_peer_side){
        .e = e, .first = true, .region = regions[0], .other_region = regions[1], .loop_port = ports[0]};
    if (rc != 0)
        return rc;
    const struct bench_peer_side other = {
        .e = e, .region = regions[1], .other_region = regions[0], .loop_port = ports[1]};
    return start_other(p, &other);
}

void bench_peer_stop(struct bench_peer_pair *p)
{
    if (p->fd >= 0)
        close(p->fd);
    bench_stop_loop(p->other);
    for (int i = 0; i < 2; i++)
        bench_stop_loop(p->loops[i]);
    bench_peer_gpus_close(&p->side);
    if (p->side.region)
        munmap(p->side.region, BENCH_PEER_REGION_BYTES);
    if (p->side.other_region)
        munmap(p->side.other_region, BENCH_PEER_REGION_BYTES);
}
