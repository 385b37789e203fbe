/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the checker with histories made by hand: it finds each kind of violation and passes each legal case.
 * Times are in milliseconds. For random histories it must agree with a checker that tries all orders of the
 * writes.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tarn/error.h>

#include "base/clock.h"
#include "tests/harness.h"
#include "tests/history/check.h"
#include "tests/history/soak/soak.h"
#include "tests/history/value.h"

enum { KILLED = -1000, DEADLINE_MS = 5000, OPS_MAX = 64 };

static struct history_op ops[OPS_MAX];
static struct history h;
static struct history_report r;

static int start(void **state)
{
    (void)state;
    memset(ops, 0, sizeof ops);
    h = (struct history){.ops = ops};
    return 0;
}

/* Status KILLED: the process was killed at `to`. */
static struct history_op *op(enum history_kind kind, uint64_t from, uint64_t to, int status, uint64_t version)
{
    struct history_op *o = &ops[h.n++];
    assert_true(h.n <= OPS_MAX);
    *o = (struct history_op){.start_ns = (from + 1) * TARN_NS_PER_MS,
                             .gone_ns = (to + 1) * TARN_NS_PER_MS,
                             .version = version,
                             .key = 7,
                             .deadline_ms = DEADLINE_MS,
                             .kind = (uint8_t)kind};
    if (status != KILLED) {
        atomic_store(&o->end_ns, o->gone_ns);
        o->status = status;
    }
    return o;
}

static void put(uint64_t from, uint64_t to, int status, uint64_t version)
{
    op(HISTORY_PUT, from, to, status, version);
}

static void replace(uint64_t from, uint64_t to, int status, uint64_t version)
{
    op(HISTORY_REPLACE, from, to, status, version);
}

static void removal(uint64_t from, uint64_t to, int status)
{
    op(HISTORY_REMOVE, from, to, status, 0);
}

static void get(uint64_t from, uint64_t to, uint64_t version)
{
    op(HISTORY_GET, from, to, 0, version);
}

static void miss(uint64_t from, uint64_t to)
{
    op(HISTORY_GET, from, to, TARN_E_NOT_FOUND, 0);
}

static void print_failed(void)
{
    if (!history_is_legal(&r))
        history_print(&r, stderr);
}

static void legal(void)
{
    assert_true(history_check(&h, &r));
    print_failed();
    assert_true(history_is_legal(&r));
}

/* Expects only this finding, found `times` times and shown with `parts` operations. */
static void finds(enum history_finding what, uint64_t times, size_t parts)
{
    assert_true(history_check(&h, &r));
    for (int f = 0; f < HISTORY_FINDINGS; f++)
        if (r.found[f] != (f == (int)what ? times : 0)) {
            history_print(&r, stderr);
            fail_msg("%s: %d found", history_finding_name((enum history_finding)f), (int)r.found[f]);
        }
    assert_int_equal(r.shown[what][0].nparts, parts);
}

/* --- legal -------------------------------------------------------------------------------------- */

static void values_in_order(void **state)
{
    (void)state;
    put(0, 10, 0, 1);
    get(20, 30, 1);
    replace(40, 50, 0, 2);
    get(60, 70, 2);
    removal(80, 90, 0);
    miss(100, 110);
    put(120, 130, 0, 3);
    get(140, 150, 3);
    legal();
    assert_int_equal(r.nops, 8);
}

static void misses_are_always_legal(void **state)
{
    (void)state;
    replace(0, 10, 0, 1);
    miss(20, 30);
    get(40, 50, 1);
    op(HISTORY_GET, 60, 70, TARN_E_NODE_DOWN, 0);
    get(80, 90, 1);
    legal();
    assert_int_equal(r.by_status[HISTORY_GET][-TARN_E_NOT_FOUND], 1);
}

/* A regular register: new, then old, while the replace runs. */
static void new_then_old_during_a_replace(void **state)
{
    (void)state;
    put(0, 10, 0, 1);
    replace(20, 100, 0, 2);
    get(30, 40, 2);
    get(50, 60, 1);
    get(70, 110, 1); /* began before the replace returned */
    get(120, 130, 2);
    legal();
}

static void overlapping_replaces_have_either_order(void **state)
{
    (void)state;
    replace(0, 50, 0, 1);
    replace(10, 40, 0, 2);
    get(60, 70, 1);
    get(80, 90, 1);
    legal();
    start(NULL);
    replace(0, 50, 0, 1);
    replace(10, 40, 0, 2);
    get(60, 70, 2);
    legal();
}

static void a_put_at_the_time_of_a_remove_may_stay(void **state)
{
    (void)state;
    replace(0, 50, 0, 1);
    removal(10, 40, 0);
    get(60, 70, 1);
    legal();
}

/* An operation that did not return 0 may have taken effect, also later. It displaces nothing. */
static void failed_operations_displace_nothing(void **state)
{
    (void)state;
    put(0, 10, 0, 1);
    replace(20, 30, TARN_E_TIMEOUT, 2);
    removal(32, 33, TARN_E_DIRECTORY);
    replace(34, 35, TARN_E_IN_DOUBT, 3);
    get(40, 50, 1);
    get(60, 70, 2);
    get(80, 90, 1);
    get(91, 92, 3);
    legal();
    assert_int_equal(r.late_effects, 0);
}

static void failed_put_takes_effect_after_a_later_put(void **state)
{
    (void)state;
    replace(0, 10, TARN_E_TIMEOUT, 1);
    replace(20, 30, 0, 2);
    get(40, 50, 1);
    legal();
    assert_int_equal(r.late_effects, 1);
}

static void killed_put_takes_effect_or_not(void **state)
{
    (void)state;
    put(0, 10, 0, 1);
    replace(20, 30, KILLED, 2);
    get(40, 50, 1);
    get(60, 70, 2);
    get(80, 90, 1);
    legal();
    assert_int_equal(r.unfinished[HISTORY_REPLACE], 1);
}

/* The client may have retried the put until it returned. */
static void failed_put_seen_before_it_returned(void **state)
{
    (void)state;
    replace(0, 100, TARN_E_TIMEOUT, 1);
    get(10, 20, 1);
    replace(30, 40, 0, 2);
    get(50, 60, 1);
    legal();
}

static void a_put_beside_an_unseen_object_displaces_nothing(void **state)
{
    (void)state;
    put(0, 10, 0, 1);
    put(20, 30, 0, 2); /* a node was away */
    get(40, 50, 1);
    get(60, 70, 2);
    legal();
}

static void stalls_do_not_count_as_lateness(void **state)
{
    (void)state;
    get(20000, 25049, 0);
    ops[h.n - 1].status = TARN_E_TIMEOUT;
    get(10, 5300, 0);
    ops[h.n - 1].status = TARN_E_TIMEOUT;
    op(HISTORY_STALL, 100, 300, 0, 0)->client = HISTORY_ALL_CLIENTS;
    op(HISTORY_STALL, 250, 360, 0, 0);
    op(HISTORY_GET, 6000, 11400, TARN_E_TIMEOUT, 0)->waited_ns = 380 * TARN_NS_PER_MS;
    legal();
    assert_in_range(r.latest_ns, 49 * TARN_NS_PER_MS, 50 * TARN_NS_PER_MS);
}

/* --- violations --------------------------------------------------------------------------------- */

static void stale_get(void **state)
{
    (void)state;
    put(0, 10, 0, 1);
    get(11, 12, 1);
    replace(20, 30, 0, 2);
    miss(35, 36);
    get(40, 50, 1);
    get(60, 70, 2);
    finds(HISTORY_STALE, 1, 3);
}

/* A get is stale even if the newest version is gone. */
static void a_get_is_stale_behind_two_versions(void **state)
{
    (void)state;
    replace(0, 10, 0, 1);
    replace(20, 30, 0, 2);
    replace(40, 50, TARN_E_IN_DOUBT, 3);
    get(60, 70, 3);
    get(80, 90, 1);
    get(100, 110, 1);
    finds(HISTORY_STALE, 2, 3);
}

static void resurrected_value(void **state)
{
    (void)state;
    put(0, 10, 0, 1);
    removal(20, 30, 0);
    get(40, 50, 1);
    finds(HISTORY_RESURRECTED, 1, 3);
    start(NULL);
    put(0, 10, 0, 1);
    removal(20, 30, TARN_E_NOT_FOUND);
    get(40, 50, 1);
    finds(HISTORY_RESURRECTED, 1, 3);
}

static void failed_put_seen_and_displaced(void **state)
{
    (void)state;
    replace(0, 10, TARN_E_TIMEOUT, 1);
    get(20, 30, 1);
    replace(40, 50, 0, 2);
    get(60, 70, 1);
    finds(HISTORY_STALE, 1, 4);
    start(NULL);
    replace(0, 10, KILLED, 1);
    get(20, 30, 1);
    removal(40, 50, 0);
    get(60, 70, 1);
    finds(HISTORY_RESURRECTED, 1, 4);
}

static void two_versions_in_turn(void **state)
{
    (void)state;
    replace(0, 50, 0, 1);
    replace(10, 60, 0, 2);
    get(70, 80, 1);
    get(90, 100, 2);
    finds(HISTORY_IN_TURN, 1, 4);
}

/* 1 before 2 (a get), 2 before 3 (time), 3 before 1 (a get). Any two of them alone are legal. */
static void three_versions_in_turn(void **state)
{
    (void)state;
    replace(0, 5, TARN_E_TIMEOUT, 2);
    get(6, 10, 2);
    replace(0, 40, 0, 1);
    replace(20, 60, 0, 3);
    get(50, 55, 2);
    get(70, 80, 1);
    finds(HISTORY_IN_TURN, 1, 6);
}

static void value_before_its_put(void **state)
{
    (void)state;
    get(0, 10, 1);
    put(20, 30, 0, 1);
    finds(HISTORY_EARLY, 1, 2);
}

static void a_value_that_no_put_wrote_is_unknown(void **state)
{
    (void)state;
    get(0, 10, 1);
    finds(HISTORY_UNKNOWN, 1, 1);
    start(NULL);
    put(0, 10, 0, 1);
    ops[0].key = 8;
    get(20, 30, 1);
    finds(HISTORY_UNKNOWN, 1, 1);
}

static void wrong_bytes(void **state)
{
    (void)state;
    put(0, 10, 0, 1);
    get(20, 30, 1);
    ops[1].wrong = HISTORY_TORN;
    finds(HISTORY_BYTES, 1, 1);
    assert_int_equal(r.wrong[HISTORY_TORN], 1);
}

static void late_operation(void **state)
{
    (void)state;
    op(HISTORY_GET, 10, 5061, TARN_E_TIMEOUT, 0);
    finds(HISTORY_LATE, 1, 1);
    start(NULL);
    op(HISTORY_GET, 10, 5061, KILLED, 0);
    finds(HISTORY_LATE, 1, 1);
    start(NULL);
    op(HISTORY_GET, 10, 5100, TARN_E_TIMEOUT, 0);
    op(HISTORY_STALL, 100, 139, 0, 0);
    op(HISTORY_STALL, 200, 300, 0, 0)->client = 1; /* a stall of another client */
    finds(HISTORY_LATE, 1, 1);
}

/* --- against all orders ------------------------------------------------------------------------- */

enum { WRITES = 4, GETS = 4, VALUES = 3 };

static uint64_t dice_state;

static uint64_t dice(uint64_t sides)
{
    dice_state = dice_state * 6364136223846793005ull + 1442695040888963407ull;
    return (dice_state >> 33) % sides;
}

static uint64_t value_over(size_t w)
{
    uint64_t seen = UINT64_MAX;
    if (ops[w].status == 0)
        return ops[w].gone_ns;
    for (size_t g = WRITES; g < h.n; g++)
        if (ops[g].version == ops[w].version && ops[g].gone_ns < seen)
            seen = ops[g].gone_ns;
    return seen > ops[w].gone_ns ? seen : ops[w].gone_ns;
}

static bool fits(const size_t *order)
{
    uint64_t over[WRITES];
    size_t place[WRITES];
    for (size_t i = 0; i < WRITES; i++)
        place[order[i]] = i;
    for (size_t w = 0; w < WRITES; w++)
        over[w] = value_over(w);
    for (size_t w = 0; w < WRITES; w++)
        for (size_t v = 0; v < WRITES; v++)
            if (over[w] < ops[v].start_ns && place[w] > place[v])
                return false;
    for (size_t g = WRITES; g < h.n; g++) {
        size_t v = ops[g].version - 1;
        for (size_t w = 0; w < WRITES && over[v] < ops[g].start_ns; w++)
            if (w != v && ops[w].status == 0 && ops[w].kind != HISTORY_PUT && over[w] < ops[g].start_ns &&
                place[w] > place[v])
                return false;
    }
    return true;
}

static bool fits_any(size_t *order, size_t n)
{
    if (n == WRITES)
        return fits(order);
    for (size_t i = n; i < WRITES; i++) {
        size_t kept = order[n];
        order[n] = order[i];
        order[i] = kept;
        if (fits_any(order, n + 1))
            return true;
        order[i] = order[n];
        order[n] = kept;
    }
    return false;
}

/* Values 1 to 3 are put in random ways, there is a remove, and then gets follow. */
static void make_random(void)
{
    static const int statuses[] = {0, 0, TARN_E_TIMEOUT};
    start(NULL);
    for (uint64_t w = 0; w < WRITES; w++) {
        uint64_t from = dice(60), to = from + 1 + dice(30);
        if (w < VALUES)
            op(dice(5) ? HISTORY_REPLACE : HISTORY_PUT, from, to, statuses[dice(3)], w + 1);
        else
            removal(from, to, 0);
    }
    for (int g = 0; g < GETS; g++) {
        uint64_t version = dice(VALUES) + 1, from = dice(100);
        uint64_t begun = ops[version - 1].start_ns / TARN_NS_PER_MS;
        get(from, (from < begun ? begun : from) + 1 + dice(20), version);
    }
}

static void agrees_with_all_orders(void **state)
{
    (void)state;
    uint64_t seed = harness_now_ms();
    int found = 0;
    print_message("seed %llu\n", (unsigned long long)seed);
    dice_state = seed;
    for (int round = 0; round < 20000; round++) {
        size_t order[WRITES] = {0, 1, 2, 3};
        make_random();
        bool want = fits_any(order, 0);
        found += !want;
        assert_true(history_check(&h, &r));
        if (history_is_legal(&r) != want) {
            history_print(&r, stderr);
            fail_msg("round %d: the checker says %d", round, history_is_legal(&r));
        }
    }
    assert_in_range(found, 1000, 19000);
}

/* --- values ------------------------------------------------------------------------------------- */

static void an_inspected_value_shows_its_fault(void **state)
{
    (void)state;
    static char a[1000], b[1000], other[1000], got[1000];
    uint64_t version;
    size_t at;
    value_fill(a, sizeof a, 7, 1);
    value_fill(b, sizeof b, 7, 2);
    value_fill(other, sizeof other, 8, 1);
    assert_int_equal(value_inspect(a, sizeof a, 7, &version, &at), HISTORY_RIGHT);
    assert_int_equal(version, 1);
    assert_int_equal(value_inspect(other, sizeof other, 7, &version, &at), HISTORY_FOREIGN);
    memcpy(got, a, sizeof got);
    memcpy(got + 512, b + 512, 32);
    assert_int_equal(value_inspect(got, sizeof got, 7, &version, &at), HISTORY_TORN);
    assert_int_equal(at, 512);
    memcpy(got + 512, other + 512, 32);
    assert_int_equal(value_inspect(got, sizeof got, 7, &version, &at), HISTORY_FOREIGN);
    memcpy(got + 512, a + 544, 32);
    assert_int_equal(value_inspect(got, sizeof got, 7, &version, &at), HISTORY_MISPLACED);
    memset(got + 512, 0, 32);
    assert_int_equal(value_inspect(got, sizeof got, 7, &version, &at), HISTORY_GARBLED);
    memcpy(got, a, sizeof got);
    got[999]++;
    assert_int_equal(value_inspect(got, sizeof got, 7, &version, &at), HISTORY_GARBLED);
    memset(got, 0, sizeof got);
    assert_int_equal(value_inspect(got, sizeof got, 7, &version, &at), HISTORY_GARBLED);
    assert_int_equal(version, 0);
}

/* --- logs --------------------------------------------------------------------------------------- */

/* A client is killed in an operation. Its successor continues the same log. */
static void logs_survive_the_writer(void **state)
{
    (void)state;
    char dir[] = "/dev/shm/tarn-history-XXXXXX", path[64];
    int status;
    struct history got;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/log-3", dir);
    pid_t child = fork();
    if (child == 0) {
        struct history_log *l = history_open(path, 3, 100);
        history_end(history_begin(l, HISTORY_PUT, 5, 100), TARN_E_EXISTS);
        history_begin(l, HISTORY_REPLACE, 6, 100);
        kill(getpid(), SIGKILL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    struct history_log *l = history_open(path, 3, 100);
    assert_non_null(l);
    struct history_op *op5 = history_begin(l, HISTORY_REMOVE, 5, 100);
    assert_true(history_load(dir, &got));
    unlink(path);
    rmdir(dir);
    assert_int_equal(got.n, 5);
    assert_int_equal(got.ops[1].status, TARN_E_EXISTS);
    assert_int_equal(got.ops[1].gone_ns, got.ops[1].end_ns);
    assert_int_equal(got.ops[2].kind, HISTORY_REPLACE);
    assert_int_equal(got.ops[2].end_ns, 0);
    assert_int_equal(got.ops[2].gone_ns, got.ops[3].start_ns);
    assert_true(got.ops[1].version != got.ops[2].version && got.ops[2].version != 0);
    assert_int_equal(got.ops[4].gone_ns, UINT64_MAX);
    assert_int_equal(got.ops[4].client, 3);
    history_end(op5, 0);
    history_close(l);
    history_free(&got);
}

/* --- the soak's plan ---------------------------------------------------------------------------- */

enum { TTL_MS = 1500 };

static struct soak_fault plan[SOAK_FAULTS_MAX], again[SOAK_FAULTS_MAX];

static bool is_between(const struct soak_fault *f, enum soak_fault_kind first, enum soak_fault_kind last)
{
    return f->kind >= first && f->kind <= last;
}

/* A client and a node are cut off from Redis at the same time or shortly after each other. */
static bool is_island(const struct soak_fault *a, const struct soak_fault *b)
{
    return (is_between(a, SOAK_CLIENT_REDIS_CUT, SOAK_CLIENT_REDIS_LOSS) || a->kind == SOAK_REDIS_STOP) &&
           (is_between(b, SOAK_NODE_STOP, SOAK_NODE_RESTART) ||
            is_between(b, SOAK_NODE_REDIS_CUT, SOAK_NODE_REDIS_LOSS)) &&
           a->from_ms < b->to_ms + TTL_MS && b->from_ms < a->to_ms + TTL_MS;
}

static void check_plan(size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int beside = 0;
        for (size_t k = 0; k < n; k++) {
            assert_false(is_island(&plan[i], &plan[k]));
            beside += plan[k].from_ms <= plan[i].from_ms && plan[i].from_ms < plan[k].to_ms;
        }
        assert_in_range(beside, 1, 3);
    }
}

static void plans_come_from_the_seed(void **state)
{
    (void)state;
    struct soak_options o = {.seconds = 60, .transport = "tcp", .copies = 2, .heartbeat_ms = TTL_MS / 3};
    bool seen[SOAK_FAULT_KINDS] = {false};
    for (o.seed = 1; o.seed <= 100; o.seed++) {
        memset(again, 0, sizeof again);
        memset(plan, 0, sizeof plan);
        size_t n = soak_plan(&o, plan);
        assert_in_range(n, 20, 200);
        assert_int_equal(soak_plan(&o, again), n);
        assert_memory_equal(plan, again, sizeof plan);
        check_plan(n);
        for (size_t i = 0; i < n; i++)
            seen[plan[i].kind] = true;
    }
    for (int k = 0; k < SOAK_FAULT_KINDS; k++)
        assert_true(seen[k]);
    o.only = "redis-old,node-kill";
    for (size_t i = 0, n = soak_plan(&o, plan); i < n; i++)
        assert_true(plan[i].kind == SOAK_REDIS_OLD || plan[i].kind == SOAK_NODE_KILL);
}

static void the_plan_cuts_no_link_within_a_host(void **state)
{
    (void)state;
    static const char *const transports[] = {"shm", "cuda_ipc"};
    struct soak_options o = {.seconds = 60, .copies = 2, .heartbeat_ms = TTL_MS / 3};
    for (int t = 0; t < 2; t++)
        for (o.transport = transports[t], o.seed = 1; o.seed <= 20; o.seed++)
            for (size_t i = 0, n = soak_plan(&o, plan); i < n; i++)
                assert_true(plan[i].kind < SOAK_CLIENT_NODE_CUT);
}

#define CASE(fn_) cmocka_unit_test_setup(fn_, start)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(values_in_order),
        CASE(misses_are_always_legal),
        CASE(new_then_old_during_a_replace),
        CASE(overlapping_replaces_have_either_order),
        CASE(a_put_at_the_time_of_a_remove_may_stay),
        CASE(failed_operations_displace_nothing),
        CASE(failed_put_takes_effect_after_a_later_put),
        CASE(killed_put_takes_effect_or_not),
        CASE(failed_put_seen_before_it_returned),
        CASE(a_put_beside_an_unseen_object_displaces_nothing),
        CASE(stalls_do_not_count_as_lateness),
        CASE(stale_get),
        CASE(a_get_is_stale_behind_two_versions),
        CASE(resurrected_value),
        CASE(failed_put_seen_and_displaced),
        CASE(two_versions_in_turn),
        CASE(three_versions_in_turn),
        CASE(value_before_its_put),
        CASE(a_value_that_no_put_wrote_is_unknown),
        CASE(wrong_bytes),
        CASE(late_operation),
        CASE(agrees_with_all_orders),
        CASE(an_inspected_value_shows_its_fault),
        CASE(logs_survive_the_writer),
        CASE(plans_come_from_the_seed),
        CASE(the_plan_cuts_no_link_within_a_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
