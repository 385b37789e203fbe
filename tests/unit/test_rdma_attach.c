/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a client handles a node's answer to ATTACH rdma, and a node a client's offer: good ones, and malformed
 * ones of every kind, which must leave nothing behind. The verbs are the stand-in of fake_verbs.h.
 */
#include "tests/unit/fake_node.h"
#include "tests/unit/fake_verbs.h"

#include "base/text.h"
#include "transport/rdma/rdma_link.h"

#define END "1,2,0,1,00000000000000000000ffff7f000001,3,10,10"
#define HEAD "v1 7 2 " END " " END
#define POOL "0 8192 16 4096 7f0000000000 7f0000100000 7f0000200000"
#define KEYS " 1 2 3 4" /* gen, touch, two slices */

static struct fake_node *n;

static int start(void **state)
{
    (void)state;
    fake_reset();
    fake_add("a", 1);
    fake_add("b", 2);
    n = fake_start("rdma", false, 0);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    fake_stop(n);
    assert_true(fake_goes_to(NULL, 0));
    return 0;
}

/* connect()'s result with this answer. A refused answer must leave nothing behind. */
static int connects(const char *answer)
{
    struct tarn_link *l;
    int left = fake_left();
    int rc = fake_connect_with(n, answer, &l);
    if (rc == 0)
        n->ops->close(l);
    else
        assert_null(l);
    fake_detach(n, SESSION);
    assert_true(fake_goes_to(NULL, left));
    return rc;
}

static void an_answer_is_read(void **state)
{
    (void)state;
    struct tarn_link *l;
    if (fake_connect_with(n, HEAD " 2 " POOL KEYS KEYS " 1 5 6 7 8 9 a 1 2 3 b c d", &l))
        fail_msg("%s", tarn_last_error());
    assert_int_equal(l->id, 7);
    assert_int_equal(tarn_rdma_link(l)->pools[0].bytes, 8192);
    assert_int_equal(tarn_rdma_link(l)->pools[0].nslots, 16);
    assert_int_equal(tarn_rdma_link(l)->pools[0].slice_bytes, 4096);
    assert_int_equal(tarn_rdma_link(l)->pools[0].arena, 0x7f0000000000);
    assert_int_equal(tarn_rdma_link(l)->pools[0].gen, 0x7f0000100000);
    assert_int_equal(tarn_rdma_link(l)->pools[0].touch, 0x7f0000200000);
    assert_int_equal(tarn_rdma_link(l)->lanes[1].pools[0].slices[1], 4);
    assert_int_equal(tarn_rdma_link(l)->pools[1].slice_bytes, 7);
    assert_int_equal(tarn_rdma_link(l)->lanes[0].pools[1].slices[0], 3);
    assert_int_equal(tarn_rdma_link(l)->lanes[1].pools[1].gen, 0xb);
    assert_int_equal(tarn_rdma_link(l)->pools[2].nslots, 0);
    n->ops->close(l);
    /* The first pool is not served. */
    if (fake_connect_with(n, HEAD " 1 1 8192 16 4096 7f 7f 7f" KEYS KEYS, &l))
        fail_msg("%s", tarn_last_error());
    assert_int_equal(tarn_rdma_link(l)->pools[0].nslots, 0);
    assert_int_equal(tarn_rdma_link(l)->pools[1].nslots, 16);
    assert_int_equal(tarn_rdma_link(l)->lanes[1].pools[1].slices[1], 4);
    n->ops->close(l);
    /* The answer has one end, and keys for one rail only. */
    if (fake_connect_with(n, "v1 7 2 - " END " 1 " POOL KEYS, &l))
        fail_msg("%s", tarn_last_error());
    assert_false(tarn_rdma_link(l)->lanes[0].joined);
    assert_true(tarn_rdma_link(l)->lanes[1].joined);
    assert_int_equal(tarn_rdma_link(l)->lanes[1].pools[0].slices[1], 4);
    n->ops->close(l);
}

static void malformed_answers_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int code;
    } bad[] = {
        {"", TARN_E_VERSION},
        {"v", TARN_E_VERSION},
        {"v2 7 2 " END " " END " 1 " POOL KEYS KEYS, TARN_E_VERSION},
        {"v10 7 2 " END " " END " 1 " POOL KEYS KEYS, TARN_E_VERSION},
        {"v1", TARN_E_PROTOCOL},
        {"v1 ", TARN_E_PROTOCOL},
        {"v1 x 2 " END " " END " 1 " POOL KEYS KEYS, TARN_E_PROTOCOL},
        {"v1 7 1 " END " 1 " POOL KEYS, TARN_E_PROTOCOL}, /* two were offered */
        {"v1 7 3 " END " " END " " END " 1 " POOL KEYS KEYS KEYS, TARN_E_PROTOCOL},
        {"v1 7 99 " END " " END " 1 " POOL KEYS KEYS, TARN_E_PROTOCOL},
        {"v1 7 -2 " END " " END " 1 " POOL KEYS KEYS, TARN_E_PROTOCOL},
        {"v1 7 2 - - 1 " POOL, TARN_E_PROTOCOL}, /* no rail is joined */
        {"v1 7 2 -- " END " 1 " POOL KEYS, TARN_E_PROTOCOL},
        {"v1 7 2 " END " 1,2,3 1 " POOL KEYS KEYS, TARN_E_PROTOCOL},
        {"v1 7 2 " END, TARN_E_PROTOCOL},
        {HEAD, TARN_E_PROTOCOL},
        {HEAD " 0", TARN_E_PROTOCOL},
        {HEAD " 65 " POOL KEYS KEYS, TARN_E_PROTOCOL},
        {HEAD " 18446744073709551617 " POOL KEYS KEYS, TARN_E_PROTOCOL},
        {HEAD " 2 " POOL KEYS KEYS, TARN_E_PROTOCOL},                    /* the second is missing */
        {HEAD " 2 " POOL KEYS KEYS " " POOL KEYS KEYS, TARN_E_PROTOCOL}, /* the same pool twice */
        {HEAD " 1 64 8192 16 4096 7f 7f 7f" KEYS KEYS, TARN_E_PROTOCOL}, /* no node has so many pools */
        {HEAD " 1 0 8192 16 0 7f 7f 7f" KEYS KEYS, TARN_E_PROTOCOL},     /* slices of 0 bytes */
        {HEAD " 1 0 9223372036854775807 16 1 7f 7f 7f" KEYS KEYS, TARN_E_PROTOCOL}, /* too many slices */
        {HEAD " 1 0 99999999999999999999 16 4096 7f 7f 7f" KEYS KEYS, TARN_E_PROTOCOL},
        {HEAD " 1 0 8192 4294967296 4096 7f 7f 7f" KEYS KEYS, TARN_E_PROTOCOL},
        {HEAD " 1 0 8192 16 4096 7f 7f 10000000000000000" KEYS KEYS, TARN_E_PROTOCOL},
        {HEAD " 1 0 8192 16 4096 7f 7f z" KEYS KEYS, TARN_E_PROTOCOL},
        {HEAD " 1 " POOL " 1 2 100000000 4" KEYS, TARN_E_PROTOCOL}, /* a key of 33 bits */
        {HEAD " 1 " POOL KEYS " 1 2 3", TARN_E_PROTOCOL},           /* one key is missing */
        {HEAD " 1 " POOL KEYS, TARN_E_PROTOCOL},
        {HEAD " 2 0 8192 0 4096 7f 7f 7f" KEYS KEYS " 0 8192 0 4096 7f 7f 7f" KEYS KEYS, TARN_E_PROTOCOL},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int rc = connects(bad[i].text);
        if (rc != bad[i].code)
            fail_msg("%d where %d was expected: %s", rc, bad[i].code, bad[i].text);
        assert_non_null(strstr(tarn_last_error(), "rdma"));
    }
}

/* connect()'s result with this answer of a lender. The link stays in *l_p if it is 0. */
static int lender_says(const char *answer, bool write, struct tarn_link **l_p)
{
    char offer[TARN_OFFER_TEXT];
    struct tarn_peer p = fake_peer(answer, NULL, 0);
    p.local = n->local;
    p.windows = true;
    p.write = write;
    *l_p = NULL;
    assert_int_equal(n->ops->offer(&p, offer, l_p), 0);
    int rc;
    while ((rc = n->ops->connect(&p, l_p)) == TARN_INPROGRESS)
        assert_true(tarn_now_ns() < p.deadline_ns);
    return rc;
}

/* A lender names no pools, but, for writing, the ring for notifications with a key for each rail. */
static void a_lenders_answer_is_read(void **state)
{
    (void)state;
    static const char *const bad[] = {
        HEAD " 0",
        HEAD " 0 0", /* no ring */
        HEAD " 0 7f0000000000",
        HEAD " 0 7f0000000000 5", /* a key is missing */
        HEAD " 0 7f0000000000 5 100000000",
        HEAD " 0 10000000000000000 5 6",
        HEAD " 0 x 5 6",
    };
    struct tarn_link *l;
    if (lender_says(HEAD " 0 7f0000000000 5 a", true, &l))
        fail_msg("%s", tarn_last_error());
    assert_int_equal(tarn_rdma_link(l)->tell.ring, 0x7f0000000000);
    assert_int_equal(tarn_rdma_link(l)->lanes[0].ring_key, 5);
    assert_int_equal(tarn_rdma_link(l)->lanes[1].ring_key, 10);
    n->ops->close(l);
    if (lender_says("v1 7 2 - " END " 0 7f0000000000 a", true, &l))
        fail_msg("%s", tarn_last_error());
    assert_int_equal(tarn_rdma_link(l)->lanes[1].ring_key, 10);
    n->ops->close(l);
    if (lender_says(HEAD " 0 0", false, &l))
        fail_msg("%s", tarn_last_error());
    n->ops->close(l);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (lender_says(bad[i], true, &l) != TARN_E_PROTOCOL)
            fail_msg("accepted: %s", bad[i]);
        assert_null(l);
    }
}

/* Answers cut short anywhere but within the last key, or with one character changed, are refused or read as
 * they stand. */
static void damaged_answers_never_harm(void **state)
{
    (void)state;
    static const char good[] = HEAD " 1 " POOL KEYS KEYS, letters[] = "0123456789abcdef ,-vx";
    for (size_t bytes = 0; bytes < sizeof good - 1; bytes += 1 + bytes / 40) {
        char text[sizeof good];
        memcpy(text, good, bytes);
        text[bytes] = '\0';
        assert_true(connects(text) < 0);
    }
    uint64_t seed = tarn_random64();
    print_message("seed %llu\n", (unsigned long long)seed);
    srand48((long)seed);
    for (int i = 0; i < 120; i++) {
        char text[sizeof good];
        memcpy(text, good, sizeof good);
        for (int k = 0; k < 1 + i % 3; k++)
            text[(size_t)lrand48() % (sizeof good - 1)] = letters[(size_t)lrand48() % (sizeof letters - 1)];
        connects(text);
    }
}

/* --- the node's half ---------------------------------------------------------------------------- */

static int attaches_while(const char *offer, bool gone)
{
    struct tarn_attach *a = calloc(1, sizeof *a);
    int left = fake_left();
    assert_non_null(a);
    a->session = SESSION;
    a->offer = offer;
    a->gone = gone;
    int rc = fake_attach_here(n, a);
    free(a);
    fake_detach(n, SESSION);
    assert_true(fake_goes_to(NULL, left));
    return rc;
}

static int attaches(const char *offer)
{
    return attaches_while(offer, false);
}

static void malformed_offers_are_refused(void **state)
{
    (void)state;
    assert_int_equal(attaches("v1 " END), 0);
    assert_int_equal(attaches("v1 " END " " END " " END), 0); /* more ends than rails here */
    assert_int_equal(attaches(""), TARN_E_VERSION);
    assert_int_equal(attaches("v2 " END), TARN_E_VERSION);
    assert_int_equal(attaches("v1x " END), TARN_E_VERSION);
    assert_int_equal(attaches("v1"), TARN_E_PROTOCOL);
    assert_int_equal(attaches("v1 "), TARN_E_PROTOCOL);
    assert_int_equal(attaches("v1 " END " "), TARN_E_PROTOCOL);
    assert_int_equal(attaches("v1 " END " x"), TARN_E_PROTOCOL);
    assert_int_equal(attaches("v1 " END " " END " " END " " END " " END " " END " " END " " END " " END),
                     TARN_E_PROTOCOL);
    /* InfiniBand, but the node has Ethernet. */
    assert_int_equal(attaches("v1 1,2,5,0,fe800000000000000000000000000001,3,10,10"), TARN_E_NOT_REACHABLE);
    assert_non_null(strstr(tarn_last_error(), "none of the node's 2 rails reaches the client's"));
}

static void a_canceled_attach_joins_nothing(void **state)
{
    (void)state;
    assert_int_equal(attaches_while("v1 " END, true), TARN_E_CANCELED);
    assert_int_equal(attaches_while("v1 " END, false), 0);
}

#define END_B "1,2,0,1,00000000000000000000ffff7f000002,3,10,10"

static void a_node_refuses_unreachable_offers_at_once(void **state)
{
    (void)state;
    fake.device[0].port[1].down = true;
    assert_int_equal(attaches("v1 " END), TARN_E_NOT_REACHABLE);
    assert_non_null(strstr(tarn_last_error(), "the node's rail a:1 is down"));
    assert_int_equal(attaches("v1 " END " " END_B), 0); /* by the other rail */
    fake.device[1].port[1].down = true;
    assert_int_equal(attaches("v1 " END " " END_B), TARN_E_NOT_REACHABLE);
    fake.device[0].port[1].down = false;
    assert_int_equal(attaches("v1 " END " " END_B), 0);
}

static void a_client_offers_the_rails_that_are_up(void **state)
{
    (void)state;
    char offer[TARN_OFFER_TEXT];
    struct tarn_peer p = {.node = "n", .local = n->local};
    int left = fake_left();
    for (int down = 0; down < 4; down++) {
        struct tarn_link *l = NULL;
        for (int i = 0; i < 2; i++)
            fake.device[i].port[1].down = down >> i & 1;
        int rc = n->ops->offer(&p, offer, &l);
        assert_int_equal(rc, down == 3 ? TARN_E_NOT_REACHABLE : 0);
        assert_int_equal(l ? tarn_rdma_link(l)->nlanes : 0, down == 0 ? 2 : down == 3 ? 0 : 1);
        if (l)
            n->ops->close(l);
        assert_true(fake_goes_to(NULL, left));
    }
}

/* The slice size of a node with this configured size. */
static unsigned long long slices_of(uint64_t configured)
{
    struct tarn_serve serve = {.pools = &n->pool, .npools = 1, .rdma_region_bytes = configured};
    struct tarn_node_half *own = n->half;
    struct tarn_attach *a = calloc(1, sizeof *a);
    unsigned long long bytes = 0;
    int left = fake_left();
    assert_non_null(a);
    assert_int_equal(n->node_ops->serve(&serve, &n->half), 0);
    a->offer = "v1 " END;
    assert_int_equal(fake_attach_here(n, a), 0);
    assert_int_equal(sscanf(a->text, "v1 %*x 1 %*s 1 0 %*u %*u %llu", &bytes), 1);
    n->node_ops->stop(n->half);
    n->half = own;
    free(a);
    assert_true(fake_goes_to(NULL, left));
    return bytes;
}

static void pools_are_registered_in_regions_of_the_size_configured(void **state)
{
    (void)state;
    assert_int_equal(slices_of(0), 3584ull << 20);
    assert_int_equal(slices_of(1ull << 40), 1ull << 40);
    assert_int_equal(slices_of(1 << 20), 1 << 20);
    assert_int_equal(slices_of((1 << 20) + 4095), 1 << 20); /* rounded down to whole pages */
    fake.max_region = (4 << 20) + 1;
    assert_int_equal(slices_of(0), 4 << 20);
    assert_int_equal(slices_of(1 << 20), 1 << 20);
    fake.max_region = UINT64_MAX;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_answer_is_read, start, stop),
        cmocka_unit_test_setup_teardown(a_lenders_answer_is_read, start, stop),
        cmocka_unit_test_setup_teardown(malformed_answers_are_refused, start, stop),
        cmocka_unit_test_setup_teardown(damaged_answers_never_harm, start, stop),
        cmocka_unit_test_setup_teardown(malformed_offers_are_refused, start, stop),
        cmocka_unit_test_setup_teardown(a_canceled_attach_joins_nothing, start, stop),
        cmocka_unit_test_setup_teardown(a_node_refuses_unreachable_offers_at_once, start, stop),
        cmocka_unit_test_setup_teardown(a_client_offers_the_rails_that_are_up, start, stop),
        cmocka_unit_test_setup_teardown(pools_are_registered_in_regions_of_the_size_configured, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
