/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases are recalled and granted anew under a peer that reads and writes all the time.
 *
 * The lender has areas of one size. Each is leased, later recalled, filled with bytes that nobody else knows,
 * and looked at again before the next lease: a byte that has changed came late. The peer, a process of its
 * own, knows what each area holds: what the lender put there with the lease, then what its own last write put
 * there. A read that returns 0 must bring just that.
 *
 *   WINDOW_TRANSFERS=N   so many transfers with each transport (20000)
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tarn/window.h>

#include "tests/transports.h"
#include "tests/world.h"

enum { AREAS = 32, AREA = 4096, WORDS = AREA / 8 };

/* What both processes see. */
struct board {
    struct {
        _Atomic uint32_t round; /* odd: there is no lease */
        char descriptor[TARN_DESCRIPTOR_MAX];
    } area[AREAS];
    _Atomic uint64_t done, reads, writes, stale, wrong, failed;
    atomic_bool end;
    char why[300]; /* of the first failure */
};

/* The k-th word of a stamp. */
static uint64_t word(uint64_t stamp, int k)
{
    uint64_t x = (stamp + 1) * 0x9e3779b97f4a7c15ull + (uint64_t)k * 0xbf58476d1ce4e5b9ull;
    return x ^ x >> 29;
}

static void fill(uint64_t *area, uint64_t stamp)
{
    for (int k = 0; k < WORDS; k++)
        area[k] = word(stamp, k);
}

static int differing(const uint64_t *area, uint64_t stamp)
{
    int n = 0;
    for (int k = 0; k < WORDS; k++)
        n += area[k] != word(stamp, k);
    return n;
}

static uint64_t random64(uint64_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x;
}

/* What the lender puts into an area, with the lease of that round. */
static uint64_t first_stamp(uint32_t area, uint32_t round)
{
    return (uint64_t)area << 32 | round;
}

/* --- the peer ----------------------------------------------------------------------------------- */

struct known {
    uint32_t round;
    uint64_t stamp;
    struct tarn_reach *reach; /* NULL: not reached in that round */
};

struct peer {
    struct board *board;
    struct tarn_client *client;
    struct known area[AREAS];
    uint64_t buffer[WORDS], writes, seed;
};

static void failed(struct peer *p, const char *what)
{
    if (atomic_fetch_add(&p->board->failed, 1) == 0)
        snprintf(p->board->why, sizeof(p->board->why), "%s: %s", what, tarn_last_error());
}

/* False: there is no lease just now, or it has ended meanwhile. */
static bool reach(struct peer *p, uint32_t i)
{
    struct known *k = &p->area[i];
    uint32_t round = atomic_load(&p->board->area[i].round);
    char text[TARN_DESCRIPTOR_MAX];
    if (k->reach && k->round == round)
        return true;
    if (round % 2)
        return false;
    memcpy(text, p->board->area[i].descriptor, sizeof(text));
    if (atomic_load(&p->board->area[i].round) != round)
        return false;
    tarn_reach_free(k->reach);
    *k = (struct known){.round = round, .stamp = first_stamp(i, round)};
    int rc = tarn_reach(p->client, text, 0, &k->reach);
    if (rc && rc != TARN_E_STALE)
        failed(p, "reach");
    return rc == 0;
}

/* The lease has ended, or may have: what the area holds is not known until the next. */
static void ended(struct peer *p, uint32_t i, int rc)
{
    if (rc == TARN_E_STALE)
        atomic_fetch_add(&p->board->stale, 1);
    else
        failed(p, "transfer");
    tarn_reach_free(p->area[i].reach);
    p->area[i].reach = NULL;
}

static void step(struct peer *p)
{
    uint64_t x = random64(&p->seed), stamp = UINT64_MAX / 2 + p->writes;
    uint32_t i = (uint32_t)(x % AREAS);
    const struct tarn_piece piece = {.addr = p->buffer, .bytes = AREA};
    struct tarn_move m = {.pieces = &piece, .npieces = 1};
    bool write = x >> 32 & 1;
    if (!reach(p, i))
        return;
    if (write)
        fill(p->buffer, stamp);
    int rc = write ? tarn_write(p->area[i].reach, &m, 1, NULL) : tarn_read(p->area[i].reach, &m, 1, NULL);
    atomic_fetch_add(&p->board->done, 1);
    if (rc) {
        ended(p, i, rc);
    } else if (write) {
        p->area[i].stamp = stamp;
        p->writes++;
        atomic_fetch_add(&p->board->writes, 1);
    } else {
        atomic_fetch_add(&p->board->wrong, (uint64_t)differing(p->buffer, p->area[i].stamp));
        atomic_fetch_add(&p->board->reads, 1);
    }
}

static void peer_process(struct world *w, struct board *b, const char *transport, uint64_t seed)
{
    struct peer p = {.board = b, .client = world_client(w, transport), .seed = seed};
    while (!atomic_load(&b->end))
        step(&p);
    for (uint32_t i = 0; i < AREAS; i++)
        tarn_reach_free(p.area[i].reach);
    tarn_close(p.client);
    _exit(0);
}

/* --- the lender --------------------------------------------------------------------------------- */

struct lender {
    struct board *board;
    struct tarn_window *window;
    uint64_t *memory;
    struct tarn_lease *lease[AREAS];
    uint64_t secret[AREAS]; /* what an area without a lease holds */
    uint64_t seed, late, recalls;
};

static uint64_t *area_of(const struct lender *l, uint32_t i)
{
    return l->memory + (size_t)i * WORDS;
}

static void grant(struct lender *l, uint32_t i)
{
    const struct tarn_run run = {.offset = (uint64_t)i * AREA, .bytes = AREA};
    const struct tarn_lease_options o = {.size = sizeof(o), .flags = TARN_LEASE_WRITE};
    uint32_t round = atomic_load(&l->board->area[i].round);
    l->late += (uint64_t)differing(area_of(l, i), l->secret[i]);
    fill(area_of(l, i), first_stamp(i, round + 1));
    assert_int_equal(tarn_lease(l->window, &run, 1, &o, &l->lease[i]), 0);
    assert_int_equal(tarn_lease_descriptor(l->lease[i], l->board->area[i].descriptor), 0);
    atomic_store(&l->board->area[i].round, round + 1);
}

static void take_back(struct lender *l, uint32_t i)
{
    atomic_fetch_add(&l->board->area[i].round, 1);
    if (tarn_recall(l->lease[i], 0))
        fail_msg("recall: %s", tarn_last_error());
    l->lease[i] = NULL;
    l->secret[i] = random64(&l->seed);
    fill(area_of(l, i), l->secret[i]);
    l->recalls++;
}

static bool goes_on(const struct lender *l, uint64_t transfers)
{
    const struct board *b = l->board;
    bool enough = atomic_load(&b->done) >= transfers && l->recalls >= 100 && atomic_load(&b->stale) >= 3;
    return !enough && !atomic_load(&b->failed);
}

/* One area at a time is without a lease, for as long as the peer takes for some transfers. */
static void lend(struct lender *l, uint64_t transfers)
{
    uint64_t next = 0;
    uint32_t open = 0;
    for (uint32_t i = 1; i < AREAS; i++)
        grant(l, i);
    while (goes_on(l, transfers)) {
        if (atomic_load(&l->board->done) < next)
            continue;
        uint64_t x = random64(&l->seed);
        uint32_t i = (uint32_t)(x % AREAS);
        next = atomic_load(&l->board->done) + (x >> 32) % 200;
        if (i == open)
            continue;
        take_back(l, i);
        grant(l, open);
        open = i;
    }
}

static void recalls(const char *transport, bool shared)
{
    static const struct world_plan plan = {.nodes = 0};
    const char *count = getenv("WINDOW_TRANSFERS");
    uint64_t seed = harness_now_ms() << 20 | (uint64_t)getpid() | 1;
    void *state;
    print_message("seed %llu\n", (unsigned long long)seed);
    assert_int_equal(world_start(&state, &plan), 0);
    struct world *w = state;
    struct board *b = mmap(NULL, sizeof(*b), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(b, MAP_FAILED);
    for (uint32_t i = 0; i < AREAS; i++)
        atomic_store(&b->area[i].round, 1);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        peer_process(w, b, transport, seed);
    struct tarn_client *c = world_client(w, NULL);
    struct lender l = {.board = b, .seed = seed};
    if (shared)
        assert_int_equal(tarn_window_alloc(AREAS * AREA, 0, (void **)&l.memory), 0);
    else
        l.memory = malloc(AREAS * AREA);
    for (uint32_t i = 0; i < AREAS; i++)
        fill(area_of(&l, i), l.secret[i]);
    assert_int_equal(tarn_window_new(c, l.memory, AREAS * AREA, &l.window), 0);
    lend(&l, count ? strtoull(count, NULL, 10) : 20000);
    atomic_store(&b->end, true);
    waitpid(pid, NULL, 0);
    print_message(
        "%s: %llu reads, %llu writes, %llu ended with STALE; %llu recalls; %llu words wrong, %llu late\n",
        transport, (unsigned long long)b->reads, (unsigned long long)b->writes, (unsigned long long)b->stale,
        (unsigned long long)l.recalls, (unsigned long long)b->wrong, (unsigned long long)l.late);
    if (b->failed)
        fail_msg("%s", b->why);
    assert_int_equal(b->wrong, 0);
    assert_int_equal(l.late, 0);
    assert_true(b->reads > 0 && b->writes > 0 && b->stale > 0);
    assert_int_equal(tarn_window_close(l.window, 0), 0);
    tarn_close(c);
    if (shared)
        tarn_window_free(l.memory);
    else
        free(l.memory);
    munmap(b, sizeof(*b));
    world_stop(&state);
}

static void over_shm(void **state)
{
    (void)state;
    recalls("shm", true);
}

static void over_tcp(void **state)
{
    (void)state;
    recalls("tcp", false);
}

static void over_rdma(void **state)
{
    (void)state;
    if (find_transport("rdma")->probe())
        harness_skip("rdma", tarn_last_error());
    recalls("rdma", true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(over_shm),
        cmocka_unit_test(over_tcp),
        cmocka_unit_test(over_rdma),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
