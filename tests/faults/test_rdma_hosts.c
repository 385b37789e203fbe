/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rdma between two hosts. This program is the client's part, in the second VM. tests/rdma-vm/hosts.sh runs
 * Redis and node "node0" in the first VM, and does to the node what this program orders. Control connections
 * and Redis use rail 0, so cutting rail 0 cuts everything.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/rdma.h"

#define TIMEOUT_MS 3000

struct hosts {
    struct harness *h;
    struct tarn_client *client;
};

static const char *shared(const char *name)
{
    static char path[256];
    snprintf(path, sizeof(path), "%s/%s", getenv("OUT"), name);
    return path;
}

static int answer(void)
{
    int n = -1;
    FILE *f = fopen(shared("answer"), "re");
    if (f && fscanf(f, "%d", &n) != 1)
        n = -1;
    if (f)
        fclose(f);
    return n;
}

/* Sends an order to the other host, and waits until it is done. */
static void order(const char *what)
{
    static int n;
    char from[256];
    snprintf(from, sizeof(from), "%s", shared("order.new"));
    FILE *f = fopen(from, "we");
    assert_non_null(f);
    fprintf(f, "%d %s\n", ++n, what);
    fclose(f);
    assert_int_equal(rename(from, shared("order")), 0);
    HARNESS_UNTIL(answer() == n, 20000);
}

static struct tarn_client *client_by(const char *transports)
{
    return client_open(getenv("TARN_REDIS"),
                       (struct tarn_options){.transports = transports, .timeout_ms = TIMEOUT_MS});
}

static int start(void **state)
{
    const char *vms = getenv("VMS");
    rdma_need(false);
    if (!vms || *vms != '2')
        harness_skip("rdma", "there is one host only: tests/rdma-vm/vm.sh --vms 2");
    struct hosts *w = calloc(1, sizeof(*w));
    assert_non_null(w);
    *state = w;
    w->h = harness_new();
    HARNESS_UNTIL(answer() >= 0, 20000);
    w->client = client_by("rdma");
    /* A new directory does not accept puts yet. */
    HARNESS_UNTIL(marked_put(w->client, "settled", 0, 1, 8) == 0, 20000);
    return 0;
}

static int stop(void **state)
{
    struct hosts *w = *state;
    traffic_stop_all();
    rails_mend(w->h);
    tarn_close(w->client);
    harness_free(w->h);
    free(w);
    return 0;
}

static struct traffic getting, putting;

static void start_traffic(struct hosts *w, size_t bytes)
{
    getting = (struct traffic){
        .client = w->client, .prefix = "g", .objects = 4, .bytes = bytes, .timeout_ms = TIMEOUT_MS};
    putting = getting;
    putting.prefix = "p";
    putting.puts = true;
    for (uint32_t i = 0; i < 4; i++)
        HARNESS_UNTIL(marked_put(w->client, "g", i, 1, bytes) == 0, 15000);
    traffic_start(&getting);
    traffic_start(&putting);
    traffic_more(&getting, 4, true, 20000);
    traffic_more(&putting, 4, true, 20000);
}

static void stop_traffic(const struct hosts *w)
{
    traffic_stop(&getting);
    traffic_stop(&putting);
    print_message("           %u of %u gets, %u of %u puts, the longest %d and %d ms\n",
                  atomic_load(&getting.good), atomic_load(&getting.ended), atomic_load(&putting.good),
                  atomic_load(&putting.ended), (int)getting.longest_ms, (int)putting.longest_ms);
    harness_passed(w->h);
}

static void expect_failures(void)
{
    traffic_more(&getting, 2, false, 20000);
    traffic_more(&putting, 2, false, 20000);
    assert_true(getting.last_failure != 0 && putting.last_failure != 0);
    print_message("           gets: %s, puts: %s\n", tarn_error_name(getting.last_failure),
                  tarn_error_name(putting.last_failure));
}

static void objects_cross_in_all_sizes(void **state)
{
    struct hosts *w = *state;
    static const size_t sizes[] = {0, 8, 9, 4096, 16385, 100001, MIB, 5 * MIB + 3};
    unsigned long long before[2] = {rail_bytes(0), rail_bytes(1)};
    for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (marked_put(w->client, "size", i, 1, sizes[i]) || marked_get(w->client, "size", i, sizes[i], NULL))
            fail_msg("%zu bytes: %s", sizes[i], tarn_last_error());
    }
    assert_true(rail_bytes(0) - before[0] > MIB && rail_bytes(1) - before[1] > MIB);
    harness_passed(w->h);
}

static void node_killed_on_the_other_host(void **state)
{
    struct hosts *w = *state;
    start_traffic(w, 2 * MIB);
    getting.evicted = true;
    order("kill");
    expect_failures();
    order("start");
    traffic_more(&putting, 4, true, 20000);
    stop_traffic(w);
}

/* A get needs no process of the other host. */
static void node_stopped_on_the_other_host(void **state)
{
    struct hosts *w = *state;
    for (uint32_t i = 0; i < 4; i++) {
        HARNESS_UNTIL(marked_put(w->client, "s", i, 1, MIB) == 0, 15000);
        assert_int_equal(marked_get(w->client, "s", i, MIB, NULL), 0);
    }
    order("stop");
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(marked_get(w->client, "s", i, MIB, NULL), 0);
    order("cont");
    HARNESS_UNTIL(marked_put(w->client, "s", 0, 2, MIB) == 0, 15000);
    harness_passed(w->h);
}

static void second_link_cut(void **state)
{
    struct hosts *w = *state;
    start_traffic(w, MIB);
    rail(w->h, "pull", 1, NULL);
    traffic_more(&getting, 6, true, 20000);
    traffic_more(&putting, 6, true, 20000);
    rail(w->h, "plug", 1, NULL);
    unsigned long long before = rail_bytes(1);
    HARNESS_UNTIL(rail_bytes(1) > before + MIB, 20000);
    stop_traffic(w);
}

static void all_links_go(struct hosts *w, const char *how, const char *value, const char *mend)
{
    start_traffic(w, MIB);
    for (int i = 0; i < 2; i++)
        rail(w->h, how, i, value);
    expect_failures();
    for (int i = 0; i < 2; i++)
        rail(w->h, mend, i, NULL);
    traffic_more(&getting, 4, true, 30000);
    traffic_more(&putting, 4, true, 30000);
    stop_traffic(w);
}

static void host_unplugged(void **state)
{
    all_links_go(*state, "pull", NULL, "plug");
}

static void host_cut_off_silently(void **state)
{
    all_links_go(*state, "lose", "100", "free");
}

#define CASE(fn_) cmocka_unit_test_setup_teardown(fn_, start, stop)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(objects_cross_in_all_sizes),
        CASE(node_stopped_on_the_other_host),
        CASE(node_killed_on_the_other_host),
        CASE(second_link_cut),
        CASE(host_unplugged),
        CASE(host_cut_off_silently),
    };
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
