/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eviction: a full store accepts every put, and readers never see another object's bytes. Pools are small but
 * have the proportions of large ones. Only the threads' test touches an arena.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/text.h"
#include "tests/unit/store_fixture.h"

/* --- eviction ----------------------------------------------------------------------------------- */

static uint64_t random_below(uint64_t *seed, uint64_t n)
{
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return (*seed >> 33) % n;
}

/* Sizes from 4 KiB to 1 MiB; each power of two is equally likely. */
static uint64_t mixed_size(uint64_t *seed)
{
    uint64_t low = 4 * KIB << random_below(seed, 8);
    return low + random_below(seed, low);
}

/* 6000 puts of `bytes` (0: mixed sizes) into 64 MiB: the proportions of 1 MiB objects in 1 GiB. */
static void puts_into_full_store(uint64_t bytes, uint64_t seed)
{
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, 64 * MIB, 0);
    char key[32];
    uint64_t put_bytes = 0;
    for (int i = 0; i < 6000; i++) {
        uint64_t n = bytes ? bytes : mixed_size(&seed);
        snprintf(key, sizeof(key), "k%d", i);
        put(s, key, n);
        put_bytes += n;
    }
    struct tarn_pool_stats st = stats(s);
    assert_true(put_bytes > 2 * st.bytes);
    assert_int_equal(st.refused, 0);
    assert_int_equal(st.evicted, gone.n);
    assert_int_equal(st.objects + gone.n, 6000);
    if (bytes)
        assert_true(st.used >= st.bytes / 100 * 95);
    tarn_store_free(s);
}

static void test_full_store_takes_every_put(void **state)
{
    (void)state;
    uint64_t seed = tarn_random64();
    print_message("seed %" PRIu64 "\n", seed);
    puts_into_full_store(64 * KIB, seed);
    puts_into_full_store(64 * KIB + 17, seed);
    puts_into_full_store(0, seed);
}

/* Small objects fill the pool, some of them pinned. A large one needs a run of neighbours. */
static void test_large_among_small(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, 16 * MIB, 0);
    char key[32];
    for (int i = 0; i < 4096; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        struct tarn_reserve r = want(key, 4 * KIB);
        r.pin = i % 1024 == 100; /* runs of 1023 objects, just under 4 MiB */
        struct tarn_grant g;
        assert_int_equal(put_as(s, &r, &g), 0);
    }
    put(s, "large", 3 * MIB);
    assert_true(gone.n <= 800); /* evicts no more than it needs */
    struct tarn_reserve r = want("larger", 1023 * 4 * KIB);
    struct tarn_grant g;
    assert_int_equal(put_as(s, &r, &g), 0);
    r = want("largest", 1024 * 4 * KIB); /* no run is that long */
    assert_int_equal(tarn_store_reserve(s, &r, &g), TARN_E_FULL);
    assert_true(has(s, "k100") && has(s, "k1124") && has(s, "k2148") && has(s, "k3172"));
    tarn_store_free(s);
}

/* Only one run in the pool is long enough, and few possible victims lie there. Others have period - 1
 * objects. */
static void find_the_only_run(uint64_t period)
{
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, 16 * MIB, 0);
    uint64_t first = UINT64_MAX, last = 0;
    char key[32];
    for (uint64_t i = 0; i < 4096; i++) {
        snprintf(key, sizeof(key), "k%" PRIu64, i);
        struct tarn_reserve r = want(key, 4 * KIB);
        struct tarn_grant g;
        r.pin = i % period == 0 && i / 8 != 300;
        assert_int_equal(put_as(s, &r, &g), 0);
        if (i / 8 == 300) {
            first = g.offset < first ? g.offset : first;
            last = g.offset > last ? g.offset : last;
        }
    }
    assert_int_equal(last - first, 7 * 4 * KIB);
    struct tarn_grant g = put(s, "large", 8 * 4 * KIB);
    assert_in_range(g.offset, first - (period - 1) * 4 * KIB, first + (period - 1) * 4 * KIB);
    assert_true(gone.n >= 8 && gone.n <= 9);
    tarn_store_free(s);
}

static void test_the_only_run_is_found(void **state)
{
    (void)state;
    find_the_only_run(2);
    find_the_only_run(6);
}

/* Objects of every age: what is evicted is no younger than two thirds of the age of anything that stays. */
static void test_evicts_least_recently_used(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, 4 * MIB, 0);
    char key[32];
    uint32_t n;
    _Atomic uint32_t *touch = tarn_store_pools(s, &n)[0].touch;
    for (uint32_t i = 0; i < 1024; i++) {
        snprintf(key, sizeof(key), "k%u", i);
        struct tarn_grant g = put(s, key, 4 * KIB);
        atomic_store(&touch[g.slot], tarn_store_now(s) - 100000 * (1024 - i)); /* k0 is the oldest */
    }
    tarn_store_tick(s); /* notices the ages */
    assert_int_equal(gone.n, 0);
    for (int i = 0; i < 256; i++) {
        snprintf(key, sizeof(key), "n%d", i);
        put(s, key, 4 * KIB);
    }
    assert_int_equal(gone.n, 256);
    uint32_t youngest_gone = UINT32_MAX, oldest_here = 0;
    for (uint32_t i = 0; i < 1024; i++) {
        uint32_t age = 1024 - i;
        snprintf(key, sizeof(key), "k%u", i);
        if (has(s, key))
            oldest_here = age > oldest_here ? age : oldest_here;
        else
            youngest_gone = age < youngest_gone ? age : youngest_gone;
    }
    print_message("the youngest evicted has age %u, the oldest that stays %u\n", youngest_gone, oldest_here);
    assert_true(youngest_gone * 3 >= oldest_here * 2);
    tarn_store_free(s);
}

static void test_slots_run_out(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 10);
    char key[32];
    for (int i = 0; i < 100; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        put(s, key, 100);
    }
    assert_int_equal(gone.n, 90);
    assert_int_equal(stats(s).objects, 10);
    assert_true(has(s, "k99"));
    tarn_store_free(s);
}

static void test_several_pools(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = new_store(&gone, 0);
    add_pool(s, "a", MIB, 0);
    add_pool(s, "b", 2 * MIB, 0);
    char key[32];
    for (int i = 0; i < 48; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        put(s, key, 64 * KIB);
    }
    assert_int_equal(gone.n, 0); /* both pools are filled before any eviction */
    for (int i = 0; i < 480; i++) {
        snprintf(key, sizeof(key), "n%d", i);
        put(s, key, 64 * KIB);
    }
    struct tarn_pool_stats a, b;
    tarn_store_stats(s, 0, &a);
    tarn_store_stats(s, 1, &b);
    assert_in_range(a.evicted, 155, 165);
    assert_in_range(b.evicted, 315, 325);
    tarn_store_free(s);
}

/* A pool is used to its last byte; nothing leaves it until that room is asked for. */
static void test_a_full_pool_keeps_all(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    char key[32];
    for (int i = 0; i < 16; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        put(s, key, 64 * KIB);
    }
    for (int i = 0; i < 10; i++)
        tarn_store_tick(s);
    assert_int_equal(stats(s).used, MIB);
    assert_int_equal(gone.n, 0);
    put(s, "one more", 64 * KIB);
    assert_int_equal(gone.n, 1);
    assert_int_equal(stats(s).used, MIB);
    assert_int_equal(tarn_store_evict(s, 0, 65 * KIB), 128 * KIB);
    assert_int_equal(tarn_store_evict(s, 0, UINT64_MAX), 14 * 64 * KIB);
    assert_int_equal(tarn_store_evict(s, 0, 1), 0);
    assert_int_equal(stats(s).evicted, gone.n);
    tarn_store_free(s);
}

/* --- chains ------------------------------------------------------------------------------------- */

static struct tarn_chain chain_from(const struct tarn_store *s, const char *key)
{
    return tarn_store_chain_from(s, &(struct tarn_key){key, strlen(key)});
}

/* A pool evicts by itself: what an object of another pool continues goes like any other. */
static void test_chains_end_at_pools(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = new_store(&gone, 0);
    add_pool(s, "a", MIB, 0);
    add_pool(s, "b", MIB, 0);
    struct tarn_grant g;
    struct tarn_reserve r = want("begin", 64 * KIB);
    r.pool = 0;
    assert_int_equal(put_as(s, &r, &g), 0);
    struct tarn_chain chain = chain_from(s, "begin");
    assert_true(chain.any);
    r = want("end", 64 * KIB);
    r.pool = 1;
    r.chain = &chain;
    assert_int_equal(put_as(s, &r, &g), 0);
    assert_true(chain.any && chain.pool == 1 && chain.slot == g.slot);
    assert_int_equal(tarn_store_evict(s, 0, UINT64_MAX), 64 * KIB);
    assert_true(!has(s, "begin") && has(s, "end"));
    assert_int_equal(tarn_store_evict(s, 1, UINT64_MAX), 64 * KIB);
    tarn_store_free(s);
}

/* A put that found no room, or was aborted, leaves what it would have continued as it was. */
static void test_a_failed_put_continues_nothing(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, 128 * KIB, 0);
    struct tarn_grant g;
    put(s, "begin", 64 * KIB);
    struct tarn_reserve r = want("pinned", 64 * KIB);
    r.pin = true;
    assert_int_equal(put_as(s, &r, &g), 0);
    struct tarn_chain chain = chain_from(s, "begin"), before = chain;
    r = want("end", 64 * KIB);
    r.chain = &chain;
    assert_int_equal(tarn_store_reserve(s, &r, &g), TARN_E_FULL);
    assert_memory_equal(&chain, &before, sizeof(chain));
    assert_true(has(s, "begin"));
    assert_true(tarn_store_unpin(s, &(struct tarn_key){"pinned", 6}));
    assert_int_equal(tarn_store_reserve(s, &r, &g), 0); /* in place of the other one */
    assert_true(has(s, "begin") && !has(s, "pinned"));
    assert_int_equal(tarn_store_evict(s, 0, UINT64_MAX), 0);
    struct tarn_chain at = tarn_store_chain_at(s, 0, g.slot, g.gen);
    assert_true(at.any && at.slot == g.slot);
    assert_true(tarn_store_abort(s, SESSION, 0, g.slot, g.gen));
    assert_false(tarn_store_chain_at(s, 0, g.slot, g.gen).any);
    assert_false(chain_from(s, "end").any);
    assert_int_equal(tarn_store_evict(s, 0, UINT64_MAX), 64 * KIB);
    assert_false(has(s, "begin"));
    tarn_store_free(s);
}

/* --- threads ------------------------------------------------------------------------------------ */

#define SHOWN 64
#define READERS 3

/* Descriptors as a directory would show them, for readers to use. `shows` is odd while one is written: slots
 * may have equal generations, so that a mix of two descriptors could pass for one. */
struct shown {
    _Atomic uint64_t shows;
    _Atomic uint64_t slot_offset; /* slot << 32 | offset */
    _Atomic uint64_t gen;
};

struct readers {
    struct tarn_guard guard;
    struct shown shown[SHOWN];
    struct tarn_hazard_page *page;
    const struct tarn_pool_memory *pool;
    _Atomic bool stop;
    _Atomic uint64_t read, stale, wrong;
};

#define WORDS 128 /* words of an object: each is its generation */

static void check_words(struct readers *r, const uint64_t *words, uint64_t gen)
{
    for (int i = 0; i < WORDS; i++) {
        if (words[i] != gen)
            atomic_fetch_add(&r->wrong, 1);
    }
    atomic_fetch_add(&r->read, 1);
}

/* False: there is none, or it is being written. */
static bool is_shown(struct shown *d, uint64_t *gen_p, uint64_t *where_p)
{
    uint64_t shows = atomic_load(&d->shows);
    *gen_p = atomic_load(&d->gen);
    *where_p = atomic_load(&d->slot_offset);
    return shows && shows % 2 == 0 && atomic_load(&d->shows) == shows;
}

/* Like TCP: the node pins. */
static void *read_pinned(void *arg)
{
    struct readers *r = arg;
    for (uint32_t i = 0; !atomic_load(&r->stop); i++) {
        struct shown *d = &r->shown[i % SHOWN];
        uint64_t gen, where;
        void *addr;
        if (!is_shown(d, &gen, &where))
            continue;
        if (r->guard.pin_read(r->guard.arg, 0, (uint32_t)(where >> 32), gen, (uint32_t)where, WORDS * 8,
                              &addr) != 0) {
            atomic_fetch_add(&r->stale, 1);
            continue;
        }
        check_words(r, addr, gen);
        r->guard.unpin(r->guard.arg, 0, (uint32_t)(where >> 32), gen);
    }
    return NULL;
}

/* Like a view: announce, then check the generation. */
static void *read_viewed(void *arg)
{
    struct readers *r = arg;
    atomic_store(&r->page->used, 1);
    for (uint32_t i = 0; !atomic_load(&r->stop); i++) {
        struct shown *d = &r->shown[i % SHOWN];
        uint64_t gen, where;
        if (!is_shown(d, &gen, &where))
            continue;
        atomic_store(&r->page->entry[0], (where >> 32) + 1);
        if (atomic_load(&r->pool->gen[where >> 32]) == gen)
            check_words(r, (const uint64_t *)((const char *)r->pool->base + (uint32_t)where), gen);
        atomic_store(&r->page->entry[0], 0);
    }
    return NULL;
}

static void write_object(struct readers *r, const struct tarn_grant *g)
{
    void *addr;
    assert_int_equal(
        r->guard.pin_write(r->guard.arg, SESSION, 0, g->slot, g->gen, g->offset, WORDS * 8, &addr), 0);
    for (int i = 0; i < WORDS; i++)
        ((uint64_t *)addr)[i] = g->gen + 1;
    r->guard.unpin(r->guard.arg, 0, g->slot, g->gen);
}

static void show(struct shown *d, const struct tarn_grant *g)
{
    atomic_fetch_add(&d->shows, 1);
    atomic_store(&d->slot_offset, (uint64_t)g->slot << 32 | g->offset);
    atomic_store(&d->gen, g->gen + 1);
    atomic_fetch_add(&d->shows, 1);
}

/* Readers pin and view objects while the control thread replaces and evicts them. They never see another
 * object's bytes. */
static void test_readers_against_eviction(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, (SHOWN / 2 + 8) * WORDS * 8, 0);
    struct readers *r = calloc(1, sizeof(*r));
    r->page = calloc(1, sizeof(*r->page));
    r->guard = tarn_store_guard(s);
    uint32_t n, puts = 0, full = 0;
    r->pool = tarn_store_pools(s, &n);
    assert_int_equal(tarn_store_hazard_add(s, r->page), 0);
    pthread_t threads[READERS];
    for (int i = 0; i < READERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, i == 0 ? read_viewed : read_pinned, r), 0);
    uint64_t give_up = tarn_deadline(60000);
    while ((puts < 50000 || atomic_load(&r->read) < 10000) && tarn_now_ns() < give_up) {
        char key[32];
        struct tarn_grant g;
        snprintf(key, sizeof(key), "k%u", puts % SHOWN);
        struct tarn_reserve want_it = want(key, WORDS * 8);
        if (tarn_store_reserve(s, &want_it, &g) != 0) {
            full++; /* all remaining objects are being read */
            continue;
        }
        write_object(r, &g);
        commit(s, &g, true);
        show(&r->shown[puts++ % SHOWN], &g);
        if (puts % 64 == 0)
            tarn_store_tick(s);
    }
    atomic_store(&r->stop, true);
    for (int i = 0; i < READERS; i++)
        pthread_join(threads[i], NULL);
    tarn_store_tick(s);
    print_message("%u puts, %u refused, %" PRIu64 " reads, %" PRIu64 " stale, %" PRIu64 " evicted\n", puts,
                  full, atomic_load(&r->read), atomic_load(&r->stale), stats(s).evicted);
    assert_int_equal(atomic_load(&r->wrong), 0);
    assert_true(puts >= 50000 && atomic_load(&r->read) >= 10000);
    assert_true(stats(s).evicted > 0);
    assert_int_equal(stats(s).limbo, 0);
    tarn_store_free(s);
    free(r->page);
    free(r);
}

/* --- many at once ------------------------------------------------------------------------------- */

struct watch {
    struct tarn_store *s;
    uint64_t n, limbo_max;
};

static void on_gone_watch(void *arg, const struct tarn_key *key, const struct tarn_location *l,
                          uint64_t bytes, enum tarn_left why)
{
    struct watch *w = arg;
    (void)key, (void)l, (void)bytes, (void)why;
    uint64_t limbo = stats(w->s).limbo;
    w->limbo_max = limbo > w->limbo_max ? limbo : w->limbo_max;
    w->n++;
}

/* The store scans the readers' announcements once for all victims, not once for each. */
static void test_victims_are_freed_together(void **state)
{
    (void)state;
    enum { N = 2048 };
    struct watch w = {0};
    struct tarn_store_options o = {.epoch = EPOCH, .node = "n1", .gone = on_gone_watch, .arg = &w};
    assert_int_equal(tarn_store_new(&o, &w.s), 0);
    add_pool(w.s, "p", N * 64, N);
    for (int i = 0; i < N; i++) {
        char key[16];
        snprintf(key, sizeof(key), "k%d", i);
        put(w.s, key, 64);
    }
    assert_int_equal(tarn_store_evict(w.s, 0, (N - 10) * 64), (N - 10) * 64);
    assert_int_equal(w.n, N - 10); /* no more than requested */
    assert_int_equal(w.limbo_max, N - 10);
    assert_int_equal(stats(w.s).limbo, 0);
    tarn_store_free(w.s);
}

/* Once a size found no room, the store does not search for it again in the same batch. Smaller items and
 * other batches are still tried. */
static void test_refusal_holds_for_its_batch(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_grant g;
    struct tarn_reserve pinned = want("pinned", 768 * KIB), r = want("a", 512 * KIB);
    pinned.pin = true;
    assert_int_equal(put_as(s, &pinned, &g), 0);
    uint64_t refused = 0;
    r.refused = &refused;
    assert_int_equal(tarn_store_reserve(s, &r, &g), TARN_E_FULL);
    assert_int_equal(refused, 512 * KIB);
    assert_true(tarn_store_unpin(s, &pinned.key));
    assert_int_equal(tarn_store_reserve(s, &r, &g), TARN_E_FULL);
    assert_int_equal(gone.n, 0);
    r.tensor = tarn_bytes(64 * KIB);
    assert_int_equal(tarn_store_reserve(s, &r, &g), 0);
    r.tensor = tarn_bytes(512 * KIB);
    refused = 0;
    assert_int_equal(tarn_store_reserve(s, &r, &g), 0);
    assert_int_equal(stats(s).refused, 2);
    tarn_store_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_store_takes_every_put),
        cmocka_unit_test(test_large_among_small),
        cmocka_unit_test(test_the_only_run_is_found),
        cmocka_unit_test(test_evicts_least_recently_used),
        cmocka_unit_test(test_slots_run_out),
        cmocka_unit_test(test_several_pools),
        cmocka_unit_test(test_a_full_pool_keeps_all),
        cmocka_unit_test(test_chains_end_at_pools),
        cmocka_unit_test(test_a_failed_put_continues_nothing),
        cmocka_unit_test(test_readers_against_eviction),
        cmocka_unit_test(test_victims_are_freed_together),
        cmocka_unit_test(test_refusal_holds_for_its_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
