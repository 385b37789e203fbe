/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts of several chunks: which of them are committed at once, and what is left when somebody goes in
 * between: the client, Redis, a node. A relay holds COMMITs meanwhile.
 */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "tests/node_client.h"
#include "tests/relay.h"
#include "tests/world.h"

enum { BYTES = 100, WAIT_MS = 10000, TIMEOUT_MS = 2000 };

static const struct world_plan plan = {
    .nodes = 1, .args = {"--pool", "cpu0:bytes=16M"}, .client = {.timeout_ms = 10000, .transports = "tcp"}};

static struct relay *relay;
static const char *self;

static int start(void **state)
{
    int rc = world_start(state, &plan);
    struct world *w = *state;
    relay = relay_start(w->nodes[0]->unix_path);
    w->client = world_client(w, "tcp");
    assert_int_equal(client_put(w->client, "first", 'f', BYTES, NULL), 0); /* opens its connections */
    return rc;
}

static int stop(void **state)
{
    struct world *w = *state;
    relay_hold(relay, NULL);
    tarn_close(w->client);
    w->client = NULL;
    relay_stop(relay);
    return world_stop(state);
}

/* Puts items i = 0 to n-1, whose keys are those of i % keys, and returns how many COMMITs the node did not
 * get in time. */
static unsigned commits_of(struct world *w, int n, int keys)
{
    const struct tarn_put_options o = {
        .size = sizeof o, .flags = TARN_PUT_REPLACE, .timeout_ms = TIMEOUT_MS * harness_slower()};
    static char data[BYTES], names[256][8];
    static struct tarn_item items[256];
    struct tarn_piece piece = {.addr = data, .bytes = BYTES};

    for (int i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "k%d", i % keys);
        items[i] = (struct tarn_item){
            .key = key_of(names[i]), .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(BYTES)};
    }
    relay_hold(relay, "COMMIT");
    assert_int_equal(tarn_put(w->client, items, (size_t)n, &o), TARN_E_TIMEOUT);
    unsigned held = relay_held(relay, "COMMIT");
    relay_hold(relay, NULL);
    for (int i = 0; i < n; i++)
        assert_int_equal(items[i].status, TARN_E_TIMEOUT);
    HARNESS_UNTIL(node_pool_figure(relay_node(relay), "reserved") == 0, WAIT_MS);
    assert_int_equal(client_get(w->client, "k0", 0, BYTES), TARN_E_NOT_FOUND);
    return held;
}

static void two_chunks_are_committed_at_once(void **state)
{
    struct world *w = *state;
    assert_int_equal(commits_of(w, 256, 256), 2);
    harness_passed(w->h);
}

/* Else the earlier value could be the one that stays. */
static void chunks_with_a_key_in_common_are_committed_one_after_the_other(void **state)
{
    struct world *w = *state;
    assert_int_equal(commits_of(w, 2, 1), 1);
    assert_int_equal(commits_of(w, 5, 2), 1);
    harness_passed(w->h);
}

/* --- somebody goes in between -------------------------------------------------------------------- */

enum { ITEMS = 256 };

struct batch {
    struct tarn_item items[ITEMS];
    struct tarn_piece pieces[ITEMS];
    char names[ITEMS][12], data[ITEMS][BYTES];
};

static char content(int i)
{
    return (char)('A' + i % 50);
}

static void fill_batch(struct batch *b)
{
    for (int i = 0; i < ITEMS; i++) {
        snprintf(b->names[i], sizeof b->names[i], "b%d", i);
        memset(b->data[i], content(i), BYTES);
        b->pieces[i] = (struct tarn_piece){.addr = b->data[i], .bytes = BYTES};
        b->items[i] = (struct tarn_item){
            .key = key_of(b->names[i]), .pieces = &b->pieces[i], .npieces = 1, .tensor = tarn_bytes(BYTES)};
    }
}

/*
 * What was put is there, whole, as soon as the directory is again; what was not put is not there, or whole: a
 * put that failed may have been published. Returns how many were put.
 */
static int check_batch(const struct world *w, const struct batch *b)
{
    int put = 0;
    char byte = 0;
    struct tarn_client *reader = world_client(w, "tcp");
    for (int i = 0; i < ITEMS; i++) {
        int rc = 0;
        if (b->items[i].status == 0)
            HARNESS_UNTIL(client_read(reader, b->names[i], BYTES, 0, &byte) == 0, WAIT_MS);
        else
            rc = client_read(reader, b->names[i], BYTES, 0, &byte);
        if (rc == 0 && byte != content(i))
            fail_msg("%s: has '%c', not '%c'", b->names[i], byte, content(i));
        put += b->items[i].status == 0;
    }
    tarn_close(reader);
    return put;
}

static void *put_batch(void *arg)
{
    struct world *w = ((void **)arg)[0];
    struct batch *b = ((void **)arg)[1];
    return (void *)(intptr_t)tarn_put(w->client, b->items, ITEMS, NULL);
}

/* test_put_chunks --put REDIS: puts a batch, and is killed meanwhile. */
static int put_main(const char *redis)
{
    static struct batch b;
    struct tarn_client *c = client_open(redis, (struct tarn_options){.transports = "tcp"});
    fill_batch(&b);
    tarn_put(c, b.items, ITEMS, NULL);
    pause();
    return 1;
}

/* Some chunks were committed, others are being: each object is there whole, or is not, and can be put again.
 */
static void a_client_killed_between_its_chunks(void **state)
{
    struct world *w = *state;
    static struct batch b;
    const char *argv[] = {self, "--put", w->redis->url, NULL};
    relay_hold(relay, "COMMIT");
    struct harness_process *p = harness_spawn(w->h, "writer", argv);
    HARNESS_UNTIL(relay_held(relay, "COMMIT") == 2, WAIT_MS);
    relay_pass(relay);
    HARNESS_UNTIL(relay_held(relay, "COMMIT") > 0, WAIT_MS);
    harness_kill(p);
    relay_hold(relay, NULL);
    HARNESS_UNTIL(node_pool_figure(relay_node(relay), "reserved") == 0, WAIT_MS);
    fill_batch(&b);
    for (int i = 0; i < ITEMS; i++)
        b.items[i].status = TARN_E_NOT_FOUND;
    check_batch(w, &b);
    tarn_put(w->client, b.items, ITEMS, NULL);
    int there = 0;
    for (int i = 0; i < ITEMS; i++) {
        assert_true(b.items[i].status == 0 || b.items[i].status == TARN_E_EXISTS);
        there += b.items[i].status == TARN_E_EXISTS;
        b.items[i].status = 0;
    }
    assert_in_range(there, 1, ITEMS - 1);
    assert_int_equal(check_batch(w, &b), ITEMS);
    harness_passed(w->h);
}

/* Redis comes back without data between two COMMITs. */
static void redis_restarted_between_chunks(void **state)
{
    struct world *w = *state;
    static struct batch b;
    void *arg[] = {w, &b}, *rc;
    pthread_t thread;
    fill_batch(&b);
    relay_hold(relay, "COMMIT");
    assert_int_equal(pthread_create(&thread, NULL, put_batch, arg), 0);
    HARNESS_UNTIL(relay_held(relay, "COMMIT") == 2, WAIT_MS);
    relay_pass(relay);
    HARNESS_UNTIL(relay_held(relay, "COMMIT") > 0, WAIT_MS);
    harness_kill(w->redis->process);
    harness_redis_restart(w->redis);
    relay_hold(relay, NULL);
    pthread_join(thread, &rc);
    HARNESS_UNTIL(node_pool_figure(relay_node(relay), "reserved") == 0, WAIT_MS);
    int put = check_batch(w, &b);
    assert_true(put >= 1 && ((intptr_t)rc == 0) == (put == ITEMS));
    harness_passed(w->h);
}

/* The others' statuses are as if it had not been. */
static void a_node_killed_below_some_of_the_items(void **state)
{
    struct world *w = *state;
    static struct batch b;
    void *arg[] = {w, &b}, *rc;
    pthread_t thread;
    struct harness_node *other = world_node(w, "node1");
    fill_batch(&b);
    HARNESS_UNTIL(world_lists(w, "node1"), WAIT_MS);
    tarn_close(w->client);
    w->client = world_client(w, "tcp"); /* knows both */
    relay_hold(relay, "COMMIT");
    assert_int_equal(pthread_create(&thread, NULL, put_batch, arg), 0);
    HARNESS_UNTIL(relay_held(relay, "COMMIT") > 0, WAIT_MS);
    harness_kill(w->nodes[0]->process);
    relay_break(relay);
    pthread_join(thread, &rc);
    HARNESS_UNTIL(node_pool_figure(other->control, "reserved") == 0, WAIT_MS);
    for (int i = 0; i < ITEMS; i++)
        assert_true(b.items[i].status == 0 || b.items[i].status == TARN_E_NODE_DOWN);
    assert_true(check_batch(w, &b) >= 1);
    harness_passed(w->h);
}

#define CASE(fn_) cmocka_unit_test_setup_teardown(fn_, start, stop)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(two_chunks_are_committed_at_once),
        CASE(chunks_with_a_key_in_common_are_committed_one_after_the_other),
        CASE(a_client_killed_between_its_chunks),
        CASE(redis_restarted_between_chunks),
        CASE(a_node_killed_below_some_of_the_items),
    };
    self = argv[0];
    if (argc == 3 && strcmp(argv[1], "--put") == 0)
        return put_main(argv[2]);
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
