/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations while rails come up, are down, or no longer reach a healthy node. With another transport they
 * continue on it, and the node is not blamed. Without one they wait for a rail, within their deadline. Node
 * and verbs are in this process (node_here.h, fake_verbs.h).
 */
#include "tests/unit/fake_node.h"
#include "tests/unit/fake_verbs.h"

#include "client/client.h"
#include "client/link.h"
#include "tests/node_client.h"
#include "tests/node_here.h"
#include "tests/world.h"

enum { BYTES = 300000, SLOW_MS = 1500 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLACK_MS (3000 * harness_slower())
#else
#define SLACK_MS (1200 * harness_slower())
#endif

/* The simulated network. Until until_ns, a client's rail does not reach the node, and its queue pairs are
 * not connected. */
static struct {
    _Atomic uint64_t until_ns;
    atomic_int asking;
} network;

/* Counts what the client has set aside. On a busy host the node may answer the client's keeper too late
 * when the keeper asks it. Operations may then fail for a moment, as intended. */
static atomic_int nodes_aside, nodes_slow, transports_aside;

static int resolve(struct fake_device *d, const union ibv_gid *peer)
{
    (void)d;
    (void)peer;
    atomic_fetch_add(&network.asking, 1);
    while (tarn_now_ns() < atomic_load(&network.until_ns))
        poll(NULL, 0, 1);
    atomic_fetch_sub(&network.asking, 1);
    return 0;
}

static void slow_for(unsigned ms)
{
    atomic_store(&network.until_ns, ms ? tarn_deadline(ms) : 0);
}

static void take_line(void *arg, enum tarn_log_level level, const char *line)
{
    (void)arg;
    (void)level;
    if (strstr(line, "node set aside"))
        atomic_fetch_add(strstr(line, "no answer in time") ? &nodes_slow : &nodes_aside, 1);
    if (strstr(line, "transport set aside"))
        atomic_fetch_add(&transports_aside, 1);
}

static struct here here;
static struct tarn_client *client;

static int start(void **state)
{
    (void)state;
    fake_reset();
    fake_add("a", 1);
    fake.resolve = resolve;
    slow_for(0);
    atomic_store(&nodes_aside, 0);
    atomic_store(&nodes_slow, 0);
    atomic_store(&transports_aside, 0);
    start_here(&here);
    return 0;
}

static void open_client(const char *transports)
{
    client = client_open(here.redis->url, (struct tarn_options){.transports = transports,
                                                                .timeout_ms = 5000,
                                                                .log = take_line,
                                                                .log_level = TARN_LOG_WARN});
}

static int stop(void **state)
{
    (void)state;
    fake.device[0].dead = fake.device[0].port[1].down = fake.held = false;
    slow_for(0);
    tarn_close(client);
    client = NULL;
    stop_here(&here);
    assert_true(fake_goes_to(NULL, 0));
    return 0;
}

static uint64_t moved(void)
{
    pthread_mutex_lock(&fake_lock);
    uint64_t bytes = fake.device[0].moved;
    pthread_mutex_unlock(&fake_lock);
    return bytes;
}

static int put_within(const char *key, char byte, uint32_t timeout_ms)
{
    struct tarn_put_options o = {.size = sizeof o, .flags = TARN_PUT_REPLACE, .timeout_ms = timeout_ms};
    return client_put(client, key, byte, BYTES, &o);
}

static void put(const char *key, char byte)
{
    uint64_t until = harness_now_ms() + 10000;
    while (put_within(key, byte, 0))
        if (!atomic_load(&nodes_slow) || harness_now_ms() > until)
            fail_msg("put: %s", tarn_last_error());
}

static void get(const char *key, char byte)
{
    uint64_t until = harness_now_ms() + 10000;
    while (client_get(client, key, byte, BYTES))
        if (!atomic_load(&nodes_slow) || harness_now_ms() > until)
            fail_msg("get: %s", tarn_last_error());
}

/* The operation must end at its deadline and say why. */
static void runs_out_of_time(bool puts, uint32_t timeout_ms, const char *why)
{
    char byte;
    uint64_t begun = harness_now_ms();
    int status = puts ? put_within("k", 'x', timeout_ms) : client_read(client, "k", BYTES, timeout_ms, &byte);
    uint64_t took = harness_now_ms() - begun;
    if (status != TARN_E_TIMEOUT || !strstr(tarn_last_error(), why))
        fail_msg("%s: %s", tarn_error_name(status), tarn_last_error());
    assert_in_range(took, timeout_ms - 10, timeout_ms + SLACK_MS);
}

/* --- rails that are not up yet ------------------------------------------------------------------ */

static void tcp_goes_on_while_rails_come_up(void **state)
{
    (void)state;
    open_client("rdma,tcp");
    slow_for(60000);
    uint64_t begun = harness_now_ms();
    put("k", 'a');
    get("k", 'a');
    assert_true(harness_now_ms() - begun < SLACK_MS);
    assert_true(atomic_load(&network.asking) > 0);
    assert_int_equal(moved(), 0);
    slow_for(0);
    HARNESS_UNTIL((get("k", 'a'), moved() >= BYTES), 5000); /* rdma is used again */
    assert_int_equal(atomic_load(&nodes_aside), 0);
}

static void without_tcp_operations_wait_for_a_rail(void **state)
{
    (void)state;
    open_client("rdma");
    slow_for(SLOW_MS);
    uint64_t begun = harness_now_ms();
    put("k", 'a');
    assert_in_range(harness_now_ms() - begun, SLOW_MS - 100, SLOW_MS + SLACK_MS);
    slow_for(SLOW_MS);
    get("k", 'a'); /* needs another link */
    slow_for(60000);
    get("k", 'a'); /* uses the same link */
    assert_int_equal(atomic_load(&nodes_aside), 0);
}

static void operations_wait_for_a_rail_until_their_deadline(void **state)
{
    (void)state;
    open_client("rdma");
    put("k", 'a');
    slow_for(60000);
    static const uint32_t timeouts[] = {100, 400, 1500};
    for (int i = 0; i < 3; i++)
        runs_out_of_time(false, timeouts[i], "the network does not say where the node is");
    slow_for(0);
    get("k", 'a');
    assert_int_equal(atomic_load(&nodes_aside), 0);
}

/* Submits a get that waits for a rail. */
static tarn_op submit_get(struct tarn_item *item, uint32_t timeout_ms)
{
    struct tarn_get_options o = {.size = sizeof o, .timeout_ms = timeout_ms};
    tarn_op op;
    assert_int_equal(tarn_submit_get(client, item, 1, &o, 1, &op), 0);
    return op;
}

static void cancel_and_close_end_the_wait_for_a_rail(void **state)
{
    (void)state;
    char *data = malloc(BYTES);
    struct tarn_piece piece = {data, BYTES, 0, 0};
    struct tarn_item item = {.key = key_of("k"), .pieces = &piece, .npieces = 1};
    struct tarn_completion done;
    open_client("rdma");
    put("k", 'a');
    for (int down = 0; down < 2; down++) { /* first: a rail comes up; second: all rails are down */
        slow_for(SLOW_MS);
        fake.device[0].port[1].down = down;
        tarn_op op = submit_get(&item, 20000);
        if (!down)
            HARNESS_UNTIL(atomic_load(&network.asking) > 0, 5000);
        assert_int_equal(tarn_cancel(client, op), 0);
        uint64_t begun = harness_now_ms();
        assert_int_equal(tarn_wait(client, op, 5000, &done), 0);
        assert_true(harness_now_ms() - begun < SLACK_MS);
        assert_int_equal(done.status, TARN_E_CANCELED);
    }
    fake.device[0].port[1].down = false;
    slow_for(SLOW_MS);
    submit_get(&item, 20000);
    HARNESS_UNTIL(atomic_load(&network.asking) > 0, 5000);
    uint64_t begun = harness_now_ms();
    tarn_close(client);
    client = NULL;
    assert_true(harness_now_ms() - begun < SLOW_MS + SLACK_MS);
    free(data);
}

/* --- rails that are down, or have just failed --------------------------------------------------- */

static void *plug_later(void *arg)
{
    for (uint64_t until = tarn_deadline(*(const unsigned *)arg); tarn_now_ns() < until;)
        harness_pause();
    fake.device[0].port[1].down = false;
    return NULL;
}

static void operations_wait_for_a_rail_that_is_down(void **state)
{
    (void)state;
    pthread_t other;
    unsigned later = 600;
    open_client("rdma");
    for (int round = 0; round < 2; round++) {
        fake.device[0].port[1].down = true;
        if (round == 1) {
            runs_out_of_time(true, 300, "all 1 rails are down");
            runs_out_of_time(false, 300, "all 1 rails are down");
            runs_out_of_time(false, 20, "all 1 rails are down");
        }
        assert_int_equal(pthread_create(&other, NULL, plug_later, &later), 0);
        uint64_t begun = harness_now_ms();
        put("k", 'a');
        assert_in_range(harness_now_ms() - begun, 400, 600 + 250 + SLACK_MS);
        pthread_join(other, NULL);
        get("k", 'a');
        tarn_link_flush(&client_remote(client, "here")->sides[0][1]);
        tarn_link_flush(&client_remote(client, "here")->sides[0][0]);
    }
    assert_int_equal(atomic_load(&nodes_aside), 0);
}

/* A put that could use other nodes finds none of them better. */
static void operations_on_several_nodes_wait_for_a_rail(void **state)
{
    (void)state;
    struct here second;
    pthread_t other;
    unsigned later = 1800;
    start_here_as(&second, "second", &here);
    open_client("rdma");
    fake.device[0].port[1].down = true;
    runs_out_of_time(true, 1200, "all 1 rails are down");
    assert_int_equal(pthread_create(&other, NULL, plug_later, &later), 0);
    uint64_t begun = harness_now_ms();
    put("k", 'a');
    get("k", 'a');
    assert_in_range(harness_now_ms() - begun, later - 100, later + 500 + SLACK_MS);
    pthread_join(other, NULL);
    assert_int_equal(atomic_load(&nodes_aside), 0);
    tarn_close(client);
    client = NULL;
    stop_here(&second);
}

static void operations_wait_for_a_rail_that_was_set_aside(void **state)
{
    (void)state;
    char byte;
    open_client("rdma");
    put("k", 'a');
    get("k", 'a');
    fake.device[0].dead = true;
    assert_true(client_read(client, "k", BYTES, 300, &byte) != 0);
    fake.device[0].dead = false;
    uint64_t begun = harness_now_ms();
    get("k", 'a');
    assert_true(harness_now_ms() - begun < 2000 + 250 + SLACK_MS);
}

/* --- a healthy node whose transport is cut ----------------------------------------------------- */

/* Reads another key throughout the test. */
struct reader {
    pthread_t thread;
    atomic_bool stop;
    atomic_int ended, failed;
};

static void *read_on(void *arg)
{
    struct reader *r = arg;
    char byte;
    while (!atomic_load(&r->stop)) {
        if (client_read(client, "other", BYTES, 2000, &byte))
            atomic_fetch_add(&r->failed, 1);
        atomic_fetch_add(&r->ended, 1);
    }
    return NULL;
}

/* Runs until the links made meanwhile have failed, too, for gets and for puts. */
static void a_cut_transport_is_set_aside_not_the_node(void **state)
{
    (void)state;
    struct reader r = {0};
    open_client("rdma,tcp");
    put("k", 'a');
    get("k", 'a');
    put("other", 'o');
    fake.device[0].dead = true;
    uint64_t before = moved(), until = harness_now_ms() + 15000;
    assert_int_equal(pthread_create(&r.thread, NULL, read_on, &r), 0);
    for (int i = 0; atomic_load(&transports_aside) < 3; i++) {
        put("k", (char)('a' + i % 20));
        get("k", (char)('a' + i % 20));
        assert_true(harness_now_ms() < until);
    }
    atomic_store(&r.stop, true);
    pthread_join(r.thread, NULL);
    assert_int_equal(moved(), before);
    assert_true(atomic_load(&r.ended) > 0);
    assert_true(atomic_load(&r.failed) == 0 || atomic_load(&nodes_slow) > 0);
    assert_int_equal(atomic_load(&nodes_aside), 0);
    fake.device[0].dead = false;
    put("k", 'z');
    HARNESS_UNTIL((get("k", 'z'), moved() >= before + BYTES), 5000);
}

/* Posted work never completes. The get's time is too short to wait out one link, but not several in a row.
 * The get then uses tcp, if time is left. */
static void a_silent_transport_is_set_aside_not_the_node(void **state)
{
    (void)state;
    char byte;
    open_client("rdma,tcp");
    put("k", 'a');
    get("k", 'a');
    uint64_t before = moved();
    fake.held = true;
    int status = client_read(client, "k", BYTES, 400, &byte);
    assert_true(status == 0 ? byte == 'a' : status == TARN_E_TIMEOUT);
    assert_int_equal(atomic_load(&transports_aside), 1);
    get("k", 'a');
    assert_int_equal(put_within("k", 'b', 400), TARN_E_TIMEOUT);
    assert_int_equal(atomic_load(&transports_aside), 2);
    put("k", 'c');
    get("k", 'c');
    assert_int_equal(moved(), before);
    assert_int_equal(atomic_load(&nodes_aside), 0);
}

#define CASE(fn_) cmocka_unit_test_setup_teardown(fn_, start, stop)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(tcp_goes_on_while_rails_come_up),
        CASE(without_tcp_operations_wait_for_a_rail),
        CASE(operations_wait_for_a_rail_until_their_deadline),
        CASE(cancel_and_close_end_the_wait_for_a_rail),
        CASE(operations_wait_for_a_rail_that_is_down),
        CASE(operations_on_several_nodes_wait_for_a_rail),
        CASE(operations_wait_for_a_rail_that_was_set_aside),
        CASE(a_cut_transport_is_set_aside_not_the_node),
        CASE(a_silent_transport_is_set_aside_not_the_node),
    };
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
