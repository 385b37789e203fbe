/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placement: keys spread by weight, they stay in place when nodes come and go, and copies avoid each other.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "client/place.h"

#define KEYS 40000
#define NODES 7

/* Node i is named "node-i", has the given weight, and is on host i / per_host. */
static void make(struct tarn_candidate *cand, uint32_t n, const double *weights, uint32_t per_host)
{
    for (uint32_t i = 0; i < n; i++) {
        char id[32];
        snprintf(id, sizeof id, "node-%u", i);
        cand[i] = (struct tarn_candidate){.weight = weights ? weights[i] : 1e9,
                                          .seed = tarn_hash(id, strlen(id), 0),
                                          .host = i / per_host + 1};
    }
}

static uint32_t place(const struct tarn_candidate *cand, uint32_t n, uint32_t key)
{
    char text[32];
    uint32_t out;
    struct tarn_key k = {text, (size_t)snprintf(text, sizeof text, "block:%u", key)};

    assert_int_equal(tarn_place_pick(&k, cand, n, 1, &out), 1);
    return out;
}

static void keys_spread_by_weight(void **state)
{
    static const double weights[NODES] = {1e9, 1e9, 2e9, 4e9, 1e9, 0.5e9, 0.5e9};
    struct tarn_candidate cand[NODES];
    uint32_t count[NODES] = {0};
    double total = 0;

    (void)state;
    make(cand, NODES, weights, 1);
    for (uint32_t i = 0; i < NODES; i++)
        total += weights[i];
    for (uint32_t k = 0; k < KEYS; k++)
        count[place(cand, NODES, k)]++;
    for (uint32_t i = 0; i < NODES; i++) {
        double want = KEYS * weights[i] / total;
        /* five standard deviations of a binomial count */
        if (fabs(count[i] - want) > 5 * sqrt(want))
            fail_msg("node %u has %u keys, wanted about %.0f", i, count[i], want);
    }
}

static void a_new_node_takes_only_the_keys_it_wins(void **state)
{
    struct tarn_candidate cand[NODES];
    uint32_t moved = 0;

    (void)state;
    make(cand, NODES, NULL, 1);
    for (uint32_t k = 0; k < KEYS; k++) {
        uint32_t before = place(cand, NODES - 1, k), after = place(cand, NODES, k);
        if (before == after)
            continue;
        assert_int_equal(after, NODES - 1);
        moved++;
    }
    assert_in_range(moved, KEYS / NODES * 9 / 10, KEYS / NODES * 11 / 10);
}

static void a_node_without_weight_loses_only_its_own_keys(void **state)
{
    struct tarn_candidate cand[NODES];

    (void)state;
    make(cand, NODES, NULL, 1);
    for (uint32_t k = 0; k < KEYS; k++) {
        uint32_t before = place(cand, NODES, k);
        cand[3].weight = 0;
        uint32_t after = place(cand, NODES, k);
        cand[3].weight = 1e9;
        assert_int_not_equal(after, 3);
        if (before != 3)
            assert_int_equal(after, before);
    }
}

static void order_of_candidates_does_not_matter(void **state)
{
    struct tarn_candidate cand[NODES], turned[NODES];

    (void)state;
    make(cand, NODES, NULL, 1);
    for (uint32_t i = 0; i < NODES; i++)
        turned[i] = cand[NODES - 1 - i];
    for (uint32_t k = 0; k < 1000; k++)
        assert_int_equal(place(cand, NODES, k), NODES - 1 - place(turned, NODES, k));
}

static void copies_are_on_distinct_hosts_first(void **state)
{
    struct tarn_candidate cand[6];
    struct tarn_key k;
    char text[32];

    (void)state;
    make(cand, 6, NULL, 2); /* three hosts of two nodes */
    for (uint32_t i = 0; i < 1000; i++) {
        uint32_t out[6], seen = 0, hosts = 0;
        k = (struct tarn_key){text, (size_t)snprintf(text, sizeof text, "k%u", i)};
        assert_int_equal(tarn_place_pick(&k, cand, 6, 4, out), 4);
        for (uint32_t c = 0; c < 4; c++) {
            assert_false(seen >> out[c] & 1);
            seen |= 1u << out[c];
            if (c < 3)
                hosts |= 1u << cand[out[c]].host;
        }
        assert_int_equal(hosts, 0xe); /* the first three: hosts 1, 2 and 3 */
    }
}

static void no_more_copies_than_nodes(void **state)
{
    struct tarn_candidate cand[3];
    struct tarn_key k = {"key", 3};
    uint32_t out[8];

    (void)state;
    make(cand, 3, NULL, 1);
    cand[1].weight = 0;
    assert_int_equal(tarn_place_pick(&k, cand, 3, 8, out), 2);
    assert_int_equal(tarn_place_pick(&k, cand, 0, 1, out), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_spread_by_weight),
        cmocka_unit_test(a_new_node_takes_only_the_keys_it_wins),
        cmocka_unit_test(a_node_without_weight_loses_only_its_own_keys),
        cmocka_unit_test(order_of_candidates_does_not_matter),
        cmocka_unit_test(copies_are_on_distinct_hosts_first),
        cmocka_unit_test(no_more_copies_than_nodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
