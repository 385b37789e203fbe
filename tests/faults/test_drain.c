/* SPDX-License-Identifier: Apache-2.0 */
/* A node that shuts down in order: puts in flight, and copies that no client may read once they count as
 * gone. */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/node_client.h"
#include "tests/redis_relay.h"
#include "tests/world.h"

#define PATIENCE_MS 8000
#define TICK_MS 100 /* of a node: at each tick it checks whether a drain may go on */

struct through {
    struct harness *h;
    struct harness_redis *redis;
    struct redis_relay *relay;
    struct harness_node *node;
    struct tarn_client *client;
};

/* A node that reaches Redis through a relay, and a client that reads by this transport. */
static struct through start(const char *word, const char *transport, const char *timeout_ms)
{
    struct through t = {.h = harness_new()};
    t.redis = harness_redis_start(t.h, NULL);
    t.relay = redis_relay_start(t.h, t.redis->unix_path, word);
    struct harness_redis behind = *t.redis;
    snprintf(behind.url, sizeof(behind.url), "unix://%.150s", t.relay->path);
    t.node = harness_node_start(t.h, "node0", &behind, "--pool", "cpu0:bytes=16M", "--redis-timeout-ms",
                                timeout_ms, NULL);
    t.client = client_open(t.redis->url, (struct tarn_options){.transports = transport, .timeout_ms = 2000});
    return t;
}

static void stop(struct through *t)
{
    tarn_close(t->client);
    redis_relay_end(t->relay);
    harness_passed(t->h);
    harness_free(t->h);
}

/* A replacing put may come as soon as the directory stops naming a copy. No client may read it by then. */
static void no_copy_is_readable_when_the_directory_forgets_it(void **state)
{
    static const char *const transports[] = {"shm", "tcp"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct through t = start("removed drained", transports[i], "5000");
        assert_int_equal(client_put(t.client, "drained", 'd', 1000, NULL), 0);
        assert_int_equal(client_get(t.client, "drained", 'd', 1000), 0);
        t.relay->armed = true;
        harness_signal(t.node->process, SIGTERM);
        HARNESS_UNTIL(!t.relay->armed, PATIENCE_MS); /* the withdrawal is on its way */
        assert_true(directory_has(t.redis, "drained"));
        char byte;
        assert_int_not_equal(client_read(t.client, "drained", 1000, 0, &byte), 0);
        t.relay->deliver = true;
        assert_int_equal(harness_wait(t.node->process, PATIENCE_MS), 0);
        assert_false(directory_has(t.redis, "drained"));
        stop(&t);
    }
}

/* The generations of the first pool, mapped as shm clients map them. The mapping outlives the node. */
static const _Atomic uint64_t *map_generations(const struct harness_node *n, size_t slots)
{
    int fds[TARN_RESP_FDS_MAX];
    struct tarn_resp *r = node_join(n->local, "5");
    redisReply *reply = harness_command(r, "ATTACH", "shm", "r", NULL);
    assert_int_equal(reply->type, REDIS_REPLY_ARRAY);
    int nfds = tarn_resp_take_fds(r, fds, TARN_RESP_FDS_MAX);
    assert_true(nfds > 1);
    void *gens = mmap(NULL, slots * sizeof(uint64_t), PROT_READ, MAP_SHARED, fds[1], 0);
    assert_ptr_not_equal(gens, MAP_FAILED);
    for (int i = 0; i < nfds; i++)
        close(fds[i]);
    freeReplyObject(reply);
    tarn_resp_free(r);
    return gens;
}

/* Redis gets no withdrawals, only the farewell. Others that see the node gone take its copies for gone. */
static void no_copy_is_readable_when_the_node_has_left(void **state)
{
    enum { N = 1200 }; /* more than one withdrawal command holds */
    size_t readable = 0;
    (void)state;
    struct through t = start("removed k1", "shm", "400");
    client_put_each(t.client, "k", N, 'k', 10, NULL);
    const _Atomic uint64_t *gens = map_generations(t.node, N);
    for (int i = 0; i < N; i++)
        readable += atomic_load(&gens[i]) % 2 == 0;
    assert_int_equal(readable, N);
    t.relay->armed = true;
    harness_signal(t.node->process, SIGTERM);
    assert_int_equal(harness_wait(t.node->process, PATIENCE_MS), 0);
    assert_false(t.relay->armed);
    assert_int_equal(harness_redis_integer(t.redis, "EXISTS", "tarn:default:node:node0", NULL), 0);
    assert_true(directory_count(t.redis) > 0);
    for (int i = 0; i < N; i++)
        assert_int_equal(atomic_load(&gens[i]) % 2, 1);
    stop(&t);
}

/* A drain waits for a put in flight as long as the put takes, not only a tick or two. */
static void a_drain_waits_for_a_put_in_flight(void **state)
{
    struct node_world *w = *state;
    struct node_client c = node_connect(w->node->control);
    struct node_grant g = node_reserve(&c, "absent", "in-flight", 100);
    harness_signal(w->node->process, SIGTERM);
    HARNESS_UNTIL(!strcmp(node_info(w->node->control, "state"), "draining"), 5000);
    uint64_t end = harness_now_ms() + 10 * TICK_MS;
    while (harness_now_ms() < end) {
        assert_int_equal(node_pool_figure(w->node->control, "reserved"), 1);
        harness_pause();
    }
    redisReply *r = node_commit(&c, &g, "5000");
    assert_int_equal(r->type, REDIS_REPLY_ARRAY);
    freeReplyObject(r);
    assert_int_equal(harness_wait(w->node->process, 10000), 0);
    assert_null(strstr(harness_log(w->node->process), "given up"));
    assert_int_equal(directory_count(w->redis), 0);
    assert_int_equal(harness_redis_integer(w->redis, "EXISTS", "tarn:default:node:node0", NULL), 0);
    node_close(&c);
    harness_passed(w->h);
}

/* --- commits while the node shuts down ------------------------------------------------------------ */

/* Returns when commits go to Redis on their own connection (direct publish). */
static void commits_go_directly(struct through *t, struct node_client *c)
{
    char key[24];
    for (int i = 0; node_figure(t->node->control, "published_direct") == 0; i++) {
        snprintf(key, sizeof(key), "direct%d", i);
        assert_string_equal(node_put(c, "absent", key, 100), "");
    }
}

static void beats_again(const struct through *t)
{
    char before[64], now[64];
    for (int i = 0; i < 2; i++) {
        redisReply *r = harness_redis_call(t->redis, "HGET", "tarn:default:directory", "beat", NULL);
        snprintf(i ? now : before, sizeof(now), "%s", r->str);
        freeReplyObject(r);
        if (i && !strcmp(before, now) && harness_running(t->node->process)) {
            harness_pause();
            i--;
        }
    }
    assert_string_not_equal(before, now);
}

/* No client waits for this commit any more, but Redis may still execute it. The node withdraws its result,
 * then ends. */
static void a_late_commit_leaves_nothing_behind(void **state)
{
    (void)state;
    struct through t = start("o:late", "shm", "5000");
    struct node_client c = node_connect(t.node->control);
    commits_go_directly(&t, &c);
    struct node_grant g = node_reserve(&c, "absent", "late", 100);
    t.relay->armed = true;
    assert_error(node_commit(&c, &g, "300"), "TIMEOUT");
    assert_false(t.relay->armed);
    harness_signal(t.node->process, SIGTERM);
    HARNESS_UNTIL(directory_count(t.redis) == 0, PATIENCE_MS); /* everything else is withdrawn */
    beats_again(&t);
    t.relay->deliver = true;
    assert_int_equal(harness_wait(t.node->process, PATIENCE_MS), 0);
    assert_true(t.relay->delivered);
    assert_int_equal(directory_count(t.redis), 0);
    node_close(&c);
    stop(&t);
}

/* Such a commit could not be withdrawn when Redis does not answer the farewell. */
static void a_leaving_node_begins_no_commit(void **state)
{
    (void)state;
    struct through t = start("*5\r\n$7\r\nEVALSHA", "shm", "1500"); /* the farewell */
    struct node_client c = node_connect(t.node->control);
    commits_go_directly(&t, &c);
    struct node_grant g = node_reserve(&c, "absent", "begun", 100);
    t.relay->armed = true;
    harness_signal(t.node->process, SIGTERM);
    HARNESS_UNTIL(!t.relay->armed, PATIENCE_MS); /* the reservation expires after 2 s */
    assert_int_equal(directory_count(t.redis), 0);
    assert_error(node_commit(&c, &g, "2000"), "BUSY");
    assert_int_equal(harness_wait(t.node->process, PATIENCE_MS), 0);
    assert_int_equal(directory_count(t.redis), 0);
    node_close(&c);
    stop(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_copy_is_readable_when_the_directory_forgets_it),
        cmocka_unit_test(no_copy_is_readable_when_the_node_has_left),
        WITH_NODE(a_drain_waits_for_a_put_in_flight),
        cmocka_unit_test(a_late_commit_leaves_nothing_behind),
        cmocka_unit_test(a_leaving_node_begins_no_commit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
