/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store's rules about reuse, each at its worst moment: a reader comes exactly when the store writes a
 * generation. The page of generations is write-protected, and the fault handler announces the reader. The old
 * generation is still there at that moment, so the reader may go on, and the store must see it afterwards,
 * however the object goes. The guard is tested in the same way.
 */
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "server/store/store.h"
#include "server/store/store_impl.h"
#include "tests/unit/store_fixture.h"

/* --- when a word is written --------------------------------------------------------------------- */

/* Runs `act` just before the next write to the page. */
static struct trap {
    void *page;
    size_t bytes;
    const void *word; /* the only word allowed; NULL: any */
    void (*act)(void);
    struct tarn_store *s;
    struct tarn_guard guard;
    struct tarn_hazard_page *hazards; /* NULL: use a pin */
    struct tarn_grant g;
    uint64_t gen;
    int rc;
    uint32_t hits;
} trap;

static void on_write(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    char *at = info->si_addr, *page = trap.page;
    if (!page || at < page || at >= page + trap.bytes || (trap.word && at != trap.word))
        _exit(99); /* another fault */
    mprotect(trap.page, trap.bytes, PROT_READ | PROT_WRITE);
    trap.hits++;
    trap.act();
}

/* Protects the page at `page`, `bytes` long. The other fields of the trap must be set. */
static void arm_page(const volatile void *page, size_t bytes)
{
    size_t size = (size_t)sysconf(_SC_PAGESIZE);
    struct sigaction action = {.sa_sigaction = on_write, .sa_flags = SA_SIGINFO};
    trap.page = (void *)(uintptr_t)page;
    trap.bytes = (bytes + size - 1) / size * size;
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    assert_int_equal(mprotect(trap.page, trap.bytes, PROT_READ), 0);
}

static void announce(void)
{
    void *addr;
    if (trap.hazards)
        atomic_store(&trap.hazards->entry[0], trap.g.slot + 1);
    else if (tarn_gen_readable(trap.gen))
        trap.rc = trap.guard.pin_read(trap.guard.arg, 0, trap.g.slot, trap.gen, trap.g.offset, 1, &addr);
    else
        trap.rc =
            trap.guard.pin_write(trap.guard.arg, SESSION, 0, trap.g.slot, trap.gen, trap.g.offset, 1, &addr);
}

/* Lets a reader or a writer come when the slot's generation is written, by a pin or in the hazard page. */
static void arm(struct tarn_store *s, struct tarn_hazard_page *hazards, const struct tarn_grant *g,
                uint64_t gen)
{
    uint32_t n;
    const struct tarn_pool_memory *m = tarn_store_pools(s, &n);
    trap = (struct trap){.word = (const void *)&m->gen[g->slot],
                         .act = announce,
                         .s = s,
                         .guard = tarn_store_guard(s),
                         .hazards = hazards,
                         .g = *g,
                         .gen = gen};
    arm_page(m->gen, m->nslots * sizeof(uint64_t));
}

/* Like arm(), but calls act() at any write to the guard's slots. */
static void arm_slots(struct tarn_store *s, const struct tarn_grant *g, uint64_t gen, void (*act)(void))
{
    trap = (struct trap){.act = act, .s = s, .guard = tarn_store_guard(s), .g = *g, .gen = gen};
    arm_page(s->pools[0].slots, s->memory[0].nslots * sizeof(struct slot));
}

/* The late reader is seen: nothing is reused until it is gone, and no other is let in. */
static void expect_seen(struct tarn_store *s)
{
    void *addr;
    assert_int_equal(trap.hits, 1);
    assert_int_equal(trap.rc, 0);
    assert_int_equal(stats(s).limbo, 1);
    assert_int_equal(gen_at(s, &trap.g) % 2, 1);
    assert_true(gen_at(s, &trap.g) > trap.gen);
    assert_int_equal(trap.guard.pin_read(trap.guard.arg, 0, trap.g.slot, trap.gen, trap.g.offset, 1, &addr),
                     TARN_E_STALE);
    tarn_store_tick(s);
    assert_int_equal(stats(s).limbo, 1);
    if (trap.hazards)
        atomic_store(&trap.hazards->entry[0], 0);
    else
        trap.guard.unpin(trap.guard.arg, 0, trap.g.slot, trap.gen);
    tarn_store_tick(s);
    assert_int_equal(stats(s).limbo, 0);
}

/* One way to lose the object "a" in the first slot. */
typedef void way_fn(struct tarn_store *s, const struct tarn_grant *g);

static void by_remove(struct tarn_store *s, const struct tarn_grant *g)
{
    (void)g;
    struct tarn_key key = key_of("a");
    assert_true(tarn_store_remove(s, &key, TARN_LEFT_REMOVED));
}

static void by_release(struct tarn_store *s, const struct tarn_grant *g)
{
    assert_true(tarn_store_release(s, g->pool, g->slot, g->gen + 1));
}

static void by_evict(struct tarn_store *s, const struct tarn_grant *g)
{
    (void)g;
    tarn_store_evict(s, 0, 1);
}

/* The reservation needs all the room. It is refused while the object is in use. */
static void by_reserve(struct tarn_store *s, const struct tarn_grant *g)
{
    (void)g;
    struct tarn_grant other;
    struct tarn_reserve r = want("b", MIB);
    assert_int_equal(tarn_store_reserve(s, &r, &other), TARN_E_FULL);
}

/* Like by_reserve, for the only slot. */
static void by_slot(struct tarn_store *s, const struct tarn_grant *g)
{
    (void)g;
    struct tarn_grant other;
    struct tarn_reserve r = want("b", 1);
    assert_int_equal(tarn_store_reserve(s, &r, &other), TARN_E_FULL);
}

static void by_tick(struct tarn_store *s, const struct tarn_grant *g)
{
    (void)g;
    uint64_t due = tarn_deadline(21);
    while (tarn_now_ns() < due)
        continue;
    tarn_store_tick(s);
}

static struct tarn_grant second; /* a put of the same key; its commit has begun */

static void by_replace(struct tarn_store *s, const struct tarn_grant *g)
{
    (void)g;
    tarn_store_commit_end(s, 0, second.slot, second.gen, true);
}

struct way {
    const char *name;
    way_fn *go;
    uint64_t bytes;
    uint32_t slots, ttl_ms;
    bool replace;
};

static const struct way ways[] = {
    {"removed", by_remove, 1000, 0, 0, false},          {"released", by_release, 1000, 0, 0, false},
    {"evicted", by_evict, 1000, 0, 0, false},           {"evicted for room", by_reserve, MIB, 0, 0, false},
    {"evicted for a slot", by_slot, 1000, 1, 0, false}, {"expired", by_tick, 1000, 0, 20, false},
    {"replaced", by_replace, 1000, 0, 0, true},
};

/* A slot gets its first generation at its first use. */
static void use_slots(struct tarn_store *s)
{
    put(s, "x", 1);
    put(s, "y", 1);
    tarn_store_evict(s, 0, UINT64_MAX);
}

static void go_a_way(const struct way *w, bool hazard)
{
    print_message("%s, %s\n", w->name, hazard ? "viewed" : "pinned");
    struct gone gone;
    struct tarn_store *s = new_store(&gone, 0);
    add_pool(s, "p", MIB, w->slots);
    struct tarn_hazard_page *page = calloc(1, sizeof(*page));
    atomic_store(&page->used, 1);
    assert_int_equal(tarn_store_hazard_add(s, page), 0);
    struct tarn_reserve r = want("a", w->bytes);
    struct tarn_grant g;
    struct tarn_publish p;
    r.ttl_ms = w->ttl_ms;
    if (w->slots != 1)
        use_slots(s);
    gone.n = 0;
    assert_int_equal(put_as(s, &r, &g), 0);
    if (w->replace) {
        assert_int_equal(tarn_store_reserve(s, &r, &second), 0);
        assert_int_equal(tarn_store_commit_begin(s, SESSION, 0, second.slot, second.gen, &p), 0);
    }
    arm(s, hazard ? page : NULL, &g, g.gen + 1);
    w->go(s, &g);
    expect_seen(s);
    assert_int_equal(gone.n, w->replace ? 0 : 1); /* the committer learns it from the result */
    tarn_store_free(s);
    free(page);
}

static void test_a_reader_at_the_last_moment_is_seen(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        go_a_way(&ways[i], false);
        go_a_way(&ways[i], true);
    }
}

/* Also for a reservation with a writer, and for a refused commit after its generation was readable. */
static void test_a_reader_is_seen_when_a_put_fails(void **state)
{
    (void)state;
    for (int hazard = 0; hazard < 2; hazard++) {
        struct gone gone;
        struct tarn_store *s = one_pool(&gone, MIB, 0);
        struct tarn_hazard_page *page = calloc(1, sizeof(*page));
        atomic_store(&page->used, 1);
        assert_int_equal(tarn_store_hazard_add(s, page), 0);
        struct tarn_reserve r = want("a", 1000);
        struct tarn_grant g;
        struct tarn_publish p;
        assert_int_equal(tarn_store_reserve(s, &r, &g), 0);
        arm(s, hazard ? page : NULL, &g, g.gen);
        assert_true(tarn_store_abort(s, SESSION, 0, g.slot, g.gen));
        expect_seen(s);

        assert_int_equal(tarn_store_reserve(s, &r, &g), 0);
        assert_int_equal(tarn_store_commit_begin(s, SESSION, 0, g.slot, g.gen, &p), 0);
        arm(s, hazard ? page : NULL, &g, g.gen + 1);
        tarn_store_commit_end(s, 0, g.slot, g.gen, false);
        expect_seen(s);
        tarn_store_free(s);
        free(page);
    }
}

/* --- the guard's side --------------------------------------------------------------------------- */

/* The slot and its extent go to another object at once. */
static void replace_it(void)
{
    struct tarn_key key = key_of("a");
    tarn_store_remove(trap.s, &key, TARN_LEFT_REMOVED);
    assert_int_equal(put(trap.s, "other", 1000).slot, trap.g.slot);
}

static void reserve_it_again(void)
{
    struct tarn_grant again;
    struct tarn_reserve r = want("b", 1000);
    tarn_store_abort(trap.s, SESSION, 0, trap.g.slot, trap.g.gen);
    trap.rc = tarn_store_reserve(trap.s, &r, &again);
    assert_int_equal(again.slot, trap.g.slot);
}

static void commit_it(void)
{
    struct tarn_publish p;
    trap.rc = tarn_store_commit_begin(trap.s, SESSION, 0, trap.g.slot, trap.g.gen, &p);
}

/* An object goes just before a reader has announced itself. The reader checks the generation afterwards, so
 * it does not get the object. */
static void test_an_object_removed_before_the_pin_is_stale(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_grant g = put(s, "a", 1000);
    void *addr;
    arm_slots(s, &g, g.gen + 1, replace_it);
    assert_int_equal(trap.guard.pin_read(s, 0, g.slot, g.gen + 1, g.offset, 1, &addr), TARN_E_STALE);
    assert_int_equal(trap.hits, 1);
    assert_int_equal(tarn_store_evict(s, 0, UINT64_MAX), 1024); /* and the pin is gone */

    struct tarn_reserve r = want("b", 1000);
    assert_int_equal(tarn_store_reserve(s, &r, &g), 0);
    arm_slots(s, &g, g.gen, reserve_it_again);
    assert_int_equal(trap.guard.pin_write(s, SESSION, 0, g.slot, g.gen, g.offset, 1, &addr), TARN_E_STALE);
    assert_int_equal(trap.hits, 1);
    assert_int_equal(trap.rc, 0);
    g.gen = gen_at(s, &g);
    arm_slots(s, &g, g.gen, commit_it);
    assert_int_equal(trap.guard.pin_write(s, SESSION, 0, g.slot, g.gen, g.offset, 1, &addr), TARN_E_STALE);
    assert_int_equal(trap.hits, 1);
    assert_int_equal(trap.rc, 0);
    tarn_store_free(s);
}

/* A writer comes when the commit takes over the slot. The commit sees it and is refused. */
static void test_a_writer_at_the_last_moment_stops_the_commit(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_reserve r = want("a", 1000);
    struct tarn_grant g;
    struct tarn_publish p;
    assert_int_equal(tarn_store_reserve(s, &r, &g), 0);
    arm_slots(s, &g, g.gen, announce);
    assert_int_equal(tarn_store_commit_begin(s, SESSION, 0, g.slot, g.gen, &p), TARN_E_BUSY);
    assert_int_equal(trap.hits, 1);
    assert_int_equal(trap.rc, 0);
    trap.guard.unpin(s, 0, g.slot, g.gen);
    commit(s, &g, true);
    tarn_store_free(s);
}

/* Refused pins must not keep the extent. */
static void test_refused_pins_leave_nothing(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_guard guard = tarn_store_guard(s);
    struct tarn_grant g = put(s, "a", 1000);
    struct tarn_reserve r = want("b", 1000);
    void *addr;
    assert_int_equal(guard.pin_read(s, 0, g.slot, g.gen + 1, g.offset, 1001, &addr), TARN_E_STALE);
    assert_int_equal(guard.pin_read(s, 0, g.slot, g.gen + 3, g.offset, 1, &addr), TARN_E_STALE);
    assert_true(tarn_store_release(s, 0, g.slot, g.gen + 1));
    assert_int_equal(stats(s).limbo, 0);
    assert_int_equal(tarn_store_reserve(s, &r, &g), 0);
    assert_int_equal(guard.pin_write(s, SESSION, 0, g.slot, g.gen, g.offset, 1001, &addr), TARN_E_STALE);
    assert_int_equal(guard.pin_write(s, SESSION + 1, 0, g.slot, g.gen, g.offset, 1, &addr), TARN_E_STALE);
    assert_true(tarn_store_abort(s, SESSION, 0, g.slot, g.gen));
    assert_int_equal(stats(s).limbo, 0);
    tarn_store_free(s);
}

/* A free slot has the next reservation's generation. The previous owner cannot write by guessing it. */
static void test_a_free_slot_refuses_writes(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_guard guard = tarn_store_guard(s);
    struct tarn_reserve r = want("a", 1000);
    struct tarn_grant g;
    void *addr;
    assert_int_equal(tarn_store_reserve(s, &r, &g), 0);
    assert_true(tarn_store_abort(s, SESSION, 0, g.slot, g.gen));
    uint64_t gen = gen_at(s, &g);
    assert_int_equal(guard.pin_write(s, SESSION, 0, g.slot, gen, g.offset, 1, &addr), TARN_E_STALE);
    tarn_store_free(s);
}

/* --- what is in limbo --------------------------------------------------------------------------- */

/* A reader with an old location finds another generation at once, even while another reader is still at the
 * object. */
static void test_generation_changes_before_the_readers_are_gone(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_guard guard = tarn_store_guard(s);
    struct tarn_grant g = put(s, "a", 1000);
    struct tarn_key key = key_of("a");
    void *addr;
    assert_int_equal(guard.pin_read(guard.arg, 0, g.slot, g.gen + 1, g.offset, 1, &addr), 0);
    assert_true(tarn_store_remove(s, &key, TARN_LEFT_REMOVED));
    assert_int_equal(gen_at(s, &g), g.gen + 2);
    assert_int_equal(guard.pin_read(guard.arg, 0, g.slot, g.gen + 1, g.offset, 1, &addr), TARN_E_STALE);
    tarn_store_tick(s);
    assert_int_equal(gen_at(s, &g), g.gen + 2);
    guard.unpin(guard.arg, 0, g.slot, g.gen + 1);
    tarn_store_free(s);
}

/* The store, and the number of `gone` calls. */
struct told {
    struct tarn_store *s;
    uint32_t n;
};

static void on_gone_look(void *arg, const struct tarn_key *key, const struct tarn_location *l, uint64_t bytes,
                         enum tarn_left why)
{
    struct told *t = arg;
    (void)key, (void)bytes, (void)why;
    assert_int_equal(l->gen % 2, 0);
    assert_int_equal(gen_at(t->s, &(struct tarn_grant){.slot = l->slot}), l->gen + 1);
    t->n++;
}

/* Others may treat a copy as gone as soon as they learn of it, so the generation must change first. */
static void test_generation_changes_before_a_copy_is_reported_gone(void **state)
{
    (void)state;
    struct told t = {0};
    struct tarn_store_options o = {.epoch = EPOCH, .node = "n1", .gone = on_gone_look, .arg = &t};
    assert_int_equal(tarn_store_new(&o, &t.s), 0);
    add_pool(t.s, "p", MIB, 0);
    struct tarn_key key = key_of("a");
    struct tarn_grant g = put(t.s, "a", MIB);
    assert_true(tarn_store_remove(t.s, &key, TARN_LEFT_REMOVED));
    g = put(t.s, "a", MIB);
    assert_true(tarn_store_release(t.s, 0, g.slot, g.gen + 1));
    put(t.s, "a", MIB);
    put(t.s, "b", MIB); /* evicts a */
    tarn_store_evict(t.s, 0, 1);
    assert_int_equal(t.n, 4);
    tarn_store_free(t.s);
}

/* Whatever a slot's state, nothing that was readable stays readable. */
static void test_all_retired(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = new_store(&gone, 0);
    add_pool(s, "a", MIB, 0);
    add_pool(s, "b", MIB, 0);
    struct tarn_guard guard = tarn_store_guard(s);
    struct tarn_grant live = put(s, "live", 1000), publishing, elsewhere, reserved;
    struct tarn_reserve r = want("publishing", 1000);
    struct tarn_publish p;
    void *addr;
    assert_int_equal(tarn_store_reserve(s, &r, &publishing), 0);
    assert_int_equal(
        tarn_store_commit_begin(s, SESSION, publishing.pool, publishing.slot, publishing.gen, &p), 0);
    r = want("elsewhere", 1000);
    r.pool = 1;
    assert_int_equal(put_as(s, &r, &elsewhere), 0);
    r = want("reserved", 1000);
    assert_int_equal(tarn_store_reserve(s, &r, &reserved), 0);
    const struct tarn_grant *readable[] = {&live, &publishing, &elsewhere};
    for (int retired = 0; retired < 2; retired++) {
        for (size_t i = 0; i < 3; i++) {
            const struct tarn_grant *g = readable[i];
            int rc = guard.pin_read(guard.arg, g->pool, g->slot, g->gen + 1, g->offset, 1, &addr);
            assert_int_equal(rc, retired ? TARN_E_STALE : 0);
            if (!rc)
                guard.unpin(guard.arg, g->pool, g->slot, g->gen + 1);
        }
        tarn_store_retire_all(s);
    }
    assert_int_equal(gen_at(s, &reserved), reserved.gen);
    tarn_store_commit_end(s, publishing.pool, publishing.slot, publishing.gen, true);
    assert_false(has(s, "publishing"));
    assert_int_equal(gone.n, 0);
    tarn_store_free(s);
}

/* --- which object is meant ---------------------------------------------------------------------- */

/* The slot was reused: requests with an earlier generation must not affect the new object. */
static void test_an_earlier_generation_affects_nothing(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_grant old = put(s, "a", 1000), g;
    struct tarn_key key = key_of("a");
    assert_true(tarn_store_remove(s, &key, TARN_LEFT_REMOVED));
    g = put(s, "a", 1000);
    assert_int_equal(g.slot, old.slot);
    assert_false(tarn_store_release(s, 0, g.slot, old.gen + 1));
    assert_false(tarn_store_release(s, 0, g.slot, g.gen + 3));
    assert_true(has(s, "a"));

    struct tarn_reserve r = want("b", 1000);
    struct tarn_grant aborted, again;
    struct tarn_publish p;
    assert_int_equal(tarn_store_reserve(s, &r, &aborted), 0);
    assert_true(tarn_store_abort(s, SESSION, 0, aborted.slot, aborted.gen));
    assert_int_equal(tarn_store_reserve(s, &r, &again), 0);
    assert_int_equal(again.slot, aborted.slot);
    assert_int_equal(tarn_store_commit_begin(s, SESSION, 0, again.slot, aborted.gen, &p), TARN_E_STALE);
    assert_false(tarn_store_abort(s, SESSION, 0, again.slot, aborted.gen));
    assert_int_equal(tarn_store_commit_begin(s, SESSION, 0, again.slot, again.gen, &p), 0);
    tarn_store_commit_end(s, 0, again.slot, aborted.gen, true);
    assert_false(has(s, "b"));
    tarn_store_commit_end(s, 0, again.slot, again.gen, true);
    assert_true(has(s, "b"));
    tarn_store_free(s);
}

/* Only its session can begin a commit again, whether the object is a reservation again or still LIVE. */
static void test_only_its_session_repeats_a_commit(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_reserve r = want("a", 1000);
    struct tarn_grant g;
    struct tarn_publish p;
    for (int live = 0; live < 2; live++) {
        assert_int_equal(tarn_store_reserve(s, &r, &g), 0);
        assert_int_equal(tarn_store_commit_begin(s, SESSION, 0, g.slot, g.gen, &p), 0);
        if (live)
            assert_true(tarn_store_commit_end(s, 0, g.slot, g.gen, 5).live);
        tarn_store_commit_again(s, SESSION, 0, g.slot, g.gen);
        assert_int_equal(gen_at(s, &g) % 2, !live);
        assert_int_equal(tarn_store_commit_begin(s, SESSION + 1, 0, g.slot, g.gen, &p), TARN_E_STALE);
        assert_int_equal(tarn_store_commit_begin(s, SESSION, 0, g.slot, g.gen, &p), 0);
        assert_true(tarn_store_commit_end(s, 0, g.slot, g.gen, 6).live);
        assert_int_equal(tarn_store_commit_begin(s, SESSION, 0, g.slot, g.gen, &p), TARN_E_STALE);
        assert_true(has(s, "a"));
    }
    tarn_store_free(s);
}

/* A repeated commit is refused, but the copy was LIVE: the copy is gone, and the committer learns where it
 * was. */
static void test_a_refused_repeated_commit_ends_the_copy(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_grant g = put(s, "a", 1000);
    tarn_store_commit_again(s, SESSION, 0, g.slot, g.gen);
    struct tarn_committed c = commit(s, &g, false);
    assert_true(!c.live && c.replaced);
    assert_int_equal(c.old.gen, g.gen + 1);
    assert_int_equal(gone.n, 0);
    assert_false(has(s, "a"));
    tarn_store_free(s);
}

/* The session has ended: a published object stays, a reservation is dropped. */
static void test_no_commit_is_repeated_without_its_session(void **state)
{
    (void)state;
    for (int live = 0; live < 2; live++) {
        struct gone gone;
        struct tarn_store *s = one_pool(&gone, MIB, 0);
        struct tarn_reserve r = want("a", 1000);
        struct tarn_publish p;
        struct tarn_grant g;
        struct tarn_pool_stats stats;
        assert_int_equal(tarn_store_reserve(s, &r, &g), 0);
        assert_int_equal(tarn_store_commit_begin(s, SESSION, 0, g.slot, g.gen, &p), 0);
        if (live)
            assert_true(tarn_store_commit_end(s, 0, g.slot, g.gen, 5).live);
        tarn_store_commit_again(s, 0, 0, g.slot, g.gen);
        assert_int_equal(has(s, "a"), live);
        assert_int_equal(tarn_store_commit_begin(s, SESSION, 0, g.slot, g.gen, &p), TARN_E_STALE);
        tarn_store_stats(s, 0, &stats);
        assert_int_equal(stats.reserved, 0);
        tarn_store_free(s);
    }
}

/* The same counter in another run of the node is another generation. */
static void test_another_run_is_another_generation(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_guard guard = tarn_store_guard(s);
    struct tarn_grant g = put(s, "a", 1000), w;
    struct tarn_reserve r = want("b", 1000);
    struct tarn_publish p;
    const uint64_t run = 1ull << 32, half = UINT32_MAX;
    void *addr;
    assert_int_equal(tarn_store_reserve(s, &r, &w), 0);
    for (int i = 0; i < 2; i++) {
        uint64_t even = i ? (g.gen + 1) & half : g.gen + 1 + run, odd = i ? w.gen & half : w.gen + run;
        assert_int_equal(guard.pin_read(guard.arg, 0, g.slot, even, g.offset, 1, &addr), TARN_E_STALE);
        assert_int_equal(guard.pin_write(guard.arg, SESSION, 0, w.slot, odd, w.offset, 1, &addr),
                         TARN_E_STALE);
        assert_false(tarn_store_release(s, 0, g.slot, even));
        assert_false(tarn_store_abort(s, SESSION, 0, w.slot, odd));
        assert_int_equal(tarn_store_commit_begin(s, SESSION, 0, w.slot, odd, &p), TARN_E_STALE);
    }
    assert_true(has(s, "a"));
    commit(s, &w, true);
    tarn_store_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_reader_at_the_last_moment_is_seen),
        cmocka_unit_test(test_a_reader_is_seen_when_a_put_fails),
        cmocka_unit_test(test_an_object_removed_before_the_pin_is_stale),
        cmocka_unit_test(test_a_writer_at_the_last_moment_stops_the_commit),
        cmocka_unit_test(test_refused_pins_leave_nothing),
        cmocka_unit_test(test_a_free_slot_refuses_writes),
        cmocka_unit_test(test_generation_changes_before_the_readers_are_gone),
        cmocka_unit_test(test_generation_changes_before_a_copy_is_reported_gone),
        cmocka_unit_test(test_all_retired),
        cmocka_unit_test(test_an_earlier_generation_affects_nothing),
        cmocka_unit_test(test_only_its_session_repeats_a_commit),
        cmocka_unit_test(test_a_refused_repeated_commit_ends_the_copy),
        cmocka_unit_test(test_no_commit_is_repeated_without_its_session),
        cmocka_unit_test(test_another_run_is_another_generation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
