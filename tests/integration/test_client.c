/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libtarn on real nodes and a real Redis: placement, replicas, failover, bounded delays, views,
 * submitted operations, and readers under a writer that never stops replacing.
 */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/node_client.h"
#include "tests/world.h"

#define TIMEOUT_MS 8000
#define NODES 3

static const struct world_plan usual = {.nodes = NODES,
                                        .args = {"--pool", "cpu0:bytes=64M", "--heartbeat-ms", "200"},
                                        .client = {.timeout_ms = TIMEOUT_MS}};
static const struct world_plan small = {.nodes = NODES,
                                        .args = {"--pool", "cpu0:bytes=4M", "--heartbeat-ms", "200"},
                                        .client = {.timeout_ms = TIMEOUT_MS}};
static const struct world_plan limited = {
    .nodes = NODES,
    .args = {"--pool", "cpu0:bytes=64M", "--heartbeat-ms", "200", "--session-reserved-max", "6M"},
    .client = {.timeout_ms = TIMEOUT_MS}};

static int setup(void **state)
{
    return world_start_client(state, &usual);
}

static int setup_small(void **state)
{
    return world_start_client(state, &small);
}

static int setup_limited(void **state)
{
    return world_start_client(state, &limited);
}

/* --- helpers ------------------------------------------------------------------------------------ */

static int count_copies(void *arg, const struct tarn_object *o)
{
    uint32_t *seen = arg; /* bit i: a copy on node<i> */
    for (uint32_t i = 0; i < o->ncopies; i++)
        *seen |= 1u << (o->copies[i].node[4] - '0');
    return 0;
}

static uint32_t copies_of(struct tarn_client *c, const char *key)
{
    struct tarn_key k = key_of(key);
    uint32_t seen = 0;
    assert_int_equal(tarn_stat(c, &k, 0, count_copies, &seen), 0);
    return seen;
}

/* A key whose default place is this node. */
static void key_on(struct world *w, int node, char key[32])
{
    for (int i = 0; i < 1000; i++) {
        snprintf(key, 32, "on-%d-%d", node, i);
        assert_int_equal(client_put(w->client, key, 'x', 10, NULL), 0);
        if (copies_of(w->client, key) == 1u << node)
            return;
        struct tarn_key k = key_of(key);
        assert_int_equal(tarn_remove(w->client, &k, 1, NULL, 0), 0);
    }
    fail_msg("no key falls on node %d", node);
}

/* --- placement ---------------------------------------------------------------------------------- */

static void copies_go_to_the_requested_place(void **state)
{
    struct world *w = *state;
    struct tarn_put_options named = {.size = sizeof named, .place = "node1"},
                            pool = {.size = sizeof pool, .place = "node2/cpu0"},
                            local = {.size = sizeof local, .place = "local"},
                            none = {.size = sizeof none, .place = "node9"},
                            many = {.size = sizeof many, .replicas = 4};
    assert_int_equal(client_put(w->client, "named", 'a', 1000, &named), 0);
    assert_int_equal(copies_of(w->client, "named"), 2);
    assert_int_equal(client_put(w->client, "pool", 'a', 1000, &pool), 0);
    assert_int_equal(copies_of(w->client, "pool"), 4);
    assert_int_equal(client_put(w->client, "local", 'a', 1000, &local), 0);
    assert_int_equal(client_put(w->client, "none", 'a', 1000, &none), TARN_E_NODE_DOWN);
    assert_non_null(strstr(tarn_last_error(), "node9"));
    assert_int_equal(client_put(w->client, "many", 'a', 1000, &many), TARN_E_NODE_DOWN);
    assert_non_null(strstr(tarn_last_error(), "4 replicas"));
    assert_int_equal(client_put(w->client, "twice", 'b', MIB, &twice), 0);
    assert_int_equal(__builtin_popcount(copies_of(w->client, "twice")), 2);
    assert_int_equal(client_get(w->client, "twice", 'b', MIB), 0);
    struct tarn_key k = key_of("twice");
    assert_int_equal(tarn_remove(w->client, &k, 1, NULL, 0), 0);
    assert_int_equal(client_get(w->client, "twice", 'b', MIB), TARN_E_NOT_FOUND);
    assert_int_equal(tarn_remove(w->client, &k, 1, NULL, 0), TARN_E_NOT_FOUND);
    harness_passed(w->h);
}

static void replaced_on_another_node_is_never_read_again(void **state)
{
    struct world *w = *state;
    struct tarn_client *reader = world_client(w, NULL), *alone = world_client(w, "tcp");
    for (int i = 0; i < 30; i++) {
        char byte = (char)('a' + i % 26);
        struct tarn_put_options o = {
            .size = sizeof o, .flags = TARN_PUT_REPLACE, .place = w->nodes[i % NODES]->id};
        assert_int_equal(client_put(w->client, "moving", byte, 5000, &o), 0);
        assert_int_equal(client_get(w->client, "moving", byte, 5000), 0);
        /* The readers' cached descriptors are from the previous round. By tcp, each get has the link to
         * itself. */
        assert_int_equal(client_get(reader, "moving", byte, 5000), 0);
        assert_int_equal(client_get(alone, "moving", byte, 5000), 0);
        assert_int_equal(copies_of(w->client, "moving"), 1u << i % NODES);
    }
    tarn_close(alone);
    tarn_close(reader);
    harness_passed(w->h);
}

static void a_put_uses_the_next_node_when_one_is_full(void **state)
{
    struct world *w = *state;
    struct tarn_put_options pinned = {.size = sizeof pinned, .flags = TARN_PUT_PIN};
    char key[32];
    int stored = 0;
    for (int i = 0; i < 12; i++) { /* 12 MiB in all, pinned: fills every node */
        snprintf(key, sizeof key, "pinned-%d", i);
        int rc = client_put(w->client, key, 'p', MIB - 4096, &pinned);
        if (rc != 0 && rc != TARN_E_FULL)
            fail_msg("%s: %s", key, tarn_last_error());
        stored += rc == 0;
    }
    assert_int_equal(stored, 12);
    assert_int_equal(client_put(w->client, "one more", 'p', MIB, &pinned), TARN_E_FULL);
    assert_int_equal(client_put(w->client, "giant", 'p', 5 * MIB, NULL), TARN_E_TOO_LARGE);
    harness_passed(w->h);
}

/* --- batches ------------------------------------------------------------------------------------ */

static void large_batches_with_every_size(void **state)
{
    struct world *w = *state;
    enum { N = 400 };
    static char keys[N][16];
    static struct tarn_piece in[N], out[N];
    static struct tarn_item items[N];
    for (int round = 0; round < 2; round++) {
        struct tarn_put_options o = {.size = sizeof o, .replicas = round ? 2 : 1, .flags = TARN_PUT_REPLACE};
        for (int i = 0; i < N; i++) {
            size_t bytes = (size_t)i * 397 % 100001;
            snprintf(keys[i], sizeof keys[i], "batch-%d", i);
            in[i] = (struct tarn_piece){.addr = malloc(bytes + 1), .bytes = bytes};
            memset(in[i].addr, i + round, bytes + 1);
            items[i] = (struct tarn_item){
                .key = key_of(keys[i]), .pieces = &in[i], .npieces = 1, .tensor = tarn_bytes(bytes)};
        }
        if (tarn_put(w->client, items, N, &o) != 0)
            fail_msg("%s", tarn_last_error());
        for (int i = 0; i < N; i++) {
            out[i] = (struct tarn_piece){.addr = malloc(in[i].bytes + 1), .bytes = in[i].bytes};
            items[i] = (struct tarn_item){.key = key_of(keys[i]), .pieces = &out[i], .npieces = 1};
        }
        struct tarn_client *fresh = world_client(w, round ? "tcp" : NULL);
        if (tarn_get(fresh, items, N, NULL) != 0)
            fail_msg("%s", tarn_last_error());
        struct tarn_stats s = {.size = sizeof s};
        assert_int_equal(tarn_client_stats(fresh, &s), 0);
        assert_int_equal(s.gets, N);
        tarn_close(fresh);
        for (int i = 0; i < N; i++) {
            assert_memory_equal(in[i].addr, out[i].addr, in[i].bytes);
            free(in[i].addr);
            free(out[i].addr);
        }
    }
    harness_passed(w->h);
}

/* Invalid items are found even if earlier items are already in flight. Other items of the batch are not
 * affected. */
static void invalid_items_of_a_batch_are_found(void **state)
{
    struct world *w = *state;
    enum { N = 24 };
    struct tarn_client *c = world_client(w, "tcp");
    static char keys[N][16], data[N][3000];
    struct tarn_piece pieces[N];
    struct tarn_item items[N];
    for (int i = 0; i < N; i++) {
        snprintf(keys[i], sizeof keys[i], "valid-%d", i);
        assert_int_equal(client_put(c, keys[i], (char)('a' + i), sizeof data[i], NULL), 0);
    }
    /* The last round is submitted, and has no valid item. */
    for (int round = 0; round < 4; round++) {
        struct tarn_stats before = {.size = sizeof before}, after = {.size = sizeof after};
        struct tarn_completion done;
        memset(data, 0, sizeof data);
        assert_int_equal(tarn_client_stats(c, &before), 0);
        for (int i = 0; i < N; i++) {
            pieces[i] = (struct tarn_piece){.addr = data[i], .bytes = sizeof data[i]};
            items[i] =
                (struct tarn_item){.key = key_of(keys[i]), .pieces = &pieces[i], .npieces = 1, .status = 7};
            if (round == 3 || i % 11 == 1)
                items[i].pieces = NULL;
            if (i == N - 1)
                items[i].key = (struct tarn_key){0};
        }
        if (round < 2) {
            assert_int_equal(tarn_get(c, items, N, NULL), TARN_E_INVALID);
            assert_non_null(strstr(tarn_last_error(), "item 1:"));
        } else {
            struct pollfd fd = {tarn_event_fd(c), POLLIN, 0};
            assert_int_equal(tarn_submit_get(c, items, N, NULL, 0, NULL), 0);
            assert_int_equal(poll(&fd, 1, TIMEOUT_MS), 1);
            assert_int_equal(tarn_drain(c, &done, 1), 1);
            assert_int_equal(done.status, TARN_E_INVALID);
        }
        uint64_t bad = 0;
        for (int i = 0; i < N; i++) {
            bool valid = items[i].pieces && items[i].key.data;
            assert_int_equal(items[i].status, valid ? 0 : TARN_E_INVALID);
            for (size_t b = 0; b < sizeof data[i]; b++)
                assert_int_equal(data[i][b], valid ? 'a' + i : 0);
            bad += !valid;
        }
        assert_int_equal(tarn_client_stats(c, &after), 0);
        assert_int_equal(after.errors - before.errors, bad);
        assert_int_equal(after.gets - before.gets, N - bad);
        assert_int_equal(after.get_bytes - before.get_bytes, (N - bad) * sizeof data[0]);
    }
    tarn_close(c);
    harness_passed(w->h);
}

static void same_key_twice_in_a_batch(void **state)
{
    struct world *w = *state;
    char a[100], b[100];
    memset(a, 'a', sizeof a);
    memset(b, 'b', sizeof b);
    struct tarn_piece pa = {.addr = a, .bytes = sizeof a}, pb = {.addr = b, .bytes = sizeof b};
    struct tarn_item items[2] = {
        {.key = key_of("double"), .pieces = &pa, .npieces = 1, .tensor = tarn_bytes(100)},
        {.key = key_of("double"), .pieces = &pb, .npieces = 1, .tensor = tarn_bytes(100)}};
    assert_int_equal(tarn_put(w->client, items, 2, NULL), TARN_E_EXISTS);
    assert_int_equal(items[0].status, 0);
    assert_int_equal(items[1].status, TARN_E_EXISTS);
    assert_non_null(strstr(tarn_last_error(), "double"));
    assert_int_equal(client_get(w->client, "double", 'a', 100), 0);
    assert_int_equal(tarn_put(w->client, items, 2, &replacing), 0);
    assert_int_equal(client_get(w->client, "double", 'b', 100), 0);
    harness_passed(w->h);
}

/* Of a key's items the last one stays when they replace, else the first one. */
static void keys_that_come_again_in_a_batch(void **state)
{
    enum { N = 200, BYTES = 64 };
    static const int periods[] = {1, 2, 16, 17, 33, 64, 100};
    struct world *w = *state;
    static char data[N][BYTES], keys[N][24];
    struct tarn_piece pieces[N];
    struct tarn_item items[N];
    for (size_t k = 0; k < sizeof periods / sizeof periods[0]; k++)
        for (int replaces = 0; replaces < 2; replaces++) {
            for (int i = 0; i < N; i++) {
                memset(data[i], i, BYTES);
                snprintf(keys[i], sizeof keys[i], "again-%zu-%d", k, i % periods[k]);
                pieces[i] = (struct tarn_piece){.addr = data[i], .bytes = BYTES};
                items[i] = (struct tarn_item){
                    .key = key_of(keys[i]), .pieces = &pieces[i], .npieces = 1, .tensor = tarn_bytes(BYTES)};
            }
            assert_int_equal(tarn_put(w->client, items, N, replaces ? &replacing : NULL),
                             replaces ? 0 : TARN_E_EXISTS);
            for (int i = 0; i < N; i++)
                assert_int_equal(items[i].status, replaces || i < periods[k] ? 0 : TARN_E_EXISTS);
            for (int i = 0; i < periods[k]; i++) {
                int stays = replaces ? i + (N - 1 - i) / periods[k] * periods[k] : i;
                assert_int_equal(client_get(w->client, keys[i], (char)stays, BYTES), 0);
            }
        }
    harness_passed(w->h);
}

/* A session may reserve 6 MiB at a time at this node. The batch needs far more. */
static void batch_larger_than_the_session_may_reserve(void **state)
{
    struct world *w = *state;
    enum { N = 40 };
    static char keys[N][16];
    struct tarn_item items[N];
    char *data = malloc(MIB);
    struct tarn_piece piece = {.addr = data, .bytes = MIB};
    memset(data, 'L', MIB);
    for (int i = 0; i < N; i++) {
        snprintf(keys[i], sizeof keys[i], "limit-%d", i);
        items[i] = (struct tarn_item){
            .key = key_of(keys[i]), .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(MIB)};
    }
    struct tarn_put_options o = {.size = sizeof o, .place = "node0"};
    if (tarn_put(w->client, items, N, &o) != 0)
        fail_msg("%s", tarn_last_error());
    client_get_each(w->client, "limit-", N, 'L', MIB);
    free(data);
    harness_passed(w->h);
}

/* --- failover ----------------------------------------------------------------------------------- */

static int node_of(uint32_t copies)
{
    return __builtin_ctz(copies);
}

/* Whichever copy the reader prefers: all gets from the killed node continue with the second copy. */
static void a_get_does_not_wait_for_a_killed_replica(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = world_client(w, "tcp");
    client_put_each(c, "r-", 20, 'r', 100000, &twice);
    client_get_each(c, "r-", 20, 'r', 100000);
    harness_kill(w->nodes[node_of(copies_of(c, "r-0"))]->process);
    uint64_t before = harness_now_ms();
    client_get_each(c, "r-", 20, 'r', 100000);
    assert_true(harness_now_ms() - before < 2000 * harness_slower());
    tarn_close(c);
    harness_passed(w->h);
}

static void a_get_of_the_only_copy_on_a_killed_node_fails_at_once(void **state)
{
    struct world *w = *state;
    char key[32];
    key_on(w, 1, key);
    assert_int_equal(client_get(w->client, key, 'x', 10), 0);
    harness_kill(w->nodes[1]->process);
    uint64_t before = harness_now_ms();
    /* By shared memory, the dead node's pool can be read until the client notices that the node has ended. */
    HARNESS_UNTIL(client_get(w->client, key, 'x', 10) != 0, 2000);
    int rc = client_get(w->client, key, 'x', 10);
    assert_true(rc == TARN_E_NODE_DOWN || rc == TARN_E_NOT_FOUND);
    assert_true(harness_now_ms() - before < 2000 * harness_slower());
    /* The key can be put again, elsewhere. */
    HARNESS_UNTIL(client_put(w->client, key, 'y', 10, &replacing) == 0, 5000);
    assert_int_equal(client_get(w->client, key, 'y', 10), 0);
    harness_passed(w->h);
}

static void paused_node_costs_one_bounded_delay(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = world_client(w, "tcp");
    client_put_each(c, "p-", 20, 'p', 50000, &twice);
    client_get_each(c, "p-", 20, 'p', 50000);
    harness_signal(w->nodes[0]->process, SIGSTOP);
    uint64_t before = harness_now_ms(), longest = client_get_each(c, "p-", 20, 'p', 50000);
    assert_true(longest < 1500 * harness_slower());
    /* One delay in all, not one for each get. */
    assert_true(harness_now_ms() - before < longest + 1500 * harness_slower());
    /* Puts use other nodes, too. */
    before = harness_now_ms();
    client_put_each(c, "q-", 10, 'q', 50000, NULL);
    assert_true(harness_now_ms() - before < 2000 * harness_slower());
    harness_signal(w->nodes[0]->process, SIGCONT);
    /* The client uses the node again by itself. */
    struct tarn_put_options there = {.size = sizeof there, .place = "node0", .flags = TARN_PUT_REPLACE};
    HARNESS_UNTIL(client_put(c, "back", 'b', 100, &there) == 0, 10000);
    assert_int_equal(client_get(c, "back", 'b', 100), 0);
    tarn_close(c);
    harness_passed(w->h);
}

/* The answer to RESERVE comes after the caller has given up. The reserved space must be freed. */
static void late_reservation_is_given_back(void **state)
{
    struct world *w = *state;
    struct tarn_put_options there = {.size = sizeof there, .place = "node0", .timeout_ms = 300};
    assert_int_equal(client_put(w->client, "early", 'e', 1000, &there), 0);
    harness_signal(w->nodes[0]->process, SIGSTOP);
    uint64_t before = harness_now_ms();
    assert_int_equal(client_put(w->client, "late", 'l', 1000, &there), TARN_E_TIMEOUT);
    assert_true(harness_now_ms() - before < 1500 * harness_slower());
    harness_signal(w->nodes[0]->process, SIGCONT);
    HARNESS_UNTIL(node_pool_figure(w->nodes[0]->control, "reserved") == 0, 5000);
    HARNESS_UNTIL(client_put(w->client, "late", 'l', 1000, &there) == 0, 5000);
    harness_passed(w->h);
}

static void a_node_started_later_is_found(void **state)
{
    struct world *w = *state;
    struct harness_node *n3 = world_node(w, "node3");
    struct tarn_client *other = world_client(w, NULL);
    struct tarn_put_options there = {.size = sizeof there, .place = "node3"};
    assert_non_null(n3);
    assert_int_equal(client_put(other, "new", 'n', 1000, &there), 0);
    assert_int_equal(client_get(w->client, "new", 'n', 1000), 0); /* this client is older than n3 */
    assert_int_equal(client_put(w->client, "new2", 'n', 1000, &there), 0);
    tarn_close(other);
    harness_passed(w->h);
}

/* TARN_GET_NOW skips items that need waiting. It does not touch their memory, whatever their result would
 * be. */
static void get_now_skips_items_that_need_waiting(void **state)
{
    struct world *w = *state;
    char data[2][100];
    struct tarn_piece pieces[2] = {{.addr = data[0], .bytes = 100}, {.addr = data[1], .bytes = 100}};
    struct tarn_item items[2] = {{.key = key_of("known"), .pieces = &pieces[0], .npieces = 1},
                                 {.key = key_of("unknown"), .pieces = &pieces[1], .npieces = 1}};
    struct tarn_get_options o = {.size = sizeof o, .flags = TARN_GET_NOW};
    struct tarn_stats stats = {.size = sizeof stats};

    assert_int_equal(client_put(w->client, "known", 'k', 100, NULL), 0);
    struct tarn_client *fresh = world_client(w, "shm"), *far = world_client(w, "tcp");
    memset(data, 1, sizeof data);
    assert_int_equal(tarn_get(fresh, items, 2, &o), TARN_E_AGAIN);
    assert_non_null(strstr(tarn_last_error(), "TARN_GET_NOW"));
    assert_int_equal(items[0].status, TARN_E_AGAIN);
    assert_int_equal(items[1].status, TARN_E_AGAIN);
    assert_int_equal(data[0][0], 1);

    assert_int_equal(tarn_get(fresh, items, 1, NULL), 0);
    data[0][0] = 1;
    assert_int_equal(tarn_get(fresh, items, 2, &o), TARN_E_AGAIN);
    assert_int_equal(items[0].status, 0);
    assert_int_not_equal(data[0][0], 1);
    assert_int_equal(items[1].status, TARN_E_AGAIN);
    assert_int_equal(tarn_client_stats(fresh, &stats), 0);
    assert_int_equal(stats.errors + stats.misses, 0);

    assert_int_equal(tarn_get(far, items, 1, NULL), 0);
    assert_int_equal(tarn_get(far, items, 1, &o), TARN_E_AGAIN); /* the get would have to wait for a reply */
    tarn_close(far);
    tarn_close(fresh);
    harness_passed(w->h);
}

static void hits_and_cache_outlive_redis(void **state)
{
    struct world *w = *state;
    struct tarn_key keys[2] = {key_of("known"), key_of("unknown")};
    char data[1000], byte;
    struct tarn_piece piece = {.addr = data, .bytes = sizeof data};
    struct tarn_item item = {.key = keys[0], .pieces = &piece, .npieces = 1};
    struct tarn_hits *hits;
    assert_int_equal(client_put(w->client, "known", 'k', 1000, NULL), 0);
    struct tarn_client *fresh = world_client(w, NULL);
    assert_int_equal(tarn_lookup(fresh, keys, 2, NULL, &hits), 0);
    assert_int_equal(tarn_hits_state(hits, 0), TARN_STATE_HIT);
    assert_int_equal(tarn_hits_state(hits, 1), TARN_STATE_MISS);
    harness_kill(w->redis->process);
    struct tarn_get_options o = {.size = sizeof o, .hits = hits};
    assert_int_equal(tarn_get(fresh, &item, 1, &o), 0);
    assert_int_equal(client_get(w->client, "known", 'k', 1000), 0);
    int rc = client_read(w->client, "unknown", 10, 500, &byte);
    assert_true(rc == TARN_E_DIRECTORY || rc == TARN_E_TIMEOUT);
    tarn_hits_free(hits);
    tarn_close(fresh);
    harness_passed(w->h);
}

/* --- views -------------------------------------------------------------------------------------- */

static void a_view_keeps_its_bytes_when_the_object_changes(void **state)
{
    struct world *w = *state;
    struct tarn_key k = key_of("seen");
    struct tarn_view v;
    assert_int_equal(client_put(w->client, "seen", 'v', 100000, NULL), 0);
    assert_int_equal(tarn_view(w->client, &k, 0, &v), 0);
    assert_int_equal(v.tensor.bytes, 100000);
    assert_int_equal(client_put(w->client, "seen", 'w', 100000, &replacing), 0);
    /* Overwrites each node's 4 MiB several times. */
    client_put_each(w->client, "flood-", 60, 'f', MIB / 2, NULL);
    for (size_t i = 0; i < 100000; i++)
        if (((const char *)v.addr)[i] != 'v')
            fail_msg("byte %zu of the view has changed", i);
    tarn_release(w->client, &v);
    struct tarn_key none = key_of("nothing");
    assert_int_equal(tarn_view(w->client, &none, 0, &v), TARN_E_NOT_FOUND);
    struct tarn_client *far = world_client(w, "tcp");
    assert_int_equal(client_put(far, "far", 'f', 10, NULL), 0);
    k = key_of("far");
    assert_int_equal(tarn_view(far, &k, 0, &v), TARN_E_NOT_REACHABLE);
    tarn_close(far);
    harness_passed(w->h);
}

/* --- submitted operations ----------------------------------------------------------------------- */

static void sixty_four_gets_in_flight(void **state)
{
    struct world *w = *state;
    enum { N = 64 };
    struct tarn_client *c = world_client(w, "tcp");
    static char keys[N][16], data[N][5000];
    struct tarn_piece pieces[N];
    struct tarn_item items[N];
    bool seen[N] = {false};
    for (int i = 0; i < N; i++) {
        snprintf(keys[i], sizeof keys[i], "async-%d", i);
        if (i % 8) /* every eighth is a miss */
            assert_int_equal(client_put(c, keys[i], (char)('0' + i), 5000, NULL), 0);
    }
    for (int i = 0; i < N; i++) {
        tarn_op op;
        pieces[i] = (struct tarn_piece){.addr = data[i], .bytes = sizeof data[i]};
        items[i] = (struct tarn_item){.key = key_of(keys[i]), .pieces = &pieces[i], .npieces = 1};
        assert_int_equal(tarn_submit_get(c, &items[i], 1, NULL, (uint64_t)i, &op), 0);
    }
    for (int left = N; left > 0;) {
        struct tarn_completion done[10];
        struct pollfd fd = {tarn_event_fd(c), POLLIN, 0};
        assert_int_equal(poll(&fd, 1, TIMEOUT_MS), 1);
        int n = tarn_drain(c, done, 10);
        for (int k = 0; k < n; k++) {
            int i = (int)done[k].cookie;
            assert_false(seen[i]);
            seen[i] = true;
            assert_int_equal(done[k].status, i % 8 ? 0 : TARN_E_NOT_FOUND);
            assert_int_equal(items[i].status, done[k].status);
            for (size_t b = 0; i % 8 && b < sizeof data[i]; b++)
                assert_int_equal(data[i][b], '0' + i);
        }
        left -= n;
    }
    struct pollfd fd = {tarn_event_fd(c), POLLIN, 0};
    assert_int_equal(poll(&fd, 1, 0), 0);
    tarn_close(c);
    harness_passed(w->h);
}

/* A get from a paused node ends only by a cancel. Others on the same link continue when the node wakes. */
static void canceled_get_ends_at_once_and_alone(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = world_client(w, "tcp");
    struct tarn_put_options there = {.size = sizeof there, .place = "node0"};
    char a[1000], b[1000];
    struct tarn_piece pa = {.addr = a, .bytes = 1000}, pb = {.addr = b, .bytes = 1000};
    struct tarn_item ia = {.key = key_of("a"), .pieces = &pa, .npieces = 1},
                     ib = {.key = key_of("b"), .pieces = &pb, .npieces = 1};
    struct tarn_completion done;
    tarn_op oa, ob;
    assert_int_equal(client_put(c, "a", 'a', 1000, &there), 0);
    assert_int_equal(client_put(c, "b", 'b', 1000, &there), 0);
    assert_int_equal(client_get(c, "a", 'a', 1000), 0);
    harness_signal(w->nodes[0]->process, SIGSTOP);
    assert_int_equal(tarn_submit_get(c, &ia, 1, NULL, 1, &oa), 0);
    assert_int_equal(tarn_submit_get(c, &ib, 1, NULL, 2, &ob), 0);
    assert_int_equal(tarn_wait(c, oa, 50, &done), TARN_E_TIMEOUT);
    uint64_t before = harness_now_ms();
    assert_int_equal(tarn_cancel(c, oa), 0);
    assert_true(harness_now_ms() - before < 1000 * harness_slower());
    memset(a, 'z', sizeof a);
    assert_int_equal(tarn_wait(c, oa, 0, &done), 0);
    assert_int_equal(done.status, TARN_E_CANCELED);
    harness_signal(w->nodes[0]->process, SIGCONT);
    assert_int_equal(tarn_wait(c, ob, 0, &done), 0);
    if (done.status != 0)
        fail_msg("the other get: %s", done.error);
    assert_int_equal(b[999], 'b');
    for (size_t i = 0; i < sizeof a; i++)
        assert_int_equal(a[i], 'z');
    tarn_close(c);
    harness_passed(w->h);
}

static void close_ends_operations_in_flight(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = world_client(w, "tcp");
    enum { N = 20 };
    static char data[N][1000];
    static char keys[N][16];
    struct tarn_piece pieces[N];
    struct tarn_item items[N];
    for (int i = 0; i < N; i++) {
        snprintf(keys[i], sizeof keys[i], "c-%d", i);
        assert_int_equal(client_put(c, keys[i], 'c', 1000, &twice), 0);
    }
    for (int i = 0; i < NODES; i++)
        harness_signal(w->nodes[i]->process, SIGSTOP);
    for (int i = 0; i < N; i++) {
        pieces[i] = (struct tarn_piece){.addr = data[i], .bytes = 1000};
        items[i] = (struct tarn_item){
            .key = key_of(keys[i]), .pieces = &pieces[i], .npieces = 1, .tensor = tarn_bytes(1000)};
        tarn_op op;
        if (i % 2)
            assert_int_equal(tarn_submit_get(c, &items[i], 1, NULL, 0, &op), 0);
        else
            assert_int_equal(tarn_submit_put(c, &items[i], 1, &replacing, 0, &op), 0);
    }
    uint64_t before = harness_now_ms();
    tarn_close(c);
    assert_true(harness_now_ms() - before < 3000 * harness_slower());
    memset(data, 'z', sizeof data);
    for (int i = 0; i < NODES; i++)
        harness_signal(w->nodes[i]->process, SIGCONT);
    for (int i = 0; i < N; i++)
        for (size_t b = 0; b < 1000; b++)
            assert_int_equal(data[i][b], 'z');
    harness_passed(w->h);
}

static void deregister_refuses_memory_in_flight(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = world_client(w, "tcp");
    struct tarn_put_options there = {.size = sizeof there, .place = "node0"};
    char data[1000];
    struct tarn_piece piece = {.addr = data, .bytes = 1000};
    struct tarn_item item = {.key = key_of("reg"), .pieces = &piece, .npieces = 1};
    struct tarn_completion done;
    struct tarn_mr *mr;
    tarn_op op;
    assert_int_equal(tarn_register(c, data, sizeof data, TARN_MEMORY_HOST, &mr), 0);
    assert_int_equal(client_put(c, "reg", 'r', 1000, &there), 0);
    harness_signal(w->nodes[0]->process, SIGSTOP);
    assert_int_equal(tarn_submit_get(c, &item, 1, NULL, 0, &op), 0);
    assert_int_equal(tarn_deregister(c, mr), TARN_E_BUSY);
    assert_int_equal(tarn_cancel(c, op), 0);
    assert_int_equal(tarn_deregister(c, mr), 0);
    assert_int_equal(tarn_drain(c, &done, 1), 1);
    harness_signal(w->nodes[0]->process, SIGCONT);
    tarn_close(c);
    harness_passed(w->h);
}

/* --- readers under a writer --------------------------------------------------------------------- */

struct torn {
    struct tarn_client *client;
    size_t bytes;
    _Atomic bool stop;
    _Atomic uint64_t puts;
    int failed; /* of the writer */
};

static void *keep_replacing(void *arg)
{
    struct torn *t = arg;
    uint64_t *data = malloc(t->bytes);
    struct tarn_piece piece = {.addr = data, .bytes = t->bytes};
    for (uint64_t v = 1; !atomic_load(&t->stop) && t->failed == 0; v++) {
        struct tarn_item item = {
            .key = key_of("torn"), .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(t->bytes)};
        for (size_t i = 0; i < t->bytes / 8; i++)
            data[i] = v;
        t->failed = tarn_put(t->client, &item, 1, &replacing);
        atomic_fetch_add(&t->puts, 1);
    }
    free(data);
    return NULL;
}

/* Every read succeeds and returns one version, and versions never go back. */
static void readers_see_whole_versions_by(struct world *w, const char *transport, size_t bytes)
{
    struct torn t = {.client = world_client(w, transport), .bytes = bytes};
    struct tarn_client *reader = world_client(w, transport);
    uint64_t *data = calloc(1, bytes), last = 0, reads = 0;
    pthread_t thread;
    assert_int_equal(client_put(t.client, "torn", 0, bytes, &replacing), 0);
    assert_int_equal(pthread_create(&thread, NULL, keep_replacing, &t), 0);
    for (uint64_t end = harness_now_ms() + 1500; harness_now_ms() < end; reads++) {
        struct tarn_piece piece = {.addr = data, .bytes = bytes};
        struct tarn_item item = {.key = key_of("torn"), .pieces = &piece, .npieces = 1};
        if (tarn_get(reader, &item, 1, NULL) != 0)
            fail_msg("refused read: %s", tarn_last_error());
        for (size_t i = 1; i < bytes / 8; i++)
            if (data[i] != data[0])
                fail_msg("torn read: %lu at 0, %lu at %zu", (unsigned long)data[0], (unsigned long)data[i],
                         i);
        if (data[0] < last)
            fail_msg("version %lu after %lu", (unsigned long)data[0], (unsigned long)last);
        last = data[0];
    }
    atomic_store(&t.stop, true);
    pthread_join(thread, NULL);
    assert_int_equal(t.failed, 0);
    assert_true(reads > 10);
    assert_true(atomic_load(&t.puts) > 10);
    tarn_close(reader);
    tarn_close(t.client);
    free(data);
}

static void no_torn_and_no_refused_read_by_shm(void **state)
{
    struct world *w = *state;
    readers_see_whole_versions_by(w, "shm", 4096);
    readers_see_whole_versions_by(w, "shm", 2 * MIB);
    harness_passed(w->h);
}

static void no_torn_and_no_refused_read_by_tcp(void **state)
{
    struct world *w = *state;
    readers_see_whole_versions_by(w, "tcp", 4096);
    readers_see_whole_versions_by(w, "tcp", 2 * MIB);
    harness_passed(w->h);
}

/* --- other -------------------------------------------------------------------------------------- */

static void forked_child_is_refused(void **state)
{
    struct world *w = *state;
    assert_int_equal(client_put(w->client, "fork", 'f', 10, NULL), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct tarn_key k = key_of("fork");
        struct tarn_hits *hits;
        int rc = tarn_lookup(w->client, &k, 1, NULL, &hits);
        tarn_close(w->client);
        _exit(rc == TARN_E_CLOSED ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(client_get(w->client, "fork", 'f', 10), 0);
    harness_passed(w->h);
}

static int count_nodes(void *arg, const struct tarn_node_info *n)
{
    assert_true(n->same_host);
    assert_int_equal(n->npools, 1);
    assert_string_equal(n->pools[0].transport, "shm");
    ++*(int *)arg;
    return 0;
}

static int count_objects(void *arg, const struct tarn_object *o)
{
    assert_string_equal(o->copies[0].transport, "shm");
    ++*(int *)arg;
    return 0;
}

static void nodes_and_objects_can_be_listed(void **state)
{
    struct world *w = *state;
    struct tarn_key k = key_of("shown-1"), none = key_of("none");
    int nodes = 0, objects = 0;
    assert_int_equal(client_put(w->client, "shown-1", 's', 10, NULL), 0);
    assert_int_equal(client_put(w->client, "shown-2", 's', 10, NULL), 0);
    assert_int_equal(client_put(w->client, "other", 's', 10, NULL), 0);
    assert_int_equal(tarn_nodes(w->client, 0, count_nodes, &nodes), 0);
    assert_int_equal(nodes, NODES);
    assert_int_equal(tarn_list(w->client, "shown-*", 0, count_objects, &objects), 0);
    assert_int_equal(objects, 2);
    assert_int_equal(tarn_stat(w->client, &none, 0, count_objects, &objects), TARN_E_NOT_FOUND);
    assert_int_equal(tarn_touch(w->client, &k, 1), 0);
    assert_int_equal(tarn_pin(w->client, &k, 0, 0), 0);
    assert_int_equal(tarn_unpin(w->client, &k, 0), 0);
    assert_int_equal(tarn_pin(w->client, &none, 0, 0), TARN_E_NOT_FOUND);
    harness_passed(w->h);
}

#define CASE(test_) cmocka_unit_test_setup_teardown(test_, setup, world_stop)
#define SMALL(test_) cmocka_unit_test_setup_teardown(test_, setup_small, world_stop)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(copies_go_to_the_requested_place),
        CASE(replaced_on_another_node_is_never_read_again),
        SMALL(a_put_uses_the_next_node_when_one_is_full),
        CASE(large_batches_with_every_size),
        CASE(invalid_items_of_a_batch_are_found),
        CASE(same_key_twice_in_a_batch),
        CASE(keys_that_come_again_in_a_batch),
        cmocka_unit_test_setup_teardown(batch_larger_than_the_session_may_reserve, setup_limited, world_stop),
        CASE(a_get_does_not_wait_for_a_killed_replica),
        CASE(a_get_of_the_only_copy_on_a_killed_node_fails_at_once),
        CASE(paused_node_costs_one_bounded_delay),
        CASE(late_reservation_is_given_back),
        CASE(a_node_started_later_is_found),
        CASE(get_now_skips_items_that_need_waiting),
        CASE(hits_and_cache_outlive_redis),
        SMALL(a_view_keeps_its_bytes_when_the_object_changes),
        CASE(sixty_four_gets_in_flight),
        CASE(canceled_get_ends_at_once_and_alone),
        CASE(close_ends_operations_in_flight),
        CASE(deregister_refuses_memory_in_flight),
        CASE(no_torn_and_no_refused_read_by_shm),
        CASE(no_torn_and_no_refused_read_by_tcp),
        CASE(forked_child_is_refused),
        CASE(nodes_and_objects_can_be_listed),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
