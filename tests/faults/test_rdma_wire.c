/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rdma over a wire, where transfers take time: rails that are pulled, cut or lossy; nodes that end in the
 * middle; more work than queues hold; memory in use. One machine with two rails: the client has the near
 * ends, the node the far ends. Control connections and Redis do not use the rails.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/node_client.h"
#include "tests/rdma.h"

#define TIMEOUT_MS 3000
/* For operations that only have to succeed: an emulated machine beside others may be slow. */
#define PATIENT_MS 20000
/* Mbit/s: 24 MiB take half a second. On much slower rails, an emulated device retransmits packets that are
 * only queued. */
#define SLOW "400"
#define BIG (24u * MIB)
#define MIDDLING (4u * MIB)

static const struct world_plan plan = {.nodes = 1,
                                       .args = {"--pool", "cpu0:bytes=64M", "--rdma-devices", "far0,far1"},
                                       .client = {.transports = "rdma", .timeout_ms = PATIENT_MS}};

static const struct world_plan one_rail = {.nodes = 1,
                                           .args = {"--pool", "cpu0:bytes=64M", "--rdma-devices", "far0"},
                                           .client = {.transports = "rdma", .timeout_ms = PATIENT_MS}};

static const struct world_plan two_transports = {
    .nodes = 1,
    .args = {"--pool", "cpu0:bytes=64M", "--rdma-devices", "far0,far1"},
    .client = {.transports = "rdma,tcp", .timeout_ms = PATIENT_MS}};

static int start(void **state)
{
    rdma_need(true);
    return world_start_client(state, &plan);
}

static int start_two_transports(void **state)
{
    rdma_need(true);
    return world_start_client(state, &two_transports);
}

static int start_one_rail(void **state)
{
    rdma_need(true);
    setenv("TARN_RDMA_DEVICES", "rxe0", 1);
    return world_start_client(state, &one_rail);
}

static void slow(struct world *w, int rails)
{
    for (int i = 0; i < rails; i++)
        rail(w->h, "limit", i, SLOW);
}

/* --- traffic while something happens ------------------------------------------------------------ */

static struct traffic getting, putting;

/* Gets big objects with prefix "g"; start_putting() replaces those with prefix "p". */
static void start_getting(struct world *w, uint32_t objects, size_t bytes, bool clean)
{
    getting = (struct traffic){.client = w->client,
                               .prefix = "g",
                               .objects = objects,
                               .bytes = bytes,
                               .timeout_ms = TIMEOUT_MS,
                               .clean = clean};
    for (uint32_t i = 0; i < objects; i++)
        assert_int_equal(marked_put(w->client, "g", i, 1, bytes), 0);
    traffic_start(&getting);
    traffic_more(&getting, 2, true, 10000);
}

static void start_putting(struct world *w, uint32_t objects, size_t bytes, bool clean)
{
    putting = (struct traffic){.client = w->client,
                               .prefix = "p",
                               .objects = objects,
                               .bytes = bytes,
                               .timeout_ms = TIMEOUT_MS,
                               .puts = true,
                               .clean = clean};
    traffic_start(&putting);
    traffic_more(&putting, 2, true, 10000);
}

/* Waits until a transfer is in progress on that rail. */
static void under_way(int number)
{
    unsigned long long from = rail_bytes(number);
    HARNESS_UNTIL(rail_bytes(number) > from + 200000, 10000);
}

/* True if the rail moves bytes within this time. */
static bool used(int number, unsigned ms)
{
    unsigned long long from = rail_bytes(number);
    for (uint64_t until = harness_now_ms() + ms; harness_now_ms() < until; harness_pause())
        if (rail_bytes(number) > from + 500000)
            return true;
    return false;
}

static void both_rails_are_used(void **state)
{
    struct world *w = *state;
    start_getting(w, 3, MIDDLING, true);
    assert_true(used(0, 3000) && used(1, 3000));
    traffic_stop(&getting);
    harness_passed(w->h);
}

/* `how` says what happens to the rail: its interface goes down, or it silently loses every packet. */
static void one_rail_goes_during_gets(struct world *w, const char *how, const char *value, const char *mend)
{
    slow(w, 2);
    start_getting(w, 3, MIDDLING, true);
    under_way(1);
    rail(w->h, how, 1, value);
    traffic_more(&getting, 6, true, 20000);
    rail(w->h, mend, 1, NULL);
    assert_true(used(1, 15000)); /* the rail is used again */
    traffic_more(&getting, 3, true, 10000);
    traffic_stop(&getting);
    print_message("           the longest get took %d ms\n", (int)getting.longest_ms);
    harness_passed(w->h);
}

static void rail_pulled_during_gets(void **state)
{
    one_rail_goes_during_gets(*state, "pull", NULL, "plug");
}

static void rail_cut_silently_during_gets(void **state)
{
    one_rail_goes_during_gets(*state, "lose", "100", "free");
}

/* Puts may fail for a moment, but only with a class that allows a retry. Then they continue. */
static void one_rail_goes_during_puts(struct world *w, const char *how, const char *value, const char *mend)
{
    int64_t version;
    slow(w, 2);
    start_putting(w, 3, MIDDLING, false);
    under_way(1);
    rail(w->h, how, 1, value);
    traffic_more(&putting, 4, true, 20000);
    rail(w->h, mend, 1, NULL);
    assert_true(used(1, 15000));
    traffic_more(&putting, 3, true, 10000);
    traffic_stop(&putting);
    print_message("           %u of %u puts succeeded, the longest took %d ms\n", atomic_load(&putting.good),
                  atomic_load(&putting.ended), (int)putting.longest_ms);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(marked_get(w->client, "p", i, MIDDLING, &version), 0);
    harness_passed(w->h);
}

static void rail_pulled_during_puts(void **state)
{
    one_rail_goes_during_puts(*state, "pull", NULL, "plug");
}

static void rail_cut_silently_during_puts(void **state)
{
    one_rail_goes_during_puts(*state, "lose", "100", "free");
}

/* The only rail to the node goes down, and comes back. */
static void only_rail_goes(struct world *w, const char *how, const char *value, const char *mend)
{
    start_getting(w, 3, MIDDLING, false);
    start_putting(w, 3, MIDDLING, false);
    under_way(0);
    rail(w->h, how, 0, value);
    traffic_more(&getting, 2, false, 15000);
    traffic_more(&putting, 2, false, 15000);
    assert_true(getting.last_failure != 0 && putting.last_failure != 0);
    print_message("           gets: %s, puts: %s\n", tarn_error_name(getting.last_failure),
                  tarn_error_name(putting.last_failure));
    rail(w->h, mend, 0, NULL);
    traffic_more(&getting, 3, true, 15000);
    traffic_more(&putting, 3, true, 15000);
    traffic_stop(&getting);
    traffic_stop(&putting);
    harness_passed(w->h);
}

static void only_rail_pulled(void **state)
{
    only_rail_goes(*state, "pull", NULL, "plug");
}

static void only_rail_cut_silently(void **state)
{
    only_rail_goes(*state, "lose", "100", "free");
}

/* Control connections and tcp do not use the rails. Without rails everything continues on tcp, and then
 * returns to the rails. */
static void all_rails_go(struct world *w, const char *how, const char *value, const char *mend)
{
    start_getting(w, 3, MIDDLING, true);
    start_putting(w, 3, MIDDLING, false);
    under_way(0);
    under_way(1);
    for (int i = 0; i < 2; i++)
        rail(w->h, how, i, value);
    for (uint64_t until = harness_now_ms() + 8000; harness_now_ms() < until;) {
        traffic_more(&getting, 1, true, 2000);
        traffic_more(&putting, 1, true, 2000);
    }
    for (int i = 0; i < 2; i++)
        rail(w->h, mend, i, NULL);
    assert_true(used(0, 6000) && used(1, 6000));
    traffic_stop(&getting);
    traffic_stop(&putting);
    print_message("           %u gets, %u of %u puts, the longest %d and %d ms\n", atomic_load(&getting.good),
                  atomic_load(&putting.good), atomic_load(&putting.ended), (int)getting.longest_ms,
                  (int)putting.longest_ms);
    harness_passed(w->h);
}

static void all_rails_pulled_tcp_goes_on(void **state)
{
    all_rails_go(*state, "pull", NULL, "plug");
}

static void all_rails_cut_silently_tcp_goes_on(void **state)
{
    all_rails_go(*state, "lose", "100", "free");
}

/* The queue pair retransmits lost packets, so few operations fail. */
static void packets_are_lost(void **state)
{
    struct world *w = *state;
    static const char *const percent[] = {"1", "5"};
    for (int i = 0; i < 2; i++) {
        rail(w->h, "lose", 0, percent[i]);
        rail(w->h, "lose", 1, percent[i]);
        start_getting(w, 3, 300000, false);
        start_putting(w, 3, 300000, false);
        traffic_more(&getting, 30, true, 60000);
        traffic_more(&putting, 15, true, 60000);
        traffic_stop(&getting);
        traffic_stop(&putting);
        print_message("           %s %%: %u of %u gets, %u of %u puts, the longest %d and %d ms\n",
                      percent[i], atomic_load(&getting.good), atomic_load(&getting.ended),
                      atomic_load(&putting.good), atomic_load(&putting.ended), (int)getting.longest_ms,
                      (int)putting.longest_ms);
        assert_true(atomic_load(&getting.good) * 10 >= atomic_load(&getting.ended) * 9);
        assert_true(atomic_load(&putting.good) * 10 >= atomic_load(&putting.ended) * 9);
    }
    harness_passed(w->h);
}

/* --- processes that end in the middle ----------------------------------------------------------- */

static void node_killed_during_gets_and_puts(void **state)
{
    struct world *w = *state;
    slow(w, 2);
    start_getting(w, 2, 2 * MIDDLING, false);
    start_putting(w, 2, 2 * MIDDLING, false);
    getting.evicted = true;
    under_way(0);
    under_way(1);
    harness_kill(w->nodes[0]->process);
    traffic_more(&getting, 2, false, 15000);
    traffic_more(&putting, 2, false, 15000);
    assert_true(getting.last_failure != 0 && putting.last_failure != 0);
    HARNESS_UNTIL(!world_lists(w, "node0"), 10000);
    w->nodes[0] = world_node(w, "node0");
    traffic_more(&putting, 2, true, 20000);
    traffic_stop(&getting);
    traffic_stop(&putting);
    harness_passed(w->h);
}

/* --- more than fits, less time than it takes ---------------------------------------------------- */

enum { FLOOD = 400 };
static struct tarn_item items[FLOOD];
static struct tarn_piece pieces[FLOOD];
static char names[FLOOD][16];

static void prepare_flood(struct world *w, char *data, size_t bytes)
{
    for (uint32_t i = 0; i < FLOOD; i++) {
        snprintf(names[i], sizeof(names[i]), "flood%u", i);
        pieces[i] = (struct tarn_piece){.addr = data + i * bytes, .bytes = bytes};
        items[i] = (struct tarn_item){
            .key = key_of(names[i]), .pieces = &pieces[i], .npieces = 1, .tensor = tarn_bytes(bytes)};
        marked_fill(pieces[i].addr, bytes, i, 3);
    }
    struct tarn_put_options o = {.size = sizeof(o), .flags = TARN_PUT_REPLACE, .timeout_ms = 30000};
    if (tarn_put(w->client, items, FLOOD, &o))
        fail_msg("put: %s", tarn_last_error());
}

/* UCCL: 65536 slots are overwritten without back-pressure. Here the client waits for a full queue. */
static void more_works_than_any_queue_takes(void **state)
{
    struct world *w = *state;
    static const size_t sizes[] = {9000, 40000};
    for (int round = 0; round < 2; round++) {
        size_t bytes = sizes[round];
        char *data = malloc(FLOOD * bytes);
        prepare_flood(w, data, bytes);
        memset(data, 0, FLOOD * bytes);
        struct tarn_get_options o = {.size = sizeof(o), .timeout_ms = 30000};
        if (tarn_get(w->client, items, FLOOD, &o))
            fail_msg("get: %s", tarn_last_error());
        for (uint32_t i = 0; i < FLOOD; i++)
            assert_int_equal(marked_version(pieces[i].addr, bytes, i), 3);
        memset(data, 0, FLOOD * bytes);
        for (uint32_t i = 0; i < FLOOD; i++) {
            tarn_op op;
            assert_int_equal(tarn_submit_get(w->client, &items[i], 1, &o, i, &op), 0);
        }
        struct tarn_completion done[16];
        for (int n = 0, got; n < FLOOD; n += got) {
            got = tarn_drain(w->client, done, 16);
            for (int i = 0; i < got; i++)
                assert_int_equal(done[i].status, 0);
            if (got == 0)
                harness_pause();
        }
        for (uint32_t i = 0; i < FLOOD; i++)
            assert_int_equal(marked_version(pieces[i].addr, bytes, i), 3);
        free(data);
    }
    harness_passed(w->h);
}

/* A work with more work requests than a send queue holds, and another work after it. */
static void more_requests_than_the_send_queue_takes(void **state)
{
    struct world *w = *state;
    enum { N = 20000, RUN = 64, APART = 200 };
    size_t bytes = (size_t)N * RUN;
    char *in = malloc(bytes), *out = calloc(N, APART);
    struct tarn_piece whole = {.addr = in, .bytes = bytes}, runs = {out, RUN, APART, N};
    marked_fill(in, bytes, 5, 5);
    struct tarn_put_options patient = replacing;
    patient.timeout_ms = 20000;
    for (int round = 0; round < 3; round++) {
        struct tarn_item put = {
            .key = key_of("runs"), .pieces = &whole, .npieces = 1, .tensor = tarn_bytes(bytes)};
        struct tarn_item get[2] = {{.key = key_of("runs"), .pieces = &runs, .npieces = 1},
                                   {.key = key_of("runs"), .pieces = &whole, .npieces = 1}};
        struct tarn_get_options o = {.size = sizeof(o), .timeout_ms = 10000};
        assert_int_equal(tarn_put(w->client, &put, 1, &patient), 0);
        memset(out, 0, (size_t)N * APART);
        if (tarn_get(w->client, get, 2, &o))
            fail_msg("get: %s", tarn_last_error());
        assert_int_equal(marked_version(in, bytes, 5), 5);
        for (size_t i = 0; i < N; i++)
            assert_memory_equal(out + i * APART, in + i * RUN, RUN);
        put.pieces = &runs;
        assert_int_equal(tarn_put(w->client, &put, 1, &patient), 0);
    }
    free(in);
    free(out);
    harness_passed(w->h);
}

static void submit_slow_get(struct world *w, char *data, tarn_op *op)
{
    pieces[0] = (struct tarn_piece){.addr = data, .bytes = BIG};
    items[0] = (struct tarn_item){.key = key_of("big0"), .pieces = &pieces[0], .npieces = 1};
    memset(data, 0x55, BIG);
    unsigned long long from = rail_bytes(0);
    assert_int_equal(tarn_submit_get(w->client, &items[0], 1, NULL, 1, op), 0);
    HARNESS_UNTIL(rail_bytes(0) > from + 200000, 10000);
}

static void memory_in_use_is_not_deregistered(void **state)
{
    struct world *w = *state;
    char *data = malloc(BIG);
    struct tarn_mr *mr;
    struct tarn_completion done;
    tarn_op op;
    assert_int_equal(marked_put(w->client, "big", 0, 1, BIG), 0);
    assert_int_equal(tarn_register(w->client, data, BIG, TARN_MEMORY_HOST, &mr), 0);
    slow(w, 2);
    submit_slow_get(w, data, &op);
    assert_int_equal(tarn_deregister(w->client, mr), TARN_E_BUSY);
    assert_int_equal(tarn_wait(w->client, op, 25000, &done), 0);
    assert_int_equal(done.status, 0);
    assert_int_equal(marked_version(data, BIG, 0), 1);
    assert_int_equal(tarn_deregister(w->client, mr), 0);
    free(data);
    harness_passed(w->h);
}

/* Checks that nothing writes to this memory any more. */
static void expect_untouched(const char *data, size_t bytes)
{
    for (int i = 0; i < 50; i++) {
        for (size_t at = 0; at < bytes; at += 4099)
            assert_int_equal(data[at], 0x33);
        harness_pause();
    }
}

static void a_canceled_get_releases_its_memory(void **state)
{
    struct world *w = *state;
    char *data = malloc(BIG);
    struct tarn_completion done;
    tarn_op op;
    assert_int_equal(marked_put(w->client, "big", 0, 1, BIG), 0);
    slow(w, 2);
    for (int i = 0; i < 3; i++) {
        submit_slow_get(w, data, &op);
        assert_int_equal(tarn_cancel(w->client, op), 0);
        memset(data, 0x33, BIG);
        assert_int_equal(tarn_wait(w->client, op, 5000, &done), 0);
        assert_int_equal(done.status, TARN_E_CANCELED);
        expect_untouched(data, BIG);
    }
    submit_slow_get(w, data, &op);
    tarn_close(w->client);
    memset(data, 0x33, BIG);
    expect_untouched(data, BIG);
    w->client = NULL;
    free(data);
    harness_passed(w->h);
}

static void deadline_passes_in_flight(void **state)
{
    struct world *w = *state;
    enum { LONG = 28 * MIB };
    char *data = malloc(LONG);
    marked_fill(data, LONG, 0, 1);
    pieces[0] = (struct tarn_piece){.addr = data, .bytes = LONG};
    items[0] = (struct tarn_item){
        .key = key_of("long"), .pieces = &pieces[0], .npieces = 1, .tensor = tarn_bytes(LONG)};
    assert_int_equal(tarn_put(w->client, items, 1, NULL), 0);
    slow(w, 2);
    for (int i = 0; i < 4; i++) {
        bool get = i % 2;
        struct tarn_get_options g = {.size = sizeof(g), .timeout_ms = 100};
        struct tarn_put_options p = {.size = sizeof(p), .timeout_ms = 100, .flags = TARN_PUT_REPLACE};
        uint64_t begun = harness_now_ms();
        items[0].key = key_of(get ? "long" : "longer");
        int status = get ? tarn_get(w->client, items, 1, &g) : tarn_put(w->client, items, 1, &p);
        uint64_t took = harness_now_ms() - begun;
        assert_int_equal(status, TARN_E_TIMEOUT);
        assert_true(took < 1200);
        memset(data, 0x33, LONG);
        expect_untouched(data, LONG);
    }
    rail(w->h, "free", 0, NULL);
    rail(w->h, "free", 1, NULL);
    items[0].key = key_of("long");
    if (tarn_get(w->client, items, 1, NULL))
        fail_msg("get: %s", tarn_last_error());
    assert_int_equal(marked_version(data, LONG, 0), 1);
    HARNESS_UNTIL(node_pool_figure(w->nodes[0]->local, "reserved") == 0, 10000);
    free(data);
    harness_passed(w->h);
}

#define CASE(fn_) cmocka_unit_test_setup_teardown(fn_, start, rdma_stop)
#define TWO_TRANSPORTS(fn_) cmocka_unit_test_setup_teardown(fn_, start_two_transports, rdma_stop)
#define ONE_RAIL(fn_) cmocka_unit_test_setup_teardown(fn_, start_one_rail, rdma_stop)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(both_rails_are_used),
        CASE(rail_pulled_during_gets),
        CASE(rail_cut_silently_during_gets),
        CASE(rail_pulled_during_puts),
        CASE(rail_cut_silently_during_puts),
        ONE_RAIL(only_rail_pulled),
        ONE_RAIL(only_rail_cut_silently),
        TWO_TRANSPORTS(all_rails_pulled_tcp_goes_on),
        TWO_TRANSPORTS(all_rails_cut_silently_tcp_goes_on),
        CASE(packets_are_lost),
        CASE(node_killed_during_gets_and_puts),
        CASE(more_works_than_any_queue_takes),
        ONE_RAIL(more_requests_than_the_send_queue_takes),
        CASE(memory_in_use_is_not_deregistered),
        CASE(a_canceled_get_releases_its_memory),
        CASE(deadline_passes_in_flight),
    };
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
