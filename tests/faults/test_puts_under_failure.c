/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts, replaces and replicas while nodes are paused, callers are impatient, or two clients want the same
 * key. The status must tell the truth, and nothing may stay reserved.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/node_client.h"
#include "tests/world.h"

static const struct world_plan plan = {.nodes = 2,
                                       .args = {"--pool", "cpu0:bytes=64M", "--heartbeat-ms", "300"},
                                       .client = {.timeout_ms = 3000}};

static int start(void **state)
{
    return world_start(state, &plan);
}

static void assert_holds(struct tarn_client *c, const char *key, char byte)
{
    if (client_get(c, key, byte, 100))
        fail_msg("get %s: %s", key, tarn_last_error());
}

/* A put session with all bytes written. Only the commit is missing. */
static struct tarn_put_session *written(struct tarn_client *c, const char *key, char byte,
                                        const struct tarn_put_options *o)
{
    char data[100];
    memset(data, byte, sizeof data);
    struct tarn_piece piece = {.addr = data, .bytes = sizeof data};
    struct tarn_item item = {.key = {key, strlen(key)}, .tensor = tarn_bytes(sizeof data)};
    struct tarn_put_session *s;
    if (tarn_put_begin(c, &item, 1, o, &s))
        fail_msg("begin: %s", tarn_last_error());
    if (tarn_put_write(s, 0, 0, &piece, 1, 0))
        fail_msg("write: %s", tarn_last_error());
    return s;
}

static const struct tarn_put_options on_node[2] = {
    {.size = sizeof on_node[0], .flags = TARN_PUT_REPLACE, .place = "node0"},
    {.size = sizeof on_node[1], .flags = TARN_PUT_REPLACE, .place = "node1"},
};
static const struct tarn_put_options both = {.size = sizeof both, .flags = TARN_PUT_REPLACE, .replicas = 2};

struct caller {
    struct tarn_client *client;
    pthread_t thread;
    _Atomic bool stop;
};

/* Puts whose deadline is too short. */
static void *impatient(void *arg)
{
    enum { N = 64, BYTES = 4096 }; /* what is reserved until ABORT leaves room for what others put */
    struct caller *me = arg;
    struct tarn_put_options o = {.size = sizeof o, .timeout_ms = 1, .flags = TARN_PUT_REPLACE};
    char *data = calloc(1, BYTES), keys[N][24];
    struct tarn_piece piece = {.addr = data, .bytes = BYTES};
    struct tarn_item items[N];
    while (!atomic_load(&me->stop)) {
        for (int i = 0; i < N; i++) {
            snprintf(keys[i], sizeof keys[i], "impatient-%d", i);
            items[i] = (struct tarn_item){.key = {keys[i], strlen(keys[i])},
                                          .pieces = &piece,
                                          .npieces = 1,
                                          .tensor = tarn_bytes(BYTES)};
        }
        tarn_put(me->client, items, N, &o);
    }
    free(data);
    return NULL;
}

static void a_short_deadline_sets_no_healthy_node_aside(void **state)
{
    struct world *w = *state;
    struct tarn_client *reader = world_client(w, NULL);
    struct caller other = {.client = world_client(w, NULL)};
    struct tarn_key key = {"mine", 4};
    int32_t status;
    assert_int_equal(pthread_create(&other.thread, NULL, impatient, &other), 0);
    for (int i = 0; i < 200; i++) {
        char byte = (char)('A' + i % 50);
        if (client_put(other.client, "mine", byte, 100, &on_node[i & 1]))
            fail_msg("put %d: %s", i, tarn_last_error());
        assert_holds(reader, "mine", byte);
        if (i % 10 == 9 && tarn_remove(other.client, &key, 1, &status, 0))
            fail_msg("remove %d: %s", i, tarn_last_error());
    }
    atomic_store(&other.stop, true);
    pthread_join(other.thread, NULL);
    tarn_close(other.client);
    tarn_close(reader);
    harness_passed(w->h);
}

/* The node is already set aside, so the client sends it nothing at once. */
static void a_copy_replaced_on_a_paused_node_is_released_afterwards(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = world_client(w, NULL);
    struct tarn_put_options late = on_node[1];
    late.timeout_ms = 600;
    assert_int_equal(client_put(c, "k", 'a', 100, &on_node[1]), 0);
    harness_signal(w->nodes[1]->process, SIGSTOP);
    assert_int_not_equal(client_put(c, "other", 'x', 100, &late), 0);
    assert_int_equal(client_put(c, "k", 'b', 100, &on_node[0]), 0);
    assert_holds(c, "k", 'b');
    harness_signal(w->nodes[1]->process, SIGCONT);
    HARNESS_UNTIL(node_pool_figure(w->nodes[1]->control, "objects") == 0, 8000);
    assert_holds(c, "k", 'b');
    tarn_close(c);
    harness_passed(w->h);
}

static void a_failed_put_of_replicas_leaves_others_objects_alone(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = world_client(w, NULL), *other = world_client(w, NULL);
    struct tarn_put_session *s = written(c, "k", 'n', &both);
    harness_signal(w->nodes[1]->process, SIGSTOP);
    assert_int_not_equal(tarn_put_commit(s, NULL, 800), 0);
    /* The first copy of c's put may be stored by now, and withdrawn later. The other client's object must
     * stay. */
    assert_int_equal(client_put(other, "k", 'f', 100, &on_node[0]), 0);
    assert_holds(other, "k", 'f');
    harness_signal(w->nodes[1]->process, SIGCONT);
    HARNESS_UNTIL(node_pool_figure(w->nodes[1]->control, "reserved") == 0, 8000);
    assert_holds(other, "k", 'f');
    assert_holds(c, "k", 'f');
    tarn_close(c);
    tarn_close(other);
    harness_passed(w->h);
}

struct commit {
    struct tarn_put_session *session;
    int status;
};

static void *commit_thread(void *arg)
{
    struct commit *k = arg;
    k->status = tarn_put_commit(k->session, NULL, 1200);
    return NULL;
}

/* The node may have been given up while it was stopped. Then it compares first. */
static bool node1_is_ready(const struct world *w)
{
    redisReply *r = harness_redis_call(w->redis, "HGET", "tarn:default:node:node1", "state", NULL);
    bool ready = r->type == REDIS_REPLY_STRING && !strcmp(r->str, "ready");
    freeReplyObject(r);
    return ready;
}

/* The same, with the other put between the first copy and the end of the failing put. */
static void withdrawing_a_copy_keeps_the_copy_that_replaced_it(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = world_client(w, NULL), *other = world_client(w, NULL);
    char key[16];
    for (int i = 0; i < 4; i++) { /* each node is the first choice of some key */
        snprintf(key, sizeof key, "k%d", i);
        struct commit k = {.session = written(c, key, 'n', &both)};
        pthread_t t;
        harness_signal(w->nodes[1]->process, SIGSTOP);
        pthread_create(&t, NULL, commit_thread, &k);
        char name[64];
        snprintf(name, sizeof name, "tarn:default:o:%s", key);
        uint64_t until = harness_now_ms() + 300;
        while (harness_redis_integer(w->redis, "EXISTS", name, NULL) != 1 && harness_now_ms() < until)
            harness_pause();
        assert_int_equal(client_put(other, key, 'f', 100, &on_node[0]), 0);
        pthread_join(t, NULL);
        assert_int_not_equal(k.status, -1);
        harness_signal(w->nodes[1]->process, SIGCONT);
        HARNESS_UNTIL(node_pool_figure(w->nodes[1]->control, "reserved") == 0, 8000);
        HARNESS_UNTIL(node1_is_ready(w), 8000);
        assert_holds(other, key, 'f');
    }
    tarn_close(c);
    tarn_close(other);
    harness_passed(w->h);
}

static void a_put_that_timed_out_does_not_appear_later(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = world_client(w, NULL), *other = world_client(w, NULL);
    struct tarn_put_session *s = written(c, "k", 'n', &on_node[1]);
    char byte;
    harness_signal(w->nodes[1]->process, SIGSTOP);
    assert_int_equal(tarn_put_commit(s, NULL, 300), TARN_E_TIMEOUT);
    harness_signal(w->nodes[1]->process, SIGCONT);
    HARNESS_UNTIL(node_pool_figure(w->nodes[1]->control, "reserved") == 0, 8000);
    assert_int_equal(client_read(other, "k", 100, 0, &byte), TARN_E_NOT_FOUND);
    assert_int_equal(node_pool_figure(w->nodes[1]->control, "objects"), 0);
    tarn_close(c);
    tarn_close(other);
    harness_passed(w->h);
}

static void a_commit_read_after_its_deadline_is_refused(void **state)
{
    struct world *w = *state;
    struct node_client n = node_connect(w->nodes[0]->control);
    struct node_grant g = node_reserve(&n, "absent", "k", 100);
    char past[24];
    snprintf(past, sizeof past, "%s", node_deadline(&n, 0));
    harness_pause();
    assert_error(harness_command(n.resp, "COMMIT", past, "put", g.pool, g.slot, g.gen, NULL), "TIMEOUT");
    assert_true(node_pool_figure(w->nodes[0]->control, "reserved") > 0);
    assert_error(harness_command(n.resp, "COMMIT", node_deadline(&n, 5000), "x", g.pool, g.slot, g.gen, NULL),
                 "INVALID");
    freeReplyObject(node_commit(&n, &g, "5000"));
    assert_int_equal(node_pool_figure(w->nodes[0]->control, "objects"), 1);
    node_close(&n);
    harness_passed(w->h);
}

struct replacer {
    struct tarn_client *client;
    pthread_barrier_t *barrier;
    pthread_t thread;
    char byte;
    int status;
    char why[512]; /* of the latest failure */
};

enum { ROUNDS = 300 };

static void *replacer_main(void *arg)
{
    struct replacer *r = arg;
    for (int i = 0; i < ROUNDS; i++) {
        pthread_barrier_wait(r->barrier);
        r->status = client_put(r->client, "k", r->byte, 100, &both);
        if (r->status)
            snprintf(r->why, sizeof(r->why), "%s", tarn_last_error());
        pthread_barrier_wait(r->barrier);
        pthread_barrier_wait(r->barrier);
    }
    return NULL;
}

static int count_copies(void *arg, const struct tarn_object *o)
{
    *(uint32_t *)arg = o->ncopies;
    return 0;
}

static void of_two_replacing_puts_one_has_all_its_replicas(void **state)
{
    struct world *w = *state;
    struct tarn_client *reader = world_client(w, NULL);
    struct tarn_key key = {"k", 1};
    pthread_barrier_t barrier;
    struct replacer r[2] = {{.byte = 'a'}, {.byte = 'b'}};
    pthread_barrier_init(&barrier, NULL, 3);
    for (int i = 0; i < 2; i++) {
        r[i].client = world_client(w, NULL);
        r[i].barrier = &barrier;
        pthread_create(&r[i].thread, NULL, replacer_main, &r[i]);
    }
    int failed = 0, short_of = 0;
    for (int i = 0; i < ROUNDS; i++) {
        uint32_t copies = 0;
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        failed += r[0].status || r[1].status;
        short_of += tarn_stat(reader, &key, 0, count_copies, &copies) || copies != 2;
        pthread_barrier_wait(&barrier);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(r[i].thread, NULL);
        tarn_close(r[i].client);
    }
    pthread_barrier_destroy(&barrier);
    if (failed)
        fail_msg("%d of %d rounds failed: a: %s; b: %s", failed, ROUNDS, r[0].why, r[1].why);
    assert_int_equal(short_of, 0);
    tarn_close(reader);
    harness_passed(w->h);
}

static void broken_data_links_leave_nothing_reserved(void **state)
{
    struct world *w = *state;
    struct tarn_client *c =
        client_open_faulty(w->redis->url, (struct tarn_options){.transports = "tcp"}, "tcp:error=1");
    for (int i = 0; i < 10; i++)
        assert_int_not_equal(client_put(c, "k", 'a', 65536, &on_node[0]), 0);
    HARNESS_UNTIL(node_pool_figure(w->nodes[0]->control, "reserved") == 0, 5000);
    tarn_close(c);
    harness_passed(w->h);
}

static void put_and_read_back(struct tarn_client *c, int round)
{
    enum { N = 32, BYTES = 1000 };
    static char keys[N][32], data[N][BYTES];
    struct tarn_piece pieces[N];
    struct tarn_item items[N];
    for (int i = 0; i < N; i++) {
        snprintf(keys[i], sizeof keys[i], "passed-%d-%d", round, i);
        memset(data[i], 'A' + i, BYTES);
        pieces[i] = (struct tarn_piece){.addr = data[i], .bytes = BYTES};
        items[i] = (struct tarn_item){
            .key = key_of(keys[i]), .pieces = &pieces[i], .npieces = 1, .tensor = tarn_bytes(BYTES)};
    }
    if (tarn_put(c, items, N, NULL))
        fail_msg("put: %s", tarn_last_error());
    for (int i = 0; i < N; i++)
        assert_int_equal(client_get(c, keys[i], (char)('A' + i), BYTES), 0);
}

/* The other node takes over the paused node's items. It may have been asked for its own items before or
 * after; which node holds the first key varies by round. */
static void items_moved_to_another_node_are_not_mixed_up(void **state)
{
    struct world *w = *state;
    for (int round = 0; round < 6; round++) {
        /* Waits until the node has just beaten, so that its record outlives the pause. */
        HARNESS_UNTIL(harness_redis_integer(w->redis, "PTTL", "tarn:default:node:node1", NULL) > 700, 5000);
        struct tarn_client *c = world_client(w, NULL); /* not yet connected to either node */
        harness_signal(w->nodes[1]->process, SIGSTOP);
        put_and_read_back(c, round);
        harness_signal(w->nodes[1]->process, SIGCONT);
        tarn_close(c);
    }
    HARNESS_UNTIL(node_pool_figure(w->nodes[0]->control, "reserved") == 0, 5000);
    harness_passed(w->h);
}

static void *slow_put(void *arg)
{
    struct caller *me = arg;
    struct tarn_put_options o = on_node[1];
    o.timeout_ms = 1000;
    client_put(me->client, "k", 'a', 4 << 20, &o);
    return NULL;
}

static void a_node_paused_during_a_put_frees_its_reservation_afterwards(void **state)
{
    struct world *w = *state;
    struct caller one = {.client = client_open_faulty(
                             w->redis->url, (struct tarn_options){.transports = "tcp"}, "tcp:delay=500")};
    pthread_create(&one.thread, NULL, slow_put, &one);
    HARNESS_UNTIL(node_pool_figure(w->nodes[1]->control, "reserved") > 0, 5000);
    harness_signal(w->nodes[1]->process, SIGSTOP);
    pthread_join(one.thread, NULL);
    harness_signal(w->nodes[1]->process, SIGCONT);
    HARNESS_UNTIL(node_pool_figure(w->nodes[1]->control, "reserved") == 0, 8000);
    tarn_close(one.client);
    harness_passed(w->h);
}

static void *putter(void *arg)
{
    struct caller *me = arg;
    struct tarn_put_options o = {.size = sizeof o, .flags = TARN_PUT_REPLACE, .timeout_ms = 400};
    while (!atomic_load(&me->stop))
        client_put(me->client, "new", 'x', 100, &o);
    return NULL;
}

/* COMMIT waits for Redis. Its delay says nothing about the node. */
static void puts_that_wait_for_redis_do_not_delay_cached_gets(void **state)
{
    struct world *w = *state;
    struct caller other = {.client = world_client(w, "tcp")};
    char byte;
    assert_int_equal(client_put(other.client, "cached", 'q', 100, &on_node[0]), 0);
    assert_holds(other.client, "cached", 'q');
    harness_signal(w->redis->process, SIGSTOP);
    pthread_create(&other.thread, NULL, putter, &other);
    int failed = 0;
    for (uint64_t end = harness_now_ms() + 2000; harness_now_ms() < end;)
        failed += client_read(other.client, "cached", 100, 500, &byte) != 0;
    atomic_store(&other.stop, true);
    harness_signal(w->redis->process, SIGCONT);
    pthread_join(other.thread, NULL);
    assert_int_equal(failed, 0);
    tarn_close(other.client);
    harness_passed(w->h);
}

static void a_returned_node_takes_the_first_put(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = world_client(w, "tcp");
    struct tarn_put_options late = on_node[1];
    char byte;
    late.timeout_ms = 600;
    assert_int_equal(client_put(c, "b", 'b', 100, &on_node[1]), 0);
    harness_signal(w->nodes[1]->process, SIGSTOP);
    assert_int_not_equal(client_put(c, "b2", 'b', 100, &late), 0);
    HARNESS_UNTIL(!world_lists(w, "node1"), 15000);
    assert_int_not_equal(client_read(c, "b", 100, 500, &byte), 0);
    /* The client itself has noticed that the node is gone. */
    assert_int_equal(client_put(c, "b2", 'b', 100, &on_node[1]), TARN_E_NODE_DOWN);
    assert_non_null(strstr(tarn_last_error(), "no such node"));
    harness_signal(w->nodes[1]->process, SIGCONT);
    HARNESS_UNTIL(world_lists(w, "node1"), 15000);
    if (client_put(c, "b3", 'c', 100, &on_node[1]))
        fail_msg("put: %s", tarn_last_error());
    tarn_close(c);
    harness_passed(w->h);
}

/* With a long heartbeat: the node does not rewrite its record during a test. */
static const struct world_plan slow_plan = {.nodes = 1,
                                            .args = {"--pool", "cpu0:bytes=16M", "--heartbeat-ms", "60000"},
                                            .client = {.timeout_ms = 3000}};

static int start_slow(void **state)
{
    return world_start(state, &slow_plan);
}

/* The record says that the node is on another host. On this host its path leads to a silent program. */
static void a_foreign_unix_path_does_not_hide_a_node(void **state)
{
    struct world *w = *state;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s", harness_path(w->h, "silent.sock"));
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(s, (const struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(s, 16), 0);
    freeReplyObject(harness_redis_call(w->redis, "HSET", "tarn:default:node:node0", "hostid", "another",
                                       "unix", a.sun_path, NULL));
    struct tarn_client *c = world_client(w, NULL);
    if (client_put(c, "k", 'k', 100, &on_node[0]))
        fail_msg("put: %s", tarn_last_error());
    assert_holds(c, "k", 'k');
    tarn_close(c);
    close(s);
    freeReplyObject(harness_call(w->nodes[0]->control, "PING", NULL));
    harness_passed(w->h);
}

#define CASE(fn_) cmocka_unit_test_setup_teardown(fn_, start, world_stop)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(a_short_deadline_sets_no_healthy_node_aside),
        CASE(a_copy_replaced_on_a_paused_node_is_released_afterwards),
        CASE(a_failed_put_of_replicas_leaves_others_objects_alone),
        CASE(withdrawing_a_copy_keeps_the_copy_that_replaced_it),
        CASE(a_put_that_timed_out_does_not_appear_later),
        CASE(a_commit_read_after_its_deadline_is_refused),
        CASE(of_two_replacing_puts_one_has_all_its_replicas),
        CASE(broken_data_links_leave_nothing_reserved),
        CASE(items_moved_to_another_node_are_not_mixed_up),
        CASE(a_node_paused_during_a_put_frees_its_reservation_afterwards),
        CASE(puts_that_wait_for_redis_do_not_delay_cached_gets),
        CASE(a_returned_node_takes_the_first_put),
        cmocka_unit_test_setup_teardown(a_foreign_unix_path_does_not_hide_a_node, start_slow, world_stop),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
