/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Readers and nodes that stop. A client reads from a node only while the node's record lives, even if it has
 * everything cached and mapped (docs/consistency.md, "Who can read an old copy").
 */
#include <signal.h>
#include <string.h>

#include "client/client.h"
#include "client/read_lease.h"
#include "tests/node_client.h"
#include "tests/world.h"

#define BEAT_MS (300 * harness_slower())
#define TTL_MS (3 * BEAT_MS)
#define BYTES 4096
#define BACK_MS 10000

static const struct world_plan plan = {.nodes = 2,
                                       .args = {"--pool", "cpu0:bytes=32M", "--heartbeat-ms", "300"},
                                       .client = {.timeout_ms = 5000}};

/* Records live so long that their end does not matter here. */
static const struct world_plan calm = {.nodes = 2,
                                       .args = {"--pool", "cpu0:bytes=32M", "--heartbeat-ms", "2000"},
                                       .client = {.timeout_ms = 5000}};

static const struct tarn_put_options on_node0 = {.size = sizeof on_node0, .place = "node0"};
static const struct tarn_put_options on_node1 = {.size = sizeof on_node1, .place = "node1"};
static const struct tarn_put_options replacing_on_node0 = {
    .size = sizeof replacing_on_node0, .place = "node0", .flags = TARN_PUT_REPLACE};

static int start(void **state)
{
    return world_start_client(state, &plan);
}

static int start_calm(void **state)
{
    return world_start_client(state, &calm);
}

/* Takes a view of "k", releases it at once, and returns the status. */
static int look(struct tarn_client *c)
{
    struct tarn_view v;
    struct tarn_key key = key_of("k");
    int status = tarn_view(c, &key, 0, &v);
    if (status == 0)
        tarn_release(c, &v);
    return status;
}

/* Every get is a hit in mapped memory. Only the lease can show that the node is gone. */
static void paused_node_is_not_read_past_its_record(void **state)
{
    struct world *w = *state;
    struct tarn_client *reader = world_client(w, "shm"), *viewer = world_client(w, "shm");
    char byte;
    assert_int_equal(client_put(w->client, "k", 'o', BYTES, &on_node1), 0);
    for (uint64_t until = harness_now_ms() + 2 * TTL_MS; harness_now_ms() < until; harness_pause()) {
        assert_int_equal(client_get(reader, "k", 'o', BYTES), 0);
        assert_int_equal(look(viewer), 0);
    }
    harness_signal(w->nodes[1]->process, SIGSTOP);
    uint64_t stopped = harness_now_ms();
    bool listed, read_on = false;
    do {
        listed = world_lists(w, "node1"); /* before the get begins */
        int status = client_read(reader, "k", BYTES, 0, &byte);
        read_on |= status == 0;
        if (!listed) {
            assert_int_equal(status, TARN_E_NOT_FOUND);
            assert_int_equal(look(viewer), TARN_E_NOT_FOUND);
        } else {
            look(viewer);
        }
        assert_true(harness_now_ms() - stopped < TTL_MS + 2000 * harness_slower());
    } while (listed);
    assert_true(read_on);                          /* the reader did not stop too early */
    harness_signal(w->nodes[1]->process, SIGCONT); /* other nodes may have given up its copies by now */
    HARNESS_UNTIL(client_put(w->client, "new", 'n', BYTES, &on_node1) == 0, BACK_MS);
    HARNESS_UNTIL(client_read(reader, "new", BYTES, 0, &byte) == 0, BACK_MS);
    tarn_close(viewer);
    tarn_close(reader);
    harness_passed(w->h);
}

/* The same while the key is replaced elsewhere. After the record's end only the new version is read. */
static void replaced_while_its_node_is_paused(void **state)
{
    struct world *w = *state;
    struct tarn_client *reader = world_client(w, "shm");
    char byte = 0;
    assert_int_equal(client_put(w->client, "k", 'o', BYTES, &on_node1), 0);
    for (uint64_t until = harness_now_ms() + TTL_MS; harness_now_ms() < until; harness_pause())
        assert_int_equal(client_get(reader, "k", 'o', BYTES), 0);
    harness_signal(w->nodes[1]->process, SIGSTOP);
    client_put(w->client, "k", 'n', BYTES, &replacing_on_node0);
    HARNESS_UNTIL(!world_lists(w, "node1"), BACK_MS);
    for (int i = 0; i < 500; i++)
        assert_int_equal(client_get(reader, "k", 'n', BYTES), 0);
    harness_signal(w->nodes[1]->process, SIGCONT);
    for (uint64_t until = harness_now_ms() + 2 * TTL_MS; harness_now_ms() < until; harness_pause())
        assert_int_equal(client_read(reader, "k", BYTES, 0, &byte) == 0 ? byte : 'n', 'n');
    tarn_close(reader);
    harness_passed(w->h);
}

/* A cached descriptor names a node that does not answer; the directory now names another location. The put
 * is still running meanwhile, because it must wait for that node. */
static void a_silent_copy_makes_the_client_look_up_again(void **state)
{
    struct world *w = *state;
    struct tarn_client *reader = world_client(w, "tcp");
    static char data[BYTES];
    struct tarn_piece piece = {.addr = data, .bytes = BYTES};
    struct tarn_item item = {.key = key_of("k"), .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(BYTES)};
    struct tarn_completion done;
    tarn_op op;
    char byte;
    memset(data, 'n', sizeof data);
    assert_int_equal(client_put(w->client, "k", 'o', BYTES, &on_node1), 0);
    assert_int_equal(client_get(reader, "k", 'o', BYTES), 0);
    harness_signal(w->nodes[1]->process, SIGSTOP);
    assert_int_equal(tarn_submit_put(w->client, &item, 1, &replacing_on_node0, 0, &op), 0);
    HARNESS_UNTIL(harness_redis_integer(w->redis, "HEXISTS", "tarn:default:o:k", "@node0/cpu0", NULL) == 1,
                  BACK_MS);
    uint64_t begun = harness_now_ms();
    assert_int_equal(client_read(reader, "k", BYTES, 0, &byte), 0);
    assert_int_equal(byte, 'n');
    assert_true(harness_now_ms() - begun < 2000 * harness_slower());
    harness_signal(w->nodes[1]->process, SIGCONT);
    assert_int_equal(tarn_wait(w->client, op, BACK_MS, &done), 0);
    tarn_close(reader);
    harness_passed(w->h);
}

static void wait_for_pause(struct world *w, bool without_redis)
{
    struct tarn_client *reader = world_client(w, "tcp");
    assert_int_equal(client_put(w->client, "k", 'o', BYTES, &on_node1), 0);
    assert_int_equal(client_get(reader, "k", 'o', BYTES), 0);
    char data[BYTES];
    struct tarn_piece piece = {.addr = data, .bytes = BYTES};
    struct tarn_item item = {.key = key_of("k"), .pieces = &piece, .npieces = 1};
    struct tarn_completion done;
    tarn_op op;
    if (without_redis)
        harness_signal(w->redis->process, SIGSTOP);
    harness_signal(w->nodes[1]->process, SIGSTOP);
    assert_int_equal(tarn_submit_get(reader, &item, 1, NULL, 0, &op), 0);
    assert_int_equal(tarn_wait(reader, op, without_redis ? 2000 : 600, &done), TARN_E_TIMEOUT);
    harness_signal(w->nodes[1]->process, SIGCONT);
    assert_int_equal(tarn_wait(reader, op, 5000 * harness_slower(), &done), 0);
    assert_int_equal(done.status, 0);
    tarn_close(reader);
    harness_passed(w->h);
}

/* If the directory has no other copy, the get waits for the pause to end. */
static void gets_wait_for_a_short_pause(void **state)
{
    wait_for_pause(*state, false);
}

/* If the directory does not answer, the node may. */
static void gets_wait_for_a_pause_without_redis(void **state)
{
    wait_for_pause(*state, true);
}

/* While the record lives the copy may come back: NODE_DOWN. After that it counts as gone. */
static void killed_nodes_copies_are_misses(void **state)
{
    struct world *w = *state;
    char data[3][BYTES];
    struct tarn_piece pieces[3];
    struct tarn_item items[3];
    static const char *const names[] = {"here", "lost", "here too"};
    for (int i = 0; i < 3; i++) {
        const struct tarn_put_options *o = i == 1 ? &on_node1 : &on_node0;
        assert_int_equal(client_put(w->client, names[i], 'v', BYTES, o), 0);
        assert_int_equal(client_get(w->client, names[i], 'v', BYTES), 0);
        pieces[i] = (struct tarn_piece){.addr = data[i], .bytes = BYTES};
        items[i] = (struct tarn_item){.key = key_of(names[i]), .pieces = &pieces[i], .npieces = 1};
    }
    harness_kill(w->nodes[1]->process);
    uint64_t killed = harness_now_ms();
    int status;
    /* By shared memory, a dead node's pool can be read until the client notices that the node has ended. */
    HARNESS_UNTIL(client_get(w->client, "lost", 'v', BYTES) != 0, 1000);
    while ((status = client_get(w->client, "lost", 'v', BYTES)) != TARN_E_NOT_FOUND) {
        assert_int_equal(status, TARN_E_NODE_DOWN);
        assert_true(harness_now_ms() - killed < TTL_MS + 1000 * harness_slower());
    }
    assert_int_equal(tarn_get(w->client, items, 3, NULL), TARN_E_NOT_FOUND);
    assert_int_equal(items[0].status, 0);
    assert_int_equal(items[1].status, TARN_E_NOT_FOUND);
    assert_int_equal(items[2].status, 0);
    struct tarn_hits *hits;
    struct tarn_key key = key_of("lost");
    assert_int_equal(tarn_lookup(w->client, &key, 1, NULL, &hits), 0);
    assert_int_equal(tarn_hits_state(hits, 0), TARN_STATE_MISS);
    tarn_hits_free(hits);
    harness_passed(w->h);
}

/* Nobody can replace anything, so cached gets continue past every lease, and also after Redis is back. */
static void cached_gets_continue_while_redis_is_away_for_all(void **state)
{
    struct world *w = *state;
    static const char *const by[] = {"shm", "tcp"};
    assert_int_equal(client_put(w->client, "k", 'v', BYTES, &on_node1), 0);
    for (int i = 0; i < 2; i++) {
        struct tarn_client *c = world_client(w, by[i]);
        client_gets_quickly_for(c, "k", 'v', BYTES, TTL_MS);
        harness_signal(w->redis->process, SIGSTOP);
        client_gets_quickly_for(c, "k", 'v', BYTES, 3 * TTL_MS);
        harness_signal(w->redis->process, SIGCONT);
        HARNESS_UNTIL(world_lists(w, "node1"), BACK_MS);
        client_gets_quickly_for(c, "k", 'v', BYTES, TTL_MS);
        tarn_close(c);
    }
    struct tarn_client *c = world_client(w, NULL);
    client_gets_quickly_for(c, "k", 'v', BYTES, TTL_MS);
    harness_kill(w->redis->process);
    client_gets_quickly_for(c, "k", 'v', BYTES, 3 * TTL_MS);
    tarn_close(c);
    harness_passed(w->h);
}

/* --- renewing leases while a client reads ----------------------------------------------------------- */

static uint64_t questions(struct tarn_client *c)
{
    pthread_mutex_lock(&c->leases.lock);
    uint64_t n = c->leases.questions;
    pthread_mutex_unlock(&c->leases.lock);
    return n;
}

/* True if the lease has not been used since the last question, and its renewal has been due for this long. */
static bool is_passed_over(struct tarn_client *c, const struct tarn_read_lease *l, uint64_t ns)
{
    uint64_t now = tarn_now_ns();
    pthread_mutex_lock(&c->leases.lock);
    bool passed = !atomic_load(&l->used) && now > l->due_ns + ns && tarn_read_lease_runs(l, now);
    pthread_mutex_unlock(&c->leases.lock);
    return passed;
}

/* The lease is renewed before it ends, although a get used it only shortly before. No get has to wait for
 * it. */
static void a_lease_used_late_is_renewed(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = world_client(w, "shm");
    assert_int_equal(client_put(w->client, "k", 'v', BYTES, &on_node1), 0);
    assert_int_equal(client_get(c, "k", 'v', BYTES), 0);
    const struct tarn_read_lease *l = &client_remote(c, "node1")->lease;
    for (uint64_t until = harness_now_ms() + 3 * BACK_MS; !is_passed_over(c, l, 100 * TARN_NS_PER_MS);
         harness_pause()) {
        assert_true(harness_now_ms() < until);
        if (!tarn_read_lease_runs(l, tarn_now_ns())) /* this process was stalled: use the lease again */
            assert_int_equal(client_get(c, "k", 'v', BYTES), 0);
    }
    uint64_t before = questions(c);
    assert_int_equal(client_get(c, "k", 'v', BYTES), 0);
    HARNESS_UNTIL(questions(c) > before, BACK_MS);
    tarn_close(c);
    harness_passed(w->h);
}

/* The client got the lease with the list of nodes, and has asked no question yet. During the misses its
 * thread goes to sleep. */
static void the_lease_of_a_copy_just_looked_up_is_renewed(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = world_client(w, "shm");
    struct tarn_key key = key_of("k");
    struct tarn_hits *hits;
    assert_int_equal(client_put(w->client, "k", 'v', BYTES, &on_node1), 0);
    char byte;
    for (int i = 0; i < 50; i++)
        assert_int_equal(client_read(c, "another", BYTES, 0, &byte), TARN_E_NOT_FOUND);
    assert_int_equal(tarn_lookup(c, &key, 1, NULL, &hits), 0);
    tarn_hits_free(hits);
    uint64_t before = questions(c);
    assert_int_equal(client_get(c, "k", 'v', BYTES), 0);
    HARNESS_UNTIL(questions(c) > before, BACK_MS);
    tarn_close(c);
    harness_passed(w->h);
}

#define CASE(fn_) cmocka_unit_test_setup_teardown(fn_, start, world_stop)
#define CALM(fn_) cmocka_unit_test_setup_teardown(fn_, start_calm, world_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(paused_node_is_not_read_past_its_record),
        CASE(replaced_while_its_node_is_paused),
        CALM(a_silent_copy_makes_the_client_look_up_again),
        CALM(gets_wait_for_a_short_pause),
        CALM(gets_wait_for_a_pause_without_redis),
        CASE(killed_nodes_copies_are_misses),
        CASE(cached_gets_continue_while_redis_is_away_for_all),
        CALM(a_lease_used_late_is_renewed),
        CALM(the_lease_of_a_copy_just_looked_up_is_renewed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
