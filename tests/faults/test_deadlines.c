/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every call ends at most 50 ms after its deadline, at whatever step the nodes or Redis stop. They are 20 ms
 * of round trip away, which separates a call's steps; each run stops them a little later in the call. Time in
 * which the host itself stalled is not counted.
 */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tests/router.h"
#include "tests/stall.h"
#include "tests/world.h"

enum { NODES = 2, TRIP_MS = 20, TIMEOUT_MS = 200, LATE_MS = 50, MANY = 100, BYTES = 50000 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOWER 4
#else
#define SLOWER 1
#endif

struct paused {
    struct harness *h;
    struct harness_redis *redis;
    struct harness_node *nodes[NODES];
    struct router *router;
    struct relay *relays[1 + 2 * NODES];
    int nrelays;
    struct stalls *stalls;
    char url[64];
    unsigned runs;
    uint64_t worst_ms;
};

/* --- the world ---------------------------------------------------------------------------------- */

static struct relay *add(struct paused *f, const char *to)
{
    return f->relays[f->nrelays++] = router_add(f->router, "127.0.0.1:0", to);
}

/* A record lives longer than the pauses. */
static void start_node(struct paused *f, int i)
{
    char id[16], port[16], data[32];

    snprintf(id, sizeof id, "node%d", i);
    snprintf(port, sizeof port, "%u", harness_free_port());
    snprintf(data, sizeof data, "127.0.0.1:%s", port);
    f->nodes[i] = harness_node_start(f->h, id, f->redis, "--pool", "p0:bytes=128M", "--data-port", port,
                                     "--heartbeat-ms", "5000", NULL);
    router_route(f->nodes[i]->control, relay_address(add(f, f->nodes[i]->control)));
    router_route(data, relay_address(add(f, data)));
}

static int start(void **state)
{
    struct paused *f = calloc(1, sizeof *f);
    assert_non_null(f);
    *state = f;
    f->h = harness_new();
    f->redis = harness_redis_start(f->h, NULL);
    f->router = router_start(1);
    f->stalls = stalls_start(NULL, NULL);
    snprintf(f->url, sizeof f->url, "redis://%s", relay_address(add(f, f->redis->address)));
    for (int i = 0; i < NODES; i++)
        start_node(f, i);
    for (int i = 0; i < f->nrelays; i++)
        relay_set(f->relays[i], &(struct relay_state){.delay_ms = TRIP_MS / 2});
    return 0;
}

static int stop(void **state)
{
    struct paused *f = *state;
    router_no_unix(false);
    router_stop(f->router);
    stalls_stop(f->stalls);
    harness_free(f->h);
    free(f);
    return 0;
}

/* --- what stops, and when ----------------------------------------------------------------------- */

enum { NODE0 = 1, NODE1 = 2, REDIS = 4 };

struct stopper {
    struct paused *f;
    unsigned who;
    uint64_t at_ns;
    pthread_t thread;
};

static void signal_all(struct paused *f, unsigned who, int signum)
{
    for (int i = 0; i < NODES; i++)
        if (who >> i & 1)
            kill(harness_pid(f->nodes[i]->process), signum);
    if (who & REDIS)
        kill(harness_pid(f->redis->process), signum);
}

static void *stopper_main(void *arg)
{
    struct stopper *s = arg;

    poll(NULL, 0, tarn_left_ms(s->at_ns)); /* not synchronisation: the moment is what is tested */
    signal_all(s->f, s->who, SIGSTOP);
    return NULL;
}

/* --- the calls ---------------------------------------------------------------------------------- */

struct call {
    struct tarn_client *c;
    char key[24];
};

static int put_with(struct call *k, uint32_t flags, uint32_t replicas, const char *place)
{
    struct tarn_put_options o = {
        .size = sizeof o, .timeout_ms = TIMEOUT_MS, .flags = flags, .replicas = replicas, .place = place};
    return client_put(k->c, k->key, 'p', BYTES, &o);
}

static int put_one(struct call *k)
{
    return put_with(k, 0, 1, NULL);
}

static int put_there(struct call *k)
{
    return put_with(k, 0, 1, "node0");
}

static int put_two(struct call *k)
{
    return put_with(k, TARN_PUT_REPLACE, 2, NULL);
}

/* "old" is on node0. */
static int replace(struct call *k)
{
    snprintf(k->key, sizeof k->key, "old");
    return put_with(k, TARN_PUT_REPLACE, 1, "node1");
}

static int put_many(struct call *k)
{
    static char data[BYTES], keys[MANY][48];
    struct tarn_put_options o = {.size = sizeof o, .timeout_ms = TIMEOUT_MS, .replicas = 2};
    struct tarn_piece piece = {.addr = data, .bytes = BYTES};
    struct tarn_item items[MANY];

    for (int i = 0; i < MANY; i++) {
        snprintf(keys[i], sizeof keys[i], "%s.%d", k->key, i);
        items[i] = (struct tarn_item){
            .key = key_of(keys[i]), .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(BYTES)};
    }
    return tarn_put(k->c, items, MANY, &o);
}

static int get_one(struct call *k)
{
    char kind;
    return client_read(k->c, "old", BYTES, TIMEOUT_MS, &kind);
}

static int get_twice(struct call *k)
{
    char kind;
    return client_read(k->c, "both", BYTES, TIMEOUT_MS, &kind);
}

static int remove_one(struct call *k)
{
    struct tarn_key key = key_of("both");
    return tarn_remove(k->c, &key, 1, NULL, TIMEOUT_MS);
}

static int session(struct call *k)
{
    static char data[BYTES];
    struct tarn_put_options o = {.size = sizeof o, .timeout_ms = TIMEOUT_MS / 3, .replicas = 2};
    struct tarn_item item = {.key = key_of(k->key), .tensor = tarn_bytes(BYTES)};
    struct tarn_piece piece = {.addr = data, .bytes = BYTES};
    struct tarn_put_session *s = NULL;
    int rc = tarn_put_begin(k->c, &item, 1, &o, &s);

    if (s && rc == 0)
        rc = tarn_put_write(s, 0, 0, &piece, 1, TIMEOUT_MS / 3);
    if (s && tarn_put_commit(s, NULL, TIMEOUT_MS / 3) != 0)
        rc = -1;
    return rc;
}

/* --- the test ----------------------------------------------------------------------------------- */

static void prepare(struct paused *f)
{
    static const struct tarn_put_options on_node0 = {
        .size = sizeof on_node0, .place = "node0", .flags = TARN_PUT_REPLACE};
    static const struct tarn_put_options both = {
        .size = sizeof both, .replicas = 2, .flags = TARN_PUT_REPLACE};
    router_no_unix(false);
    struct tarn_client *c = client_open(f->redis->url, (struct tarn_options){.timeout_ms = 20000});

    HARNESS_UNTIL(client_put(c, "old", 'o', BYTES, &on_node0) == 0, HARNESS_TIMEOUT_MS);
    HARNESS_UNTIL(client_put(c, "both", 'o', BYTES, &both) == 0, HARNESS_TIMEOUT_MS);
    tarn_close(c);
}

static void run(struct paused *f, const char *name, int (*fn)(struct call *), const char *transports,
                unsigned who, uint32_t after_ms)
{
    struct call k = {.c = client_open(f->url, (struct tarn_options){.transports = transports})};
    struct stopper s = {.f = f, .who = who};

    snprintf(k.key, sizeof k.key, "k%u", f->runs++);
    uint64_t begun = tarn_now_ns();
    s.at_ns = begun + after_ms * TARN_NS_PER_MS;
    assert_int_equal(pthread_create(&s.thread, NULL, stopper_main, &s), 0);
    int rc = fn(&k);
    uint64_t ended = tarn_now_ns();
    pthread_join(s.thread, NULL);
    signal_all(f, who, SIGCONT);
    uint64_t stalled = stalls_within(f->stalls, begun, ended);
    uint64_t ms = ended - begun > stalled ? (ended - begun - stalled) / TARN_NS_PER_MS : 0;
    if (ms > f->worst_ms)
        f->worst_ms = ms;
    if (ms > TIMEOUT_MS + LATE_MS * SLOWER)
        fail_msg("%s by %s, %s%s%s stopped after %u ms: took %u ms of %d, status %d: %s", name,
                 transports ? transports : "shm", who & NODE0 ? "node0 " : "", who & NODE1 ? "node1 " : "",
                 who & REDIS ? "redis " : "", after_ms, (unsigned)ms, TIMEOUT_MS, rc, tarn_last_error());
    tarn_close(k.c);
}

static void each_step(struct paused *f, const char *name, int (*fn)(struct call *), uint32_t steps)
{
    static const unsigned whom[] = {NODE0, NODE0 | NODE1, REDIS};

    for (unsigned w = 0; w < sizeof whom / sizeof *whom; w++)
        for (uint32_t i = 0; i < steps; i++) {
            prepare(f);
            router_no_unix(true);
            run(f, name, fn, "tcp", whom[w], i * TRIP_MS + TRIP_MS / 4);
        }
    /* By shared memory the steps are too short to be separated. */
    for (unsigned w = 0; w < sizeof whom / sizeof *whom; w++) {
        prepare(f);
        run(f, name, fn, NULL, whom[w], w);
    }
    print_message("  %s: %u ms at most\n", name, (unsigned)f->worst_ms);
    harness_passed(f->h);
}

#define STEP_TEST(fn_, steps_) \
    static void fn_##_ends_in_time(void **state) \
    { \
        each_step(*state, #fn_, fn_, steps_); \
    }

STEP_TEST(put_one, 7)
STEP_TEST(put_there, 7)
STEP_TEST(put_two, 8)
STEP_TEST(replace, 7)
STEP_TEST(put_many, 8)
STEP_TEST(get_one, 4)
STEP_TEST(get_twice, 4)
STEP_TEST(remove_one, 4)
STEP_TEST(session, 7)

#define CASE(fn_) cmocka_unit_test_setup_teardown(fn_##_ends_in_time, start, stop)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(put_one), CASE(put_there), CASE(put_two),    CASE(replace), CASE(put_many),
        CASE(get_one), CASE(get_twice), CASE(remove_one), CASE(session),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("deadlines", tests, NULL, NULL);
}
