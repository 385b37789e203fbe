/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits that a client sets itself: what tarn_close() gives back; deadlines and cancels of operations that
 * wait (for a worker, the directory, a link, the keeper); options without their size.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "client/client.h"
#include "client/control_conn.h"
#include "client/health.h"
#include "client/peer_node.h"
#include "tests/node_client.h"
#include "tests/world.h"

#define PAUSED_MAX 4

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLACK_MS (1000 * harness_slower())
#else
#define SLACK_MS (200 * harness_slower())
#endif

/* A record lives 3 heartbeats: longer than the pauses in these tests. */
static const struct world_plan plan = {.nodes = 2,
                                       .args = {"--pool", "p0:bytes=64M", "--heartbeat-ms", "5000"}};

static int start(void **state)
{
    return world_start(state, &plan);
}

static struct tarn_client *client_of(struct world *w, const char *transports, uint32_t timeout_ms)
{
    return client_open(w->redis->url, (struct tarn_options){
                                          .timeout_ms = timeout_ms, .transports = transports, .workers = 1});
}

static int put_of(struct tarn_client *c, const char *key, size_t bytes, const char *place)
{
    struct tarn_put_options o = {.size = sizeof o, .place = place};
    return client_put(c, key, 0, bytes, &o);
}

static int get_of(struct tarn_client *c, const char *key, size_t bytes, uint32_t timeout_ms)
{
    char byte;
    return client_read(c, key, bytes, timeout_ms, &byte);
}

static bool reserves_nothing(const struct harness_node *n)
{
    return node_pool_figure(n->control, "reserved") == 0;
}

static bool owes_nothing(struct tarn_client *c)
{
    pthread_mutex_lock(&c->monitor.lock);
    bool nothing = c->monitor.owing == NULL && !c->monitor.asked;
    pthread_mutex_unlock(&c->monitor.lock);
    return nothing && atomic_load(&client_remote(c, "node0")->health) == TARN_UP;
}

/* --- close -------------------------------------------------------------------------------------- */

static void closing_gives_back_views_that_were_not_released(void **state)
{
    struct world *w = *state;
    struct tarn_client *viewer = client_of(w, NULL, 3000), *other = client_of(w, "tcp", 3000);
    struct tarn_key key = {"v", 1};
    struct tarn_view v;
    int32_t status;

    assert_int_equal(put_of(viewer, "v", 40 * MIB, "node0"), 0);
    assert_int_equal(tarn_view(viewer, &key, 0, &v), 0);
    tarn_close(viewer);
    assert_int_equal(tarn_remove(other, &key, 1, &status, 0), 0);
    HARNESS_UNTIL(put_of(other, "v2", 40 * MIB, "node0") == 0, 3000);
    tarn_close(other);
    harness_passed(w->h);
}

static void closing_aborts_open_put_sessions(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = client_of(w, NULL, 3000);
    struct tarn_item item = {.key = {"s", 1}, .tensor = tarn_bytes(MIB)};
    struct tarn_put_options o = {.size = sizeof o, .place = "node0"};
    struct tarn_put_session *s;
    char byte = 1;
    struct tarn_piece piece = {.addr = &byte, .bytes = 1};

    assert_int_equal(tarn_put_begin(c, &item, 1, &o, &s), 0);
    assert_int_equal(tarn_put_write(s, 0, 0, &piece, 1, 0), 0);
    assert_false(reserves_nothing(w->nodes[0]));
    tarn_close(c);
    HARNESS_UNTIL(reserves_nothing(w->nodes[0]), 1000);
    harness_passed(w->h);
}

/* --- waiting ------------------------------------------------------------------------------------ */

static void a_queued_operation_ends_at_its_own_deadline(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = client_of(w, NULL, 3000);
    struct tarn_lookup_options slow = {.size = sizeof slow, .timeout_ms = 4000};
    struct tarn_key key = {"k", 1};
    struct tarn_completion done;
    struct tarn_item item = {.key = key};
    struct tarn_get_options quick = {.size = sizeof quick, .timeout_ms = 200};
    tarn_op first, second;

    harness_signal(w->redis->process, SIGSTOP);
    uint64_t begun = harness_now_ms();
    assert_int_equal(tarn_submit_lookup(c, &key, 1, &slow, 1, &first), 0);
    assert_int_equal(tarn_submit_get(c, &item, 1, &quick, 2, &second), 0);
    assert_int_equal(tarn_wait(c, second, 3000, &done), 0);
    assert_int_equal(done.status, TARN_E_TIMEOUT);
    assert_int_equal(item.status, TARN_E_TIMEOUT);
    assert_in_range(harness_now_ms() - begun, 190, 200 + 3 * SLACK_MS);
    harness_signal(w->redis->process, SIGCONT);
    tarn_close(c);
    harness_passed(w->h);
}

static void cancel_and_close_do_not_wait_for_a_paused_directory(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = client_of(w, NULL, 8000);
    struct tarn_key key = {"k", 1};
    char buffer[16];
    struct tarn_piece piece = {.addr = buffer, .bytes = sizeof buffer};
    struct tarn_item item = {.key = key, .pieces = &piece, .npieces = 1};
    struct tarn_completion done;
    int32_t status;
    tarn_op ops[3];

    harness_signal(w->redis->process, SIGSTOP);
    assert_int_equal(tarn_submit_lookup(c, &key, 1, NULL, 0, &ops[0]), 0);
    assert_int_equal(tarn_submit_get(c, &item, 1, NULL, 0, &ops[1]), 0);
    assert_int_equal(tarn_submit_remove(c, &key, 1, &status, 0, 0, &ops[2]), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tarn_wait(c, ops[i], 50, &done), TARN_E_TIMEOUT); /* waits for the directory */
        uint64_t begun = harness_now_ms();
        assert_int_equal(tarn_cancel(c, ops[i]), 0);
        assert_in_range(harness_now_ms() - begun, 0, SLACK_MS);
        assert_int_equal(tarn_wait(c, ops[i], 0, &done), 0);
        assert_int_equal(done.status, TARN_E_CANCELED);
    }
    assert_int_equal(tarn_submit_lookup(c, &key, 1, NULL, 0, &ops[0]), 0);
    assert_int_equal(tarn_wait(c, ops[0], 50, &done), TARN_E_TIMEOUT);
    uint64_t begun = harness_now_ms();
    tarn_close(c);
    assert_in_range(harness_now_ms() - begun, 0,
                    500 + SLACK_MS); /* the keeper may be reading the node table */
    harness_signal(w->redis->process, SIGCONT);
    harness_passed(w->h);
}

static void opening_a_link_does_not_use_up_the_time_of_other_gets(void **state)
{
    struct world *w = *state;
    struct tarn_client *seed = client_of(w, "tcp", 3000), *c = client_of(w, "tcp", 5000);
    struct tarn_get_options quick = {.size = sizeof quick, .timeout_ms = 150};
    struct tarn_put_options on0 = {.size = sizeof on0, .place = "node0"};
    struct tarn_key key = {"g1", 2};
    struct tarn_hits *hits;
    char b0[100], b1[100], *big = calloc(1, 32 * MIB);
    struct tarn_piece p0 = {.addr = b0, .bytes = 100}, p1 = {.addr = b1, .bytes = 100};
    struct tarn_piece pbig = {.addr = big, .bytes = 32 * MIB};
    struct tarn_item i0 = {.key = {"g0", 2}, .pieces = &p0, .npieces = 1};
    struct tarn_item i1 = {.key = {"g1", 2}, .pieces = &p1, .npieces = 1};
    struct tarn_item ibig = {
        .key = {"big", 3}, .pieces = &pbig, .npieces = 1, .tensor = tarn_bytes(32 * MIB)};
    struct tarn_completion done;
    tarn_op busy, stuck, healthy;

    assert_int_equal(put_of(seed, "g0", 100, "node0"), 0);
    assert_int_equal(put_of(seed, "g1", 100, "node1"), 0);
    assert_int_equal(get_of(c, "g0", 100, 0), 0);
    assert_int_equal(tarn_lookup(c, &key, 1, NULL, &hits), 0);
    tarn_hits_free(hits);
    harness_signal(w->nodes[1]->process, SIGSTOP);
    /* The put keeps the only worker busy. The worker then takes both gets together. */
    assert_int_equal(tarn_submit_put(c, &ibig, 1, &on0, 0, &busy), 0);
    assert_int_equal(tarn_submit_get(c, &i1, 1, NULL, 0, &stuck), 0);
    uint64_t begun = harness_now_ms();
    assert_int_equal(tarn_submit_get(c, &i0, 1, &quick, 0, &healthy), 0);
    assert_int_equal(tarn_wait(c, healthy, 4000, &done), 0);
    assert_in_range(harness_now_ms() - begun, 0, 150 + SLACK_MS);
    harness_signal(w->nodes[1]->process, SIGCONT);
    tarn_close(c);
    tarn_close(seed);
    free(big);
    harness_passed(w->h);
}

static void a_suspect_is_asked_before_nodes_that_stay_silent(void **state)
{
    struct world *w = *state;
    struct harness_node *paused[PAUSED_MAX];
    char id[16];

    for (int i = 0; i < PAUSED_MAX; i++) {
        snprintf(id, sizeof id, "x%d", i);
        paused[i] = world_node(w, id);
    }
    struct tarn_client *c = client_of(w, "tcp", 3000);
    struct tarn_peer_node *healthy = client_remote(c, "node0");
    for (int i = 0; i < PAUSED_MAX; i++) {
        snprintf(id, sizeof id, "x%d", i);
        harness_signal(paused[i]->process, SIGSTOP);
        tarn_peer_node_aside(client_remote(c, id), TARN_SLOW, "paused by the test");
    }
    for (int i = 0; i < PAUSED_MAX; i++) {
        snprintf(id, sizeof id, "x%d", i);
        struct tarn_peer_node *r = client_remote(c, id);
        HARNESS_UNTIL(!atomic_load(&r->suspect), 5000);
    }
    for (int i = 0; i < 8; i++) {
        tarn_peer_node_aside(healthy, TARN_GONE, "a hiccup made by the test");
        uint64_t begun = harness_now_ms();
        assert_true(tarn_peer_node_settled(healthy, tarn_deadline(3000), NULL));
        assert_in_range(harness_now_ms() - begun, 0, 250 + SLACK_MS); /* a probe may already be running */
    }
    uint64_t begun = harness_now_ms();
    tarn_close(c);
    assert_in_range(harness_now_ms() - begun, 0, 250 + SLACK_MS);
    for (int i = 0; i < PAUSED_MAX; i++)
        harness_signal(paused[i]->process, SIGCONT);
    harness_passed(w->h);
}

static void cached_gets_survive_a_hiccup_while_the_directory_is_paused(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = client_of(w, "tcp", 3000);

    assert_int_equal(put_of(c, "cached", 100, "node0"), 0);
    assert_int_equal(get_of(c, "cached", 100, 0), 0);
    harness_signal(w->redis->process, SIGSTOP);
    for (int i = 0; i < 3; i++) {
        tarn_peer_node_aside(client_remote(c, "node0"), TARN_SLOW, "a hiccup made by the test");
        assert_int_equal(get_of(c, "cached", 100, 2000), 0);
    }
    harness_signal(w->redis->process, SIGCONT);
    tarn_close(c);
    harness_passed(w->h);
}

static void views_of_a_paused_node_need_no_directory(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = client_of(w, NULL, 3000);
    struct tarn_key key = {"k", 1};
    struct tarn_view v;

    assert_int_equal(put_of(c, "k", 100, "node0"), 0);
    assert_int_equal(tarn_view(c, &key, 0, &v), 0);
    tarn_release(c, &v);
    harness_signal(w->nodes[0]->process, SIGSTOP);
    harness_signal(w->redis->process, SIGSTOP);
    tarn_peer_node_aside(client_remote(c, "node0"), TARN_SLOW, "paused by the test");
    assert_int_equal(tarn_view(c, &key, 300, &v), 0);
    tarn_release(c, &v);
    harness_signal(w->redis->process, SIGCONT);
    harness_signal(w->nodes[0]->process, SIGCONT);
    tarn_close(c);
    harness_passed(w->h);
}

static void a_put_of_many_items_ends_at_its_deadline(void **state)
{
    enum { N = 60000 };
    struct world *w = *state;
    struct tarn_client *c = client_of(w, NULL, 30000);
    struct tarn_item *items = calloc(N, sizeof *items);
    char(*keys)[16] = calloc(N, sizeof *keys), data[64] = {1};
    struct tarn_piece piece = {.addr = data, .bytes = sizeof data};
    struct tarn_put_options o = {.size = sizeof o, .timeout_ms = 20};

    for (int i = 0; i < N; i++) {
        int n = snprintf(keys[i], sizeof keys[i], "c%d", i);
        items[i] = (struct tarn_item){
            .key = {keys[i], (size_t)n}, .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(sizeof data)};
    }
    uint64_t begun = harness_now_ms();
    assert_int_equal(tarn_put(c, items, N, &o), TARN_E_TIMEOUT);
    assert_in_range(harness_now_ms() - begun, 0, 20 + SLACK_MS);
    assert_int_equal(items[N - 1].status, TARN_E_TIMEOUT);
    tarn_close(c);
    free(keys);
    free(items);
    harness_passed(w->h);
}

static void a_late_attach_reply_answers_no_other_command(void **state)
{
    struct world *w = *state;
    struct tarn_client *seed = client_of(w, "tcp", 3000), *c = client_of(w, "shm", 3000);
    struct tarn_item item = {.key = {"s", 1}, .tensor = tarn_bytes(100)};
    struct tarn_put_options o = {.size = sizeof o, .place = "node0"};
    char bytes[100] = {1};
    struct tarn_piece piece = {.addr = bytes, .bytes = sizeof bytes};
    struct tarn_key key = {"k", 1};
    struct tarn_put_session *s;
    struct tarn_hits *hits;

    assert_int_equal(put_of(seed, "k", 100, "node0"), 0);
    for (int i = 0; i < 2; i++) { /* opens control connections, but no link */
        assert_int_equal(tarn_put_begin(c, &item, 1, &o, &s), 0);
        tarn_put_abort(s);
    }
    assert_int_equal(tarn_lookup(c, &key, 1, NULL, &hits), 0);
    tarn_hits_free(hits);
    harness_signal(w->nodes[0]->process, SIGSTOP);
    assert_int_not_equal(get_of(c, "k", 100, 700), 0); /* the answer to its ATTACH comes later */
    harness_signal(w->nodes[0]->process, SIGCONT);
    HARNESS_UNTIL(owes_nothing(c), 5000); /* the keeper has read the late answer */
    HARNESS_UNTIL(tarn_put_begin(c, &item, 1, &o, &s) == 0, 5000);
    assert_int_equal(tarn_put_write(s, 0, 0, &piece, 1, 0), 0);
    tarn_put_abort(s);
    assert_int_equal(get_of(c, "k", 100, 0), 0);
    tarn_close(c);
    tarn_close(seed);
    harness_passed(w->h);
}

/* --- mistakes of callers ------------------------------------------------------------------------ */

static void options_without_their_size_are_refused(void **state)
{
    struct world *w = *state;
    struct tarn_options o = {.redis = w->redis->url};
    struct tarn_client *c = NULL;
    struct tarn_item item = {.key = {"k", 1}};
    struct tarn_key key = {"k", 1};
    struct tarn_put_options put = {.flags = TARN_PUT_REPLACE};
    struct tarn_get_options get = {.flags = TARN_GET_RANGE};
    struct tarn_lookup_options look = {.timeout_ms = 100};
    struct tarn_put_session *s;
    struct tarn_hits *hits;
    size_t pages;

    assert_int_equal(tarn_open(&o, &c), TARN_E_INVALID);
    c = client_of(w, NULL, 3000);
    assert_int_equal(tarn_put(c, &item, 1, &put), TARN_E_INVALID);
    assert_int_equal(tarn_put_begin(c, &item, 1, &put, &s), TARN_E_INVALID);
    assert_int_equal(tarn_get(c, &item, 1, &get), TARN_E_INVALID);
    assert_int_equal(tarn_lookup(c, &key, 1, &look, &hits), TARN_E_INVALID);
    assert_int_equal(tarn_match_prefix(c, &key, 1, &look, &hits, &pages), TARN_E_INVALID);
    assert_int_equal(tarn_submit_get(c, &item, 1, &get, 0, NULL), TARN_E_INVALID);
    assert_int_equal(tarn_submit_put(c, &item, 1, &put, 0, NULL), TARN_E_INVALID);
    assert_int_equal(tarn_submit_lookup(c, &key, 1, &look, 0, NULL), TARN_E_INVALID);
    tarn_close(c);
    harness_passed(w->h);
}

static void submitting_a_get_without_items_is_refused(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = client_of(w, NULL, 3000);

    assert_int_equal(tarn_submit_get(c, NULL, 5, NULL, 0, NULL), TARN_E_INVALID);
    tarn_close(c);
    harness_passed(w->h);
}

/* The client sends the rest of the command before the next command on that connection. It must not take
 * the answer to one for the answer to the other. */
static void a_partly_sent_command_gets_only_its_own_reply(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = client_of(w, "shm", 3000);
    struct tarn_command large = {0}, ping = {0};
    struct tarn_control_conn *conn;
    redisReply *reply;
    static const char key[TARN_KEY_MAX];

    assert_int_equal(put_of(c, "k", 100, "node0"), 0);
    struct tarn_peer_node *node = client_remote(c, "node0");
    tarn_command_str(&large, "DELETE");
    for (int i = 0; i < 1024; i++) /* more than a socket buffers */
        tarn_command_add(&large, key, sizeof key);
    tarn_command_str(&ping, "PING");
    assert_int_equal(tarn_control_conn_take(node, tarn_deadline(3000), NULL, &conn), 0);
    harness_signal(w->nodes[0]->process, SIGSTOP);
    assert_int_equal(tarn_control_conn_send(conn, &large, tarn_deadline(100), NULL), TARN_E_TIMEOUT);
    tarn_control_conn_rest(conn);
    harness_signal(w->nodes[0]->process, SIGCONT);
    assert_int_equal(tarn_control_conn_call(node, &ping, tarn_deadline(10000), NULL, &reply), 0);
    assert_int_equal(reply->type, REDIS_REPLY_STATUS);
    assert_string_equal(reply->str, "PONG");
    freeReplyObject(reply);
    tarn_command_free(&large);
    tarn_command_free(&ping);
    tarn_close(c);
    harness_passed(w->h);
}

#define LIMITS_TEST(f_) cmocka_unit_test_setup_teardown(f_, start, world_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LIMITS_TEST(closing_gives_back_views_that_were_not_released),
        LIMITS_TEST(closing_aborts_open_put_sessions),
        LIMITS_TEST(a_queued_operation_ends_at_its_own_deadline),
        LIMITS_TEST(cancel_and_close_do_not_wait_for_a_paused_directory),
        LIMITS_TEST(opening_a_link_does_not_use_up_the_time_of_other_gets),
        LIMITS_TEST(a_suspect_is_asked_before_nodes_that_stay_silent),
        LIMITS_TEST(cached_gets_survive_a_hiccup_while_the_directory_is_paused),
        LIMITS_TEST(views_of_a_paused_node_need_no_directory),
        LIMITS_TEST(a_put_of_many_items_ends_at_its_deadline),
        LIMITS_TEST(a_late_attach_reply_answers_no_other_command),
        LIMITS_TEST(a_partly_sent_command_gets_only_its_own_reply),
        LIMITS_TEST(options_without_their_size_are_refused),
        LIMITS_TEST(submitting_a_get_without_items_is_refused),
    };
    return cmocka_run_group_tests_name("client limits", tests, NULL, NULL);
}
