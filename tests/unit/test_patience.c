/* SPDX-License-Identifier: Apache-2.0 */
/* How long a peer may be silent: smoothed round trips with times set by hand, and the steps of a call. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "client/patience.h"

#define MS TARN_NS_PER_MS

/* RFC 6298, section 2, computed by hand. */
static void round_trips_are_smoothed(void **state)
{
    struct tarn_patience p = {0};
    (void)state;

    assert_int_equal(tarn_patience_ns(&p), 0);
    tarn_patience_learn(&p, 200 * MS);
    assert_int_equal(tarn_patience_rtt(&p), 200 * MS);
    assert_int_equal(tarn_patience_ns(&p), 600 * MS); /* 200 + 4 * 100 */
    tarn_patience_learn(&p, 200 * MS);
    assert_int_equal(tarn_patience_ns(&p), 500 * MS); /* 200 + 4 * 75 */
    tarn_patience_learn(&p, 360 * MS);
    assert_int_equal(tarn_patience_rtt(&p), 220 * MS);        /* 7/8 * 200 + 1/8 * 360 */
    assert_int_equal(tarn_patience_ns(&p), (220 + 385) * MS); /* rttvar: 3/4 * 75 + 1/4 * 160 = 96.25 */
}

static void a_steady_round_trip_leaves_the_least_patience(void **state)
{
    static const uint64_t trips[] = {50000, 10 * MS, 100 * MS, 300 * MS};
    (void)state;

    for (int i = 0; i < 4; i++) {
        struct tarn_patience p = {0};
        for (int k = 0; k < 50; k++)
            tarn_patience_learn(&p, trips[i]);
        assert_int_equal(tarn_patience_ns(&p), trips[i] + TARN_PATIENCE_NS);
    }
}

/* Growing round trips are followed: none of them counts as silence. */
static void a_route_that_becomes_longer_is_followed(void **state)
{
    struct tarn_patience p = {0};
    (void)state;

    tarn_patience_learn(&p, MS);
    for (uint64_t ms = 10; ms <= 1000; ms += ms / 2) {
        assert_true(tarn_patience_ns(&p) > ms * MS);
        tarn_patience_learn(&p, ms * MS);
    }
}

static void a_peer_that_stood_still_does_not_make_patience_endless(void **state)
{
    struct tarn_patience p = {0};
    (void)state;

    tarn_patience_learn(&p, 3600 * TARN_NS_PER_S);
    assert_int_equal(tarn_patience_ns(&p), TARN_PATIENCE_MOST_NS);
    tarn_patience_learn(&p, 0);
    assert_int_equal(tarn_patience_ns(&p), TARN_PATIENCE_MOST_NS);
    for (int k = 0; k < 100; k++)
        tarn_patience_learn(&p, 0);
    assert_int_equal(tarn_patience_ns(&p) / MS, TARN_PATIENCE_NS / MS);
}

static void the_first_patience_comes_from_other_nodes(void **state)
{
    (void)state;

    assert_int_equal(tarn_patience_first(0), TARN_NS_PER_S); /* no node was measured */
    assert_int_equal(tarn_patience_first(MS), 502 * MS);
    assert_int_equal(tarn_patience_first(100 * MS), 700 * MS);
    assert_int_equal(tarn_patience_first(300 * MS), TARN_NS_PER_S);
    assert_true(tarn_patience_first(1) > 300 * MS); /* a distant node among near ones answers in time */
}

static void each_step_has_its_own_patience(void **state)
{
    uint64_t now = tarn_now_ns();
    struct tarn_steps s = {.deadline_ns = now + 3600 * TARN_NS_PER_S, .patience_ns = 250 * MS};
    (void)state;

    for (int i = 0; i < 3; i++) {
        uint64_t before = tarn_now_ns(), until = tarn_step(&s);
        assert_in_range(s.since_ns, before, tarn_now_ns());
        assert_int_equal(until, s.since_ns + 250 * MS);
    }
    s.patience_ns = UINT64_MAX;
    assert_int_equal(tarn_step(&s), s.deadline_ns);
    s.patience_ns = 250 * MS;
    s.deadline_ns = tarn_now_ns() + MS;
    assert_true(tarn_step(&s) <= s.deadline_ns);
    s.deadline_ns = 1; /* long past: the step ends at once */
    assert_true(tarn_step(&s) <= tarn_now_ns());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trips_are_smoothed),
        cmocka_unit_test(a_steady_round_trip_leaves_the_least_patience),
        cmocka_unit_test(a_route_that_becomes_longer_is_followed),
        cmocka_unit_test(a_peer_that_stood_still_does_not_make_patience_endless),
        cmocka_unit_test(the_first_patience_comes_from_other_nodes),
        cmocka_unit_test(each_step_has_its_own_patience),
    };
    return cmocka_run_group_tests_name("patience", tests, NULL, NULL);
}
