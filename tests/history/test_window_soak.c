/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows under random faults. Lenders grant, recall and name leases and close windows; peers read, write and
 * tell, within the host and by tcp through relays. Meanwhile processes are stopped and killed, connections
 * are cut, and Redis is lost. All at random, from a seed.
 *
 * An area of a window has one lease at a time, of two runs. Each peer has a part of every area, which it
 * alone writes. Each word says which lease it is of, who wrote it, and which of his writes it was. So these
 * are found:
 *
 *   wrong   a read that returned 0 brought a word of another lease, or an older word than one that a write
 * had put there before, or one that nobody can have written so far; or a recalled area had such a word late
 * a byte came into an area after its recall had returned 0 early   a notification was seen before its bytes,
 * or after its lease odd     a call ended with a status that it does not have, or a process by a signal that
 * nobody sent stuck   a process did not end, or a lease could not be recalled when all went on
 *
 *   WINDOW_SOAK_SECONDS=N   20
 *   WINDOW_SOAK_SEED=N      otherwise one is made, and printed
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tarn/window.h>

#include "base/container.h"
#include "client/client.h"
#include "client/window/lender.h"
#include "tests/history/lease_word.h"
#include "tests/router.h"
#include "tests/world.h"
#include "transport/tcp/tcp_node.h"

enum {
    LENDERS = 2,
    PEERS = 3,
    ACTORS = LENDERS + PEERS,
    AREAS = 8,
    PART = 10000,         /* words of a peer */
    WORDS = PEERS * PART, /* of an area: two runs */
    WINDOW = AREAS * WORDS * 8,

    TIMEOUT_MS = 400,
    STUCK_MS = 10000,
    LOOKS = 1000, /* for somebody who moves bytes */

    RECALL_MS = 30,
    ROUTES = 24, /* lenders that a peer reaches through relays before it ends */
};

/* --- what all processes see --------------------------------------------------------------------- */

struct part {
    /* lease << 32 | number of the write: begun; answered with 0 */
    _Atomic uint64_t begun, acked;
};

struct area {
    _Atomic uint64_t lease; /* grows; odd: there is none */
    _Atomic bool named;
    char descriptor[TARN_DESCRIPTOR_MAX];
    struct part parts[PEERS];
};

struct lender_board {
    _Atomic uint32_t born, relayed; /* incarnations; the one for which there are relays, 0: not so far */
    char control[128], data[128];   /* addresses */
    char control_relay[64], data_relay[64];
    struct area areas[AREAS];
};

enum count {
    READS,
    WRITES,
    TOLD,
    EXPECTED,
    STALE,
    FAILED,
    RECALLS,
    BUSY,
    CLOSES,
    WRONG,
    LATE,
    EARLY,
    ODD,
    COUNTS
};
static const char *const count_names[] = {"reads",  "writes",  "told", "expected", "stale",
                                          "failed", "recalls", "busy", "closes",   "wrong",
                                          "late",   "early",   "odd"};

struct board {
    _Atomic bool end;
    _Atomic uint64_t counts[COUNTS];
    _Atomic bool has_why;
    char why[400];                  /* of the first violation */
    _Atomic uint32_t moving[PEERS]; /* lender * AREAS + area + 1; 0: nothing */
    struct lender_board lenders[LENDERS];
};

static struct board *board;
static struct world *world;

static void count(enum count what)
{
    atomic_fetch_add(&board->counts[what], 1);
}

__attribute__((format(printf, 2, 3))) static void violation(enum count what, const char *format, ...)
{
    va_list args;
    count(what);
    if (atomic_exchange(&board->has_why, true))
        return;
    va_start(args, format);
    vsnprintf(board->why, sizeof(board->why), format, args);
    va_end(args);
}

static uint64_t random64(uint64_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x;
}

static bool one_in(uint64_t *x, uint32_t n)
{
    return random64(x) % n == 0;
}

/* Leaves the processors to others from time to time. */
static void rest(uint64_t *seed)
{
    if (one_in(seed, 16))
        harness_pause();
}

static bool anyone_moves(uint32_t lender, uint32_t area)
{
    bool moves = false;
    for (int w = 0; w < PEERS; w++)
        moves |= atomic_load(&board->moving[w]) == lender * AREAS + area + 1;
    return moves;
}

/* --- words -------------------------------------------------------------------------------------- */

static uint32_t number_of(uint64_t state, uint64_t lease)
{
    return state >> 32 == lease ? (uint32_t)state : 0;
}

/* A later lease has taken the place of the number. */
static uint32_t number_at_most(uint64_t state, uint64_t lease)
{
    return state >> 32 > lease ? UINT32_MAX - 1 : number_of(state, lease);
}

/* What must be in an area at least, and may be at most. */
struct bounds {
    uint32_t low[PEERS], high[PEERS];
};

static void take_low(struct bounds *b, struct area *a, uint64_t lease)
{
    for (int w = 0; w < PEERS; w++)
        b->low[w] = number_of(atomic_load(&a->parts[w].acked), lease);
}

static void take_high(struct bounds *b, struct area *a, uint64_t lease)
{
    for (int w = 0; w < PEERS; w++)
        b->high[w] = number_at_most(atomic_load(&a->parts[w].begun), lease);
}

static void judge(const uint64_t *words, const struct bounds *b, uint32_t lender, uint32_t area,
                  uint64_t lease, const char *when)
{
    for (uint32_t k = 0; k < WORDS; k++) {
        uint32_t w = k / PART;
        const struct lease_word of = {.lease = lease, .lender = lender, .area = area, .writer = w};
        if (!lease_word_may_be(words[k], of, b->low[w], b->high[w])) {
            violation(WRONG,
                      "%s: lender %u area %u lease %llu word %u: %016llx is of no write %u..%u of peer %u",
                      when, lender, area, (unsigned long long)lease, k, (unsigned long long)words[k],
                      b->low[w], b->high[w], w);
            return;
        }
    }
}

/* --- a lender ----------------------------------------------------------------------------------- */

struct lender {
    uint32_t me;
    uint64_t seed;
    struct tarn_client *client;
    struct tarn_window *window;
    uint64_t *memory;
    struct {
        struct tarn_lease *lease; /* NULL: none; odd round and not NULL: it ends */
        uint64_t secret;          /* what it holds without a lease */
    } areas[AREAS];
};

static struct area *area_of(uint32_t lender, uint32_t i)
{
    return &board->lenders[lender].areas[i];
}

/* Half of an area is in each half of the window. */
static uint64_t *word_at(const struct lender *l, uint32_t i, uint32_t k)
{
    uint32_t half = k / (WORDS / 2);
    return l->memory + half * (AREAS * WORDS / 2) + i * (WORDS / 2) + k % (WORDS / 2);
}

/* From the end on, since who is late copies from the start. */
static void hide(struct lender *l, uint32_t i)
{
    l->areas[i].secret = random64(&l->seed);
    for (uint32_t k = WORDS; k-- > 0;)
        *word_at(l, i, k) = l->areas[i].secret + k;
}

static void look_for_late_bytes(const struct lender *l, uint32_t i)
{
    for (uint32_t k = 0; k < WORDS; k++)
        if (*word_at(l, i, k) != l->areas[i].secret + k) {
            violation(LATE, "lender %u area %u word %u: %016llx came after the recall", l->me, i, k,
                      (unsigned long long)*word_at(l, i, k));
            return;
        }
}

static void name_area(struct lender *l, uint32_t i, uint64_t lease)
{
    char name[40];
    snprintf(name, sizeof(name), "soak-%u-%u-%llu", l->me, i, (unsigned long long)lease);
    atomic_store(&area_of(l->me, i)->named,
                 tarn_lease_publish(l->areas[i].lease, name, 3000, TIMEOUT_MS) == 0);
}

static void grant(struct lender *l, uint32_t i)
{
    struct area *a = area_of(l->me, i);
    const struct tarn_run runs = {
        .offset = (uint64_t)i * WORDS * 4, .bytes = WORDS * 4, .stride = WINDOW / 2, .count = 2};
    const struct tarn_lease_options o = {.size = sizeof(o), .flags = TARN_LEASE_WRITE};
    uint64_t lease = atomic_load(&a->lease) + 1;
    if (lease >= LEASE_WORD_LEASES)
        return;
    look_for_late_bytes(l, i);
    for (uint32_t k = 0; k < WORDS; k++)
        *word_at(l, i, k) = lease_word(&(struct lease_word){.lease = lease, .lender = l->me, .area = i});
    if (tarn_lease(l->window, &runs, 1, &o, &l->areas[i].lease) ||
        tarn_lease_descriptor(l->areas[i].lease, a->descriptor)) {
        violation(ODD, "lease: %s", tarn_last_error());
        return;
    }
    atomic_store(&a->named, false);
    if (one_in(&l->seed, 8))
        name_area(l, i, lease);
    atomic_store(&a->lease, lease);
}

/* The area's lease has ended: what is there is what was acknowledged. Not always looked at, since that takes
 * longer than most late bytes take. */
static void ended(struct lender *l, uint32_t i, uint64_t lease, struct bounds *b)
{
    static uint64_t words[WORDS];
    bool looks = one_in(&l->seed, 2);
    for (uint32_t k = 0; looks && k < WORDS; k++)
        words[k] = *word_at(l, i, k);
    hide(l, i);
    take_high(b, area_of(l->me, i), lease);
    if (looks)
        judge(words, b, l->me, i, lease, "recall");
    l->areas[i].lease = NULL;
    count(RECALLS);
}

static uint64_t end_announced(struct lender *l, uint32_t i)
{
    struct area *a = area_of(l->me, i);
    uint64_t lease = atomic_load(&a->lease);
    if (lease % 2)
        return lease - 1;
    atomic_store(&a->lease, lease + 1);
    return lease;
}

/* Usually while somebody moves bytes there. */
static void recall(struct lender *l, uint32_t i)
{
    struct bounds b;
    for (int n = 0; n < LOOKS && !anyone_moves(l->me, i); n++)
        sched_yield();
    uint64_t lease =
        one_in(&l->seed, 2) ? atomic_load(&area_of(l->me, i)->lease) & ~1ull : end_announced(l, i);
    take_low(&b, area_of(l->me, i), lease);
    int rc = tarn_recall(l->areas[i].lease, RECALL_MS);
    end_announced(l, i);
    if (rc == 0)
        ended(l, i, lease, &b);
    else if (rc == TARN_E_BUSY)
        count(BUSY);
    else
        violation(ODD, "recall: %s", tarn_last_error());
}

static void open_window(struct lender *l)
{
    if (tarn_window_alloc(WINDOW, 0, (void **)&l->memory) ||
        tarn_window_new(l->client, l->memory, WINDOW, &l->window)) {
        violation(ODD, "window: %s", tarn_last_error());
        _exit(1);
    }
    for (uint32_t i = 0; i < AREAS; i++)
        hide(l, i);
}

/* Nobody is in the middle of a copy for so long. */
static void stuck(void)
{
    _exit(2);
}

static void close_window(struct lender *l)
{
    struct bounds b[AREAS];
    uint64_t lease[AREAS], until = harness_now_ms() + STUCK_MS * harness_slower();
    int rc;
    for (uint32_t i = 0; i < AREAS; i++) {
        lease[i] = end_announced(l, i);
        take_low(&b[i], area_of(l->me, i), lease[i]);
    }
    for (; (rc = tarn_window_close(l->window, RECALL_MS)) == TARN_E_BUSY; count(BUSY))
        if (harness_now_ms() > until)
            stuck();
    if (rc)
        violation(ODD, "close: %s", tarn_last_error());
    for (uint32_t i = 0; i < AREAS; i++)
        if (l->areas[i].lease)
            ended(l, i, lease[i], &b[i]);
    count(CLOSES);
    tarn_window_free(l->memory);
    open_window(l);
}

/* What a peer tells. */
struct tale {
    uint64_t lease;
    uint32_t area, peer, number;
};

static void hear(struct lender *l)
{
    struct tarn_notification n;
    struct tale t;
    for (int most = 20; most > 0 && tarn_notification_next(l->window, 1, &n) == 0; most--) {
        memcpy(&t, n.data, sizeof(t));
        if (n.bytes != sizeof(t) || t.area >= AREAS || t.peer >= PEERS) {
            violation(ODD, "a notification of %u bytes", n.bytes);
            continue;
        }
        uint64_t granted = atomic_load(&area_of(l->me, t.area)->lease) & ~1ull;
        uint64_t word = *word_at(l, t.area, t.peer * PART);
        uint32_t begun = number_of(atomic_load(&area_of(l->me, t.area)->parts[t.peer].begun), granted);
        const struct lease_word of = {.lease = granted, .lender = l->me, .area = t.area, .writer = t.peer};
        count(TOLD);
        if (n.lease != l->areas[t.area].lease || t.lease != granted ||
            !lease_word_may_be(word, of, t.number, begun))
            violation(EARLY,
                      "lender %u area %u lease %llu: told of write %u of peer %u in lease %llu: %016llx",
                      l->me, t.area, (unsigned long long)granted, t.number, t.peer,
                      (unsigned long long)t.lease, (unsigned long long)word);
    }
}

static void expect(struct lender *l, uint32_t i)
{
    int rc = tarn_expect(l->areas[i].lease, 1, 1, 5);
    if (rc == 0)
        count(EXPECTED);
    else if (rc != TARN_E_TIMEOUT && rc != TARN_E_NODE_DOWN && rc != TARN_E_STALE)
        violation(ODD, "expect: %s", tarn_last_error());
}

static void lender_step(struct lender *l)
{
    uint32_t i = (uint32_t)(random64(&l->seed) % AREAS);
    if (one_in(&l->seed, 400))
        close_window(l);
    else if (!l->areas[i].lease)
        grant(l, i);
    else if (atomic_load(&area_of(l->me, i)->lease) % 2 || one_in(&l->seed, 6))
        recall(l, i);
    else if (one_in(&l->seed, 20))
        expect(l, i);
    else
        hear(l);
}

static const char *data_address(const struct tarn_host *h)
{
    for (uint32_t i = 0; i < h->ntransports; i++)
        if (!strcmp(h->transports[i].ops->name, "tcp"))
            return TARN_CONTAINER_OF(h->transports[i].half, struct tarn_tcp_node, half)->address;
    return "";
}

/* Waits until the driver has made the relays. */
static void be_born(const struct lender *l)
{
    struct lender_board *b = &board->lenders[l->me];
    atomic_store(&b->relayed, 0);
    for (uint32_t i = 0; i < AREAS; i++)
        atomic_fetch_or(&b->areas[i].lease, 1);
    snprintf(b->control, sizeof(b->control), "%s", l->client->lender->address);
    snprintf(b->data, sizeof(b->data), "%.127s", data_address(&l->client->lender->host));
    uint32_t born = atomic_fetch_add(&b->born, 1) + 1;
    while (atomic_load(&b->relayed) != born)
        harness_pause();
}

/* All goes on when the end has been announced, so all leases can be recalled. */
static void end_lending(struct lender *l)
{
    uint64_t until = harness_now_ms() + STUCK_MS * harness_slower();
    for (uint32_t i = 0; i < AREAS; i++) {
        for (; l->areas[i].lease; recall(l, i))
            if (harness_now_ms() > until)
                stuck();
        look_for_late_bytes(l, i);
    }
    tarn_close(l->client);
}

static struct tarn_client *open_client(const char *transports)
{
    struct tarn_options o = {
        .size = sizeof(o), .redis = world->redis->url, .transports = transports, .timeout_ms = TIMEOUT_MS};
    struct tarn_client *c;
    while (tarn_open(&o, &c)) { /* Redis may be away */
        if (atomic_load(&board->end))
            _exit(0);
        harness_pause();
    }
    return c;
}

static int lend(uint32_t me, uint64_t seed)
{
    struct lender l = {.me = me, .seed = seed, .client = open_client(NULL)};
    open_window(&l);
    be_born(&l);
    while (!atomic_load(&board->end)) {
        lender_step(&l);
        rest(&l.seed);
    }
    end_lending(&l);
    return 0;
}

/* --- a peer ------------------------------------------------------------------------------------- */

struct known {
    uint64_t lease;
    struct tarn_reach *reach; /* NULL: not reached */
};

struct peer {
    uint32_t me;
    uint64_t seed;
    bool relayed; /* by tcp, through relays */
    struct tarn_client *client;
    struct known known[LENDERS][AREAS];
    uint32_t routed[LENDERS], routes;
    uint64_t words[WORDS];
};

/* True: the call has done its work. */
static bool judged(int rc, const char *call)
{
    bool expected = rc == TARN_E_NODE_DOWN || rc == TARN_E_TIMEOUT || rc == TARN_E_NOT_REACHABLE ||
                    rc == TARN_E_AGAIN || rc == TARN_E_NOT_FOUND || rc == TARN_E_DIRECTORY;
    if (rc == TARN_E_STALE)
        count(STALE);
    else if (expected)
        count(FAILED);
    else if (rc)
        violation(ODD, "%s: %s: %s", call, tarn_error_name(rc), tarn_last_error());
    return rc == 0;
}

/* Connections to the lender's present incarnation go through its relays. False: they do not so far. */
static bool routed(struct peer *p, uint32_t lender)
{
    const struct lender_board *b = &board->lenders[lender], seen = *b;
    uint32_t relayed = atomic_load(&b->relayed);
    if (!p->relayed || (relayed && p->routed[lender] == relayed))
        return true;
    if (!relayed || atomic_load(&seen.relayed) != relayed) /* the addresses are being written */
        return false;
    router_route(seen.control, seen.control_relay);
    router_route(seen.data, seen.data_relay);
    p->routes++;
    p->routed[lender] = relayed;
    return true;
}

static void forget(struct known *k)
{
    tarn_reach_free(k->reach);
    k->reach = NULL;
}

static bool reach(struct peer *p, uint32_t lender, uint32_t i, struct known *k)
{
    struct area *a = area_of(lender, i);
    uint64_t lease = atomic_load(&a->lease);
    char text[TARN_DESCRIPTOR_MAX];
    if (k->reach && (k->lease == lease || one_in(&p->seed, 4))) /* a lease that has ended, too */
        return true;
    if (lease % 2 || !routed(p, lender))
        return false;
    if (atomic_load(&a->named) && one_in(&p->seed, 2))
        snprintf(text, sizeof(text), "soak-%u-%u-%llu", lender, i, (unsigned long long)lease);
    else
        memcpy(text, a->descriptor, sizeof(text));
    if (atomic_load(&a->lease) != lease)
        return false;
    forget(k);
    k->lease = lease;
    int rc = tarn_reach(p->client, text, TIMEOUT_MS, &k->reach);
    return judged(rc == TARN_E_AUTH ? TARN_E_STALE : rc, "reach"); /* AUTH: its window has been closed */
}

struct call {
    struct tarn_reach *reach;
    struct tarn_move *move;
    const struct tarn_move_options *options; /* of a write; NULL: a read */
};

static int move_area(const struct peer *p, uint32_t lender, uint32_t i, const struct call *c)
{
    atomic_store(&board->moving[p->me], lender * AREAS + i + 1);
    int rc =
        c->options ? tarn_write(c->reach, c->move, 1, c->options) : tarn_read(c->reach, c->move, 1, NULL);
    atomic_store(&board->moving[p->me], 0);
    return rc;
}

static void read_area(struct peer *p, uint32_t lender, uint32_t i, struct known *k)
{
    const struct tarn_piece piece = {.addr = p->words, .bytes = sizeof(p->words)};
    struct tarn_move m = {.pieces = &piece, .npieces = 1};
    struct area *a = area_of(lender, i);
    struct bounds b;
    take_low(&b, a, k->lease);
    int rc = move_area(p, lender, i, &(struct call){k->reach, &m, NULL});
    take_high(&b, a, k->lease);
    if (judged(rc, "read")) {
        count(READS);
        judge(p->words, &b, lender, i, k->lease, "read");
    } else if (rc != TARN_E_TIMEOUT) {
        forget(k);
    }
}

/* A part is written on only if it is known what the last write has left there. */
static void write_part(struct peer *p, uint32_t lender, uint32_t i, struct known *k)
{
    struct part *part = &area_of(lender, i)->parts[p->me];
    uint64_t begun = atomic_load(&part->begun);
    uint32_t number = number_of(begun, k->lease) + 1;
    bool expected = one_in(&p->seed, 4);
    if (begun >> 32 > k->lease || (begun >> 32 == k->lease && begun != atomic_load(&part->acked)))
        return;
    const struct lease_word of = {
        .lease = k->lease, .lender = lender, .area = i, .writer = p->me, .number = number};
    const struct tale tale = {.lease = k->lease, .area = i, .peer = p->me, .number = number};
    const struct tarn_notify notify = {.tag = expected ? 1 : 2, .data = &tale, .bytes = sizeof(tale)};
    const struct tarn_move_options o = {.size = sizeof(o), .notify = one_in(&p->seed, 3) ? &notify : NULL};
    const struct tarn_piece pieces[2] = {{.addr = p->words, .bytes = 72},
                                         {.addr = p->words + 9, .bytes = (PART - 9) * 8}};
    struct tarn_move m = {.pieces = pieces, .npieces = 2, .offset = p->me * PART * 8};
    for (uint32_t n = 0; n < PART; n++)
        p->words[n] = lease_word(&of);
    atomic_store(&part->begun, k->lease << 32 | number);
    if (judged(move_area(p, lender, i, &(struct call){k->reach, &m, &o}), "write")) {
        atomic_store(&part->acked, k->lease << 32 | number);
        count(WRITES);
    } else if (one_in(&p->seed, 2)) {
        forget(k);
    }
}

static void peer_step(struct peer *p)
{
    uint64_t x = random64(&p->seed);
    uint32_t lender = (uint32_t)(x % LENDERS), i = (uint32_t)((x >> 8) % AREAS);
    struct known *k = &p->known[lender][i];
    if (!reach(p, lender, i, k))
        return;
    if (x >> 32 & 1)
        read_area(p, lender, i, k);
    else
        write_part(p, lender, i, k);
}

static int move(uint32_t me, uint64_t seed)
{
    static struct peer p;
    const char *const transports[] = {"shm", "tcp", NULL};
    uint32_t way = (uint32_t)(seed % 3);
    atomic_store(&board->moving[me], 0);
    p = (struct peer){.me = me, .seed = seed, .relayed = way == 1};
    router_no_unix(p.relayed);
    p.client = open_client(transports[way]);
    while (!atomic_load(&board->end) && p.routes < ROUTES) {
        peer_step(&p);
        rest(&p.seed);
    }
    for (uint32_t l = 0; l < LENDERS; l++)
        for (uint32_t i = 0; i < AREAS; i++)
            forget(&p.known[l][i]);
    tarn_close(p.client);
    return 0;
}

/* --- the driver --------------------------------------------------------------------------------- */

enum fault { STOP, KILL, CUT, RESET, LOSE_REDIS, FAULTS };
static const char *const fault_names[] = {"stopped", "killed", "cut", "reset", "redis lost"};

struct driver {
    uint64_t seed;
    struct router *router;
    struct relay *relays[LENDERS][2];
    uint32_t relayed[LENDERS]; /* incarnations */
    pid_t pids[ACTORS];
    bool killed[ACTORS];
    uint64_t starts;
    uint32_t faults[FAULTS];
    uint32_t stuck;
};

static void start_actor(struct driver *d, uint32_t i)
{
    uint64_t seed = (d->seed + ++d->starts) * 0x9e3779b97f4a7c15ull | 1;
    pid_t pid = router_fork(d->router);
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        random64(&seed);
        _exit(i < LENDERS ? lend(i, seed) : move(i - LENDERS, seed));
    }
    d->pids[i] = pid;
    d->killed[i] = false;
}

static void relay_lender(struct driver *d, uint32_t i)
{
    struct lender_board *b = &board->lenders[i];
    uint32_t born = atomic_load(&b->born);
    if (born == d->relayed[i])
        return;
    d->relayed[i] = born;
    d->relays[i][0] = router_add(d->router, "127.0.0.1:0", b->control);
    d->relays[i][1] = router_add(d->router, "127.0.0.1:0", b->data);
    snprintf(b->control_relay, sizeof(b->control_relay), "%s", relay_address(d->relays[i][0]));
    snprintf(b->data_relay, sizeof(b->data_relay), "%s", relay_address(d->relays[i][1]));
    atomic_store(&b->relayed, born);
}

/* False: it runs. */
static bool reap(struct driver *d, uint32_t i)
{
    int status;
    if (!d->pids[i] || waitpid(d->pids[i], &status, WNOHANG) != d->pids[i])
        return d->pids[i] == 0;
    bool stuck = WIFEXITED(status) && WEXITSTATUS(status) == 2,
         ended = WIFEXITED(status) && !WEXITSTATUS(status);
    d->pids[i] = 0;
    d->stuck += stuck;
    if (!ended && !stuck && !(d->killed[i] && WIFSIGNALED(status)))
        violation(ODD, "process %u ended with status 0x%x", i, status);
    return true;
}

static void tend(struct driver *d)
{
    for (uint32_t i = 0; i < LENDERS; i++)
        relay_lender(d, i);
    for (uint32_t i = 0; i < ACTORS; i++)
        if (reap(d, i))
            start_actor(d, i);
}

static void tend_for(struct driver *d, uint64_t ms)
{
    for (uint64_t until = harness_now_ms() + ms; harness_now_ms() < until;) {
        tend(d);
        harness_pause();
    }
}

static void set_relays(struct driver *d, uint32_t lender, const struct relay_state *s)
{
    for (int i = 0; i < 2; i++)
        if (d->relays[lender][i])
            relay_set(d->relays[lender][i], s);
}

static void fault(struct driver *d)
{
    static const enum fault kinds[] = {STOP, STOP, STOP, STOP,  STOP,  KILL,
                                       KILL, CUT,  CUT,  RESET, RESET, LOSE_REDIS};
    uint64_t x = random64(&d->seed), ms = 20 + (x >> 8) % 200;
    uint32_t actor = (uint32_t)((x >> 24) % ACTORS), lender = actor % LENDERS;
    enum fault kind = kinds[(x >> 40) % (sizeof(kinds) / sizeof(kinds[0]))];
    d->faults[kind]++;
    bool moves = kind <= KILL && actor >= LENDERS;
    for (int n = 0; moves && n < LOOKS && !atomic_load(&board->moving[actor - LENDERS]); n++)
        sched_yield();
    if (kind == STOP) {
        kill(d->pids[actor], SIGSTOP); /* tend() has started all */
        tend_for(d, ms);
        kill(d->pids[actor], SIGCONT);
    } else if (kind == KILL) {
        d->killed[actor] = true;
        kill(d->pids[actor], SIGKILL);
    } else if (kind == LOSE_REDIS) {
        harness_kill(world->redis->process);
        tend_for(d, ms);
        harness_redis_restart(world->redis);
    } else {
        set_relays(d, lender,
                   &(struct relay_state){.cut = kind == CUT ? RELAY_BOTH : 0, .reset = kind == RESET});
        tend_for(d, ms);
        set_relays(d, lender, NULL);
    }
}

static bool all_ended(struct driver *d)
{
    bool all = true;
    for (uint32_t i = 0; i < LENDERS; i++)
        relay_lender(d, i);
    for (uint32_t i = 0; i < ACTORS; i++)
        all &= reap(d, i);
    return all;
}

static void end_actors(struct driver *d)
{
    uint64_t until = harness_now_ms() + 30000ull * harness_slower();
    atomic_store(&board->end, true);
    while (!all_ended(d) && harness_now_ms() < until)
        harness_pause();
    for (uint32_t i = 0; i < ACTORS; i++)
        if (d->pids[i]) {
            d->stuck++;
            kill(d->pids[i], SIGKILL);
            waitpid(d->pids[i], NULL, 0);
        }
}

static void print_table(const struct driver *d)
{
    for (int i = 0; i < FAULTS; i++)
        print_message("%s%s %u", i ? ", " : "faults: ", fault_names[i], d->faults[i]);
    print_message("\n");
    for (int i = 0; i < COUNTS; i++)
        print_message("%s%s %llu", i ? ", " : "", count_names[i], (unsigned long long)board->counts[i]);
    print_message(", stuck %u\n", d->stuck);
}

static int start(void **state)
{
    static const struct world_plan plan = {.nodes = 1, .args = {"--pool", "cpu0:bytes=16M"}};
    world_start(state, &plan);
    world = *state;
    board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(board, MAP_FAILED);
    for (uint32_t i = 0; i < LENDERS * AREAS; i++)
        atomic_store(&area_of(i / AREAS, i % AREAS)->lease, 1);
    return 0;
}

static int stop(void **state)
{
    munmap(board, sizeof(*board));
    return world_stop(state);
}

static void random_faults(void **state)
{
    const char *seconds = getenv("WINDOW_SOAK_SECONDS"), *seed = getenv("WINDOW_SOAK_SEED");
    struct driver d = {.seed = seed ? strtoull(seed, NULL, 10) : harness_now_ms() << 16 | (uint64_t)getpid()};
    (void)state;
    print_message("seed %llu\n", (unsigned long long)d.seed);
    d.seed |= 1;
#ifdef __SANITIZE_THREAD__
    harness_skip("fork", "ThreadSanitizer does not follow a child of a process with threads");
#endif
    d.router = router_start(d.seed);
    uint64_t end = harness_now_ms() + 1000 * (seconds ? strtoull(seconds, NULL, 10) : 20);
    for (tend_for(&d, 1000); harness_now_ms() < end; tend_for(&d, 10 + random64(&d.seed) % 150))
        fault(&d);
    end_actors(&d);
    router_stop(d.router);
    print_table(&d);
    if (board->has_why)
        fail_msg("%s", board->why);
    assert_int_equal(d.stuck, 0);
    for (int i = READS; i <= RECALLS; i++)
        if (i != FAILED && !board->counts[i])
            fail_msg("no %s: nothing was shown", count_names[i]);
    harness_passed(world->h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(random_faults, start, stop)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
