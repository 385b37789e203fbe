/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eviction policies by themselves, on a played clock: what goes first, what must stay, and how many hits are
 * had from workloads of different kinds.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/text.h"
#include "server/store/evict.h"
#include "server/store/reuse.h"
#include "tests/unit/store_fixture.h"

#define NONE UINT32_MAX
#define SLOTS 4096

/* --- a played pool ------------------------------------------------------------------------------ */

static _Atomic uint32_t touch[SLOTS];
static bool busy[SLOTS];
static uint32_t now;

static bool idle(void *arg, uint32_t slot)
{
    (void)arg;
    return !busy[slot];
}

static struct tarn_evict *new_evict(enum tarn_eviction policy)
{
    struct tarn_evict_view view = {touch, SLOTS, idle, NULL};
    struct tarn_evict *e = NULL;
    memset(touch, 0, sizeof(touch));
    memset(busy, 0, sizeof(busy));
    now = 1000;
    assert_int_equal(tarn_evict_new(&view, policy, &e), 0);
    return e;
}

static void use(uint32_t slot)
{
    atomic_store(&touch[slot], now);
}

static void add_after(struct tarn_evict *e, uint32_t slot, uint32_t after)
{
    struct tarn_evict_hold hold = {0};
    if (after != NONE)
        hold = tarn_evict_hold(e, after);
    tarn_evict_reserve(e, slot, hold);
    use(slot);
    tarn_evict_add(e, slot, slot * 2654435761u, false, now);
}

static void add(struct tarn_evict *e, uint32_t slot)
{
    add_after(e, slot, NONE);
}

static uint32_t evict_one(struct tarn_evict *e)
{
    uint32_t slot = tarn_evict_victim(e, now, 0);
    if (slot != NONE)
        tarn_evict_remove(e, slot, true, now);
    return slot;
}

static const enum tarn_eviction both[] = {TARN_EVICT_LRU, TARN_EVICT_ADAPTIVE};

/* --- the order ---------------------------------------------------------------------------------- */

/* Before anything is known of reuse, both policies take the least recently used. */
static void test_the_oldest_goes_first(void **state)
{
    (void)state;
    for (int p = 0; p < 2; p++) {
        struct tarn_evict *e = new_evict(both[p]);
        for (uint32_t i = 0; i < 10; i++) {
            add(e, i);
            now += 1000 << i; /* ages that differ by factors */
        }
        use(3); /* as a reader does: nobody tells */
        now += 10;
        uint32_t expected[] = {0, 1, 2, 4, 5, 6, 7, 8, 9, 3};
        for (int i = 0; i < 10; i++)
            assert_int_equal(evict_one(e), expected[i]);
        assert_int_equal(evict_one(e), NONE);
        tarn_evict_free(e);
    }
}

/* Of what was put in one tick, the end of the chain goes before its beginning. */
static void test_the_end_of_a_put_goes_first(void **state)
{
    (void)state;
    for (int p = 0; p < 2; p++) {
        struct tarn_evict *e = new_evict(both[p]);
        for (uint32_t i = 0; i < 5; i++)
            add(e, i);
        now += 100;
        for (uint32_t i = 5; i-- > 0;)
            assert_int_equal(evict_one(e), i);
        tarn_evict_free(e);
    }
}

static void test_busy_slots_are_passed_over(void **state)
{
    (void)state;
    for (int p = 0; p < 2; p++) {
        struct tarn_evict *e = new_evict(both[p]);
        for (uint32_t i = 0; i < 6; i++) {
            add(e, i);
            now += 1000 << i;
        }
        busy[0] = busy[2] = true;
        assert_int_equal(tarn_evict_victim(e, now, 0), 1);
        assert_int_equal(tarn_evict_victim(e, now, 1), 3);
        assert_int_equal(tarn_evict_victim(e, now, 3), 5);
        assert_int_equal(tarn_evict_victim(e, now, 4), NONE);
        for (uint32_t i = 0; i < 6; i++)
            busy[i] = true;
        assert_int_equal(tarn_evict_victim(e, now, 0), NONE);
        tarn_evict_free(e);
    }
}

static void test_pinned_slots_are_passed_over(void **state)
{
    (void)state;
    struct tarn_evict *e = new_evict(TARN_EVICT_ADAPTIVE);
    add(e, 0);
    now += 1000;
    add(e, 1);
    now += 1000;
    tarn_evict_pin(e, 0, true, now);
    assert_int_equal(tarn_evict_victim(e, now, 0), 1);
    assert_int_equal(tarn_evict_victim(e, now, 1), NONE);
    tarn_evict_pin(e, 0, false, now);
    assert_int_equal(tarn_evict_victim(e, now, 0), 0);
    tarn_evict_reserve(e, 2, (struct tarn_evict_hold){0});
    use(2);
    tarn_evict_add(e, 2, 7, true, now);
    assert_int_equal(tarn_evict_victim(e, now, 2), NONE);
    tarn_evict_remove(e, 2, false, now);
    tarn_evict_remove(e, 0, false, now);
    assert_int_equal(evict_one(e), 1);
    assert_int_equal(evict_one(e), NONE);
    tarn_evict_free(e);
}

/* A client may write what it likes to touch. It keeps its object no longer than a use would. */
static void test_a_touch_of_the_future_is_none(void **state)
{
    (void)state;
    for (int p = 0; p < 2; p++) {
        struct tarn_evict *e = new_evict(both[p]);
        add(e, 0);
        add(e, 1);
        atomic_store(&touch[0], now + 1000000);
        now += 10;
        tarn_evict_tick(e, now);
        now += 100000;
        use(1);
        now += 10;
        tarn_evict_tick(e, now);
        assert_int_equal(evict_one(e), 0);
        tarn_evict_free(e);
    }
}

/* Ages are right after the clock has gone round. */
static void test_the_clock_goes_round(void **state)
{
    (void)state;
    for (int p = 0; p < 2; p++) {
        struct tarn_evict *e = new_evict(both[p]);
        now = UINT32_MAX - 1000;
        for (uint32_t i = 0; i < 4; i++) {
            add(e, i);
            now += 600 << i;
        }
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(evict_one(e), i);
        tarn_evict_free(e);
    }
}

/* --- what continues what ------------------------------------------------------------------------ */

static void test_an_end_goes_before_what_it_continues(void **state)
{
    (void)state;
    for (int p = 0; p < 2; p++) {
        struct tarn_evict *e = new_evict(both[p]);
        add(e, 0);
        now += 100000;
        add_after(e, 1, 0);
        now += 1000;
        add_after(e, 2, 0);
        add(e, 3);
        now += 100000;
        use(1);
        use(2);
        now += 10;
        /* 0 is by far the oldest, but 1 and 2 need it. */
        for (uint32_t i = 1; i < 4; i++)
            assert_true(tarn_evict_rank(e, 0, now) > tarn_evict_rank(e, i, now));
        assert_true(tarn_evict_rank(e, 3, now) < tarn_evict_rank(e, 1, now));
        assert_int_equal(evict_one(e), 3);
        assert_int_equal(tarn_evict_victim(e, now, 2), NONE);
        uint32_t first = evict_one(e), second = evict_one(e);
        assert_int_equal(first + second, 3);
        assert_int_equal(evict_one(e), 0);
        tarn_evict_free(e);
    }
}

/* From the reservation on: else a put that is under way would push its own beginning out. */
static void test_what_is_being_continued_stays(void **state)
{
    (void)state;
    struct tarn_evict *e = new_evict(TARN_EVICT_ADAPTIVE);
    add(e, 0);
    now += 1000;
    struct tarn_evict_hold hold = tarn_evict_hold(e, 0);
    assert_int_equal(tarn_evict_victim(e, now, 0), NONE);
    tarn_evict_let_go(e, hold, now);
    assert_int_equal(tarn_evict_victim(e, now, 0), 0);
    tarn_evict_reserve(e, 1, tarn_evict_hold(e, 0));
    tarn_evict_reserve(e, 2, tarn_evict_hold(e, 1)); /* continues a reservation */
    assert_int_equal(tarn_evict_victim(e, now, 0), NONE);
    use(1);
    tarn_evict_add(e, 1, 11, false, now);
    assert_int_equal(tarn_evict_victim(e, now, 0), NONE);
    tarn_evict_remove(e, 2, false, now); /* the put was aborted */
    assert_int_equal(evict_one(e), 1);
    assert_int_equal(evict_one(e), 0);
    tarn_evict_free(e);
}

/* What is continued may be removed, and its slot filled anew: that one has no followers. */
static void test_a_slot_filled_anew_is_not_continued(void **state)
{
    (void)state;
    struct tarn_evict *e = new_evict(TARN_EVICT_ADAPTIVE);
    add(e, 0);
    add_after(e, 1, 0);
    struct tarn_evict_hold hold = tarn_evict_hold(e, 0);
    tarn_evict_remove(e, 0, false, now);
    tarn_evict_let_go(e, hold, now);
    now += 1000;
    add(e, 0);
    now += 1000;
    tarn_evict_remove(e, 1, true, now);
    add_after(e, 2, 0);
    assert_int_equal(tarn_evict_victim(e, now, 0), 2);
    assert_int_equal(tarn_evict_victim(e, now, 1), NONE);
    assert_int_equal(evict_one(e), 2);
    assert_int_equal(evict_one(e), 0);
    tarn_evict_free(e);
}

/* An object that is there already may be found to continue another. No circle comes of it: that would stay.
 */
static void test_what_is_there_joins_a_chain(void **state)
{
    (void)state;
    struct tarn_evict *e = new_evict(TARN_EVICT_ADAPTIVE);
    for (uint32_t i = 0; i < 3; i++) {
        add(e, i);
        now += 1000 << i;
    }
    tarn_evict_continue(e, 1, tarn_evict_hold(e, 0), now);
    tarn_evict_continue(e, 1, tarn_evict_hold(e, 2), now); /* it continues one already */
    assert_int_equal(tarn_evict_victim(e, now, 0), 1);
    assert_int_equal(tarn_evict_victim(e, now, 1), 2);
    tarn_evict_continue(e, 2, tarn_evict_hold(e, 1), now);
    tarn_evict_continue(e, 0, tarn_evict_hold(e, 2), now); /* a circle */
    tarn_evict_continue(e, 2, tarn_evict_hold(e, 2), now); /* the smallest */
    for (uint32_t i = 3; i-- > 0;)
        assert_int_equal(evict_one(e), i);
    tarn_evict_free(e);
}

/* --- reuse -------------------------------------------------------------------------------------- */

/* A put of a key that was evicted counts as a use that eviction has prevented. */
static void test_uses_after_eviction_count(void **state)
{
    (void)state;
    enum { RETURN = 2, STAY_AWAY = 0, EACH = 500 };
    struct tarn_reuse *r = NULL;
    memset(touch, 0, sizeof(touch));
    assert_int_equal(tarn_reuse_new(touch, &r), 0);
    for (uint32_t i = 0; i < 2 * EACH; i++) {
        atomic_store(&touch[i], 1000);
        tarn_reuse_put(r, i, i, i < EACH ? RETURN : STAY_AWAY, 1000);
    }
    uint32_t b = tarn_age_bucket(600);
    tarn_reuse_learn(r, 1100, 100);
    assert_true(tarn_reuse_worth(r, RETURN, b) < 1.01 * tarn_reuse_worth(r, STAY_AWAY, b));
    for (uint32_t i = 0; i < 2 * EACH; i++)
        tarn_reuse_left(r, i, true);
    for (uint32_t i = 0; i < EACH; i++)
        tarn_reuse_put(r, i, i, RETURN, 2000);
    tarn_reuse_learn(r, 2000, 1000);
    assert_true(tarn_reuse_worth(r, RETURN, b) > 2 * tarn_reuse_worth(r, STAY_AWAY, b));
    tarn_reuse_free(r);
}

/* Objects that were used more are worth no less, even if just those are not used again. */
static void test_more_uses_are_worth_no_less(void **state)
{
    (void)state;
    struct tarn_reuse *r = NULL;
    memset(touch, 0, sizeof(touch));
    assert_int_equal(tarn_reuse_new(touch, &r), 0);
    for (uint32_t i = 0; i < 1000; i++)
        tarn_reuse_put(r, i, i, i < 500 ? 0 : 2, 0);
    for (uint32_t at = 10; at < 1000; at += 10) {
        for (uint32_t i = 0; i < 500; i++)
            atomic_store(&touch[i], at);
        tarn_reuse_learn(r, at, 1000);
    }
    for (uint32_t b = 0; b < TARN_AGES; b++)
        assert_true(tarn_reuse_worth(r, 2, b) >= tarn_reuse_worth(r, 0, b));
    tarn_reuse_free(r);
}

/* Uses of long ago weigh less than those of late. */
static void test_old_uses_are_forgotten(void **state)
{
    (void)state;
    struct tarn_reuse *r = NULL;
    uint32_t at = 0;
    memset(touch, 0, sizeof(touch));
    assert_int_equal(tarn_reuse_new(touch, &r), 0);
    for (uint32_t i = 0; i < 100; i++)
        tarn_reuse_put(r, i, i, 0, at);
    double before = 0;
    for (uint32_t round = 0; round < 2000; round++) {
        /* used every 10 ticks; then, in the last half, every 1000 */
        at += round < 1000 ? 10 : 1000;
        for (uint32_t i = 0; i < 100; i++)
            atomic_store(&touch[i], at);
        tarn_reuse_learn(r, at, 100000);
        before = round == 999 ? tarn_reuse_worth(r, 0, tarn_age_bucket(8)) : before;
    }
    double after = tarn_reuse_worth(r, 0, tarn_age_bucket(8));
    print_message("worth %f, then %f\n", before, after);
    assert_true(after < before / 4);
    tarn_reuse_free(r);
}

/* --- hits --------------------------------------------------------------------------------------- */

#define CACHE 1000
#define KEYS 100000

struct played {
    struct tarn_evict *e;
    uint32_t slot_of[KEYS], key_of[CACHE], n;
    uint64_t gets, hits;
};

static struct played *play_new(enum tarn_eviction policy)
{
    struct played *w = calloc(1, sizeof(*w));
    assert_non_null(w);
    memset(w->slot_of, 0xff, sizeof(w->slot_of));
    w->e = new_evict(policy);
    return w;
}

/* Gets a key, and puts it when it is not there. */
static void ask(struct played *w, uint32_t key)
{
    now += 3;
    w->gets++;
    if (w->slot_of[key] != NONE) {
        w->hits++;
        use(w->slot_of[key]);
        return;
    }
    uint32_t slot = w->n < CACHE ? w->n++ : evict_one(w->e);
    assert_int_not_equal(slot, NONE);
    if (w->gets > CACHE && w->slot_of[w->key_of[slot]] == slot)
        w->slot_of[w->key_of[slot]] = NONE;
    w->slot_of[key] = slot;
    w->key_of[slot] = key;
    tarn_evict_reserve(w->e, slot, (struct tarn_evict_hold){0});
    use(slot);
    tarn_evict_add(w->e, slot, (uint32_t)tarn_hash(&key, sizeof(key), 1), false, now);
}

static uint64_t seed;

static double random01(void)
{
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(seed >> 11) * 0x1p-53;
}

static uint32_t loop_key(uint32_t i)
{
    return i % 2000;
}

/* Zipf's law, about: the key's rank by a power of a uniform number. */
static uint32_t zipf_key(uint32_t i)
{
    (void)i;
    return (uint32_t)(KEYS * pow(random01(), 4));
}

/* What was used lately is used again; nothing else is. */
static uint32_t recent_key(uint32_t i)
{
    double back = random01() < 0.6 ? -log(1 - random01()) * 300 : 0;
    return back < i ? (i - (uint32_t)back) % KEYS : i % KEYS;
}

/* Popularity that changes every 20 000 gets. */
static uint32_t shifting_key(uint32_t i)
{
    return (i / 20000 * 7919 + (uint32_t)(3000 * pow(random01(), 3))) % KEYS;
}

static double hit_ratio(enum tarn_eviction policy, uint32_t (*key)(uint32_t), uint64_t from)
{
    struct played *w = play_new(policy);
    seed = from;
    for (uint32_t i = 0; i < 200000; i++)
        ask(w, key(i));
    double ratio = (double)w->hits / (double)w->gets;
    tarn_evict_free(w->e);
    free(w);
    return ratio;
}

static void test_hits(void **state)
{
    static const struct {
        const char *name;
        uint32_t (*key)(uint32_t);
        double gain; /* of ADAPTIVE over LRU, at least */
    } kinds[] = {{"a loop of twice the pool", loop_key, 0.4},
                 {"zipf", zipf_key, 0.02},
                 {"recency alone", recent_key, -0.01},
                 {"shifting popularity", shifting_key, -0.01}};
    (void)state;
    uint64_t from = tarn_random64();
    print_message("seed %" PRIu64 "\n", from);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        double lru = hit_ratio(TARN_EVICT_LRU, kinds[i].key, from),
               adaptive = hit_ratio(TARN_EVICT_ADAPTIVE, kinds[i].key, from);
        print_message("%s: lru %.4f, adaptive %.4f\n", kinds[i].name, lru, adaptive);
        assert_true(adaptive >= lru + kinds[i].gain);
    }
}

/* --- the least recently used, exactly ----------------------------------------------------------- */

/* An exact LRU beside it. */
static void test_lru_has_the_hits_of_lru(void **state)
{
    (void)state;
    static uint32_t last[KEYS], order[400000], head, there;
    static bool here[KEYS];
    uint64_t hits = 0, from = tarn_random64();
    print_message("seed %" PRIu64 "\n", from);
    double ours = hit_ratio(TARN_EVICT_LRU, zipf_key, from);
    seed = from;
    head = there = 0;
    memset(last, 0, sizeof(last));
    memset(here, 0, sizeof(here));
    for (uint32_t i = 0; i < 200000; i++) {
        uint32_t key = zipf_key(i);
        hits += here[key];
        there += !here[key];
        here[key] = true;
        order[i] = key;
        last[key] = i;
        while (there > CACHE) {
            uint32_t k = order[head];
            if (here[k] && last[k] == head) {
                here[k] = false;
                there--;
            }
            head++;
        }
    }
    double exact = (double)hits / 200000;
    print_message("hits %.4f, of an exact LRU %.4f\n", ours, exact);
    assert_true(fabs(ours - exact) < 0.01);
}

static void test_names(void **state)
{
    (void)state;
    enum tarn_eviction policy = TARN_EVICT_LRU;
    assert_int_equal(tarn_eviction_parse("adaptive", &policy), 0);
    assert_int_equal(policy, TARN_EVICT_ADAPTIVE);
    assert_int_equal(tarn_eviction_parse("lru", &policy), 0);
    assert_int_equal(policy, TARN_EVICT_LRU);
    assert_int_equal(tarn_eviction_parse("fifo", &policy), TARN_E_CONFIG);
    assert_int_equal(tarn_eviction_parse("", &policy), TARN_E_CONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_oldest_goes_first),
        cmocka_unit_test(test_the_end_of_a_put_goes_first),
        cmocka_unit_test(test_busy_slots_are_passed_over),
        cmocka_unit_test(test_pinned_slots_are_passed_over),
        cmocka_unit_test(test_a_touch_of_the_future_is_none),
        cmocka_unit_test(test_the_clock_goes_round),
        cmocka_unit_test(test_an_end_goes_before_what_it_continues),
        cmocka_unit_test(test_what_is_being_continued_stays),
        cmocka_unit_test(test_a_slot_filled_anew_is_not_continued),
        cmocka_unit_test(test_what_is_there_joins_a_chain),
        cmocka_unit_test(test_uses_after_eviction_count),
        cmocka_unit_test(test_more_uses_are_worth_no_less),
        cmocka_unit_test(test_old_uses_are_forgotten),
        cmocka_unit_test(test_hits),
        cmocka_unit_test(test_lru_has_the_hits_of_lru),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests_name("eviction", tests, NULL, NULL);
}
