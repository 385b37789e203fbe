/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tarn_cancel() returns at once, also when one worker runs several gets, and whatever that worker waits for
 * on behalf of another get: a link to a node that does not answer, the keeper's verdict on a suspect node, or
 * the directory. The other gets are not affected.
 */
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/client.h"
#include "client/health.h"
#include "client/peer_node.h"
#include "tests/node_client.h"
#include "tests/relay.h"
#include "tests/world.h"

enum { GETS = 3, BYTES = 1000, SUSPECTS = 4, FILLING = 4 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLACK_MS (800 * harness_slower())
#else
#define SLACK_MS (400 * harness_slower())
#endif
/* Long enough for a worker to be in the middle of the operation, too short for a node to count as silent. */
#define MOMENT_MS 50

/* A record lives 3 heartbeats: longer than the pauses in these tests. */
static const struct world_plan plan = {.nodes = 2,
                                       .args = {"--pool", "p0:bytes=16M", "--heartbeat-ms", "5000"}};

/* Static, not on a stack: a test that fails leaves operations running. */
static struct {
    char key[GETS][16];
    char data[GETS][BYTES];
    struct tarn_piece pieces[GETS];
    struct tarn_item items[GETS];
    tarn_op ops[GETS];
} gets;

static int start(void **state)
{
    return world_start(state, &plan);
}

static struct tarn_client *client_of(struct world *w, uint32_t workers)
{
    return client_open(w->redis->url,
                       (struct tarn_options){.timeout_ms = 8000, .transports = "tcp", .workers = workers});
}

static void put_on(struct tarn_client *c, const char *node, const char *key)
{
    struct tarn_put_options o = {.size = sizeof o, .place = node, .flags = TARN_PUT_REPLACE};

    assert_int_equal(client_put(c, key, *key, BYTES, &o), 0);
}

/* Makes gets of objects <prefix>0 ... on the node. Puts the objects, and gets them so that c has
 * descriptors. */
static void gets_make(struct tarn_client *c, const char *node, const char *prefix)
{
    for (int i = 0; i < GETS; i++) {
        snprintf(gets.key[i], sizeof gets.key[i], "%s%d", prefix, i);
        put_on(c, node, gets.key[i]);
        assert_int_equal(client_get(c, gets.key[i], gets.key[i][0], BYTES), 0);
        gets.pieces[i] = (struct tarn_piece){.addr = gets.data[i], .bytes = BYTES};
        gets.items[i] = (struct tarn_item){
            .key = key_of(gets.key[i]), .pieces = &gets.pieces[i], .npieces = 1, .tensor = tarn_bytes(BYTES)};
    }
}

static void submit(struct tarn_client *c, int i)
{
    assert_int_equal(tarn_submit_get(c, &gets.items[i], 1, NULL, 0, &gets.ops[i]), 0);
}

static void runs_after(struct tarn_client *c, tarn_op op, uint32_t ms)
{
    struct tarn_completion done;

    assert_int_equal(tarn_wait(c, op, ms, &done), TARN_E_TIMEOUT);
}

static void still_runs(struct tarn_client *c, tarn_op op)
{
    runs_after(c, op, MOMENT_MS);
}

static void cancel_at_once(struct tarn_client *c, tarn_op op)
{
    struct tarn_completion done;
    uint64_t begun = harness_now_ms();

    assert_int_equal(tarn_cancel(c, op), 0);
    assert_in_range(harness_now_ms() - begun, 0, SLACK_MS);
    assert_int_equal(tarn_wait(c, op, 0, &done), 0);
    assert_int_equal(done.status, TARN_E_CANCELED);
}

static void ends_well(struct tarn_client *c, tarn_op op)
{
    struct tarn_completion done;

    assert_int_equal(tarn_wait(c, op, 0, &done), 0);
    if (done.status != 0)
        fail_msg("the other operation: %s", done.error);
}

/* Submits the gets so that a single worker runs them together. A get of busy_key keeps the worker busy
 * until all of them are in its queue; busy_key must be on a paused node. */
static void submit_together(struct tarn_client *c, const char *busy_key)
{
    static char data[BYTES];
    static struct tarn_piece piece = {.addr = data, .bytes = BYTES};
    static struct tarn_item item;
    tarn_op busy;

    item = (struct tarn_item){.key = key_of(busy_key), .pieces = &piece, .npieces = 1};
    assert_int_equal(tarn_submit_get(c, &item, 1, NULL, 0, &busy), 0);
    still_runs(c, busy);
    for (int i = 0; i < GETS; i++)
        submit(c, i);
    cancel_at_once(c, busy);
}

static void cancel_ends_each_get_from_a_paused_node(void **state)
{
    struct world *w = *state;

    for (uint32_t workers = 1; workers <= 2; workers++) {
        struct tarn_client *c = client_of(w, workers);
        gets_make(c, "node0", "k");
        harness_signal(w->nodes[0]->process, SIGSTOP);
        for (int round = 0; round < 20; round++) {
            for (int i = 0; i < GETS; i++)
                submit(c, i);
            runs_after(c, gets.ops[0], 1 + (uint32_t)round / 2);
            for (int i = GETS - 1; i >= 0; i--)
                cancel_at_once(c, gets.ops[i]);
        }
        harness_signal(w->nodes[0]->process, SIGCONT);
        assert_int_equal(client_get(c, "k0", 'k', BYTES), 0);
        tarn_close(c);
    }
    harness_passed(w->h);
}

/* Meanwhile the first get makes a link, and succeeds in the end. */
static void cancel_ends_a_wait_for_a_link_that_another_get_opens(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = client_of(w, 1);

    gets_make(c, "node0", "k");
    harness_signal(w->nodes[0]->process, SIGSTOP);
    submit_together(c, "k0");
    still_runs(c, gets.ops[0]);
    for (int i = GETS - 1; i > 0; i--)
        cancel_at_once(c, gets.ops[i]);
    memset(gets.data[1], 'z', 2 * BYTES);
    harness_signal(w->nodes[0]->process, SIGCONT);
    ends_well(c, gets.ops[0]);
    assert_int_equal(gets.data[0][BYTES - 1], 'k');
    for (int i = 0; i < BYTES; i++)
        assert_true(gets.data[1][i] == 'z' && gets.data[2][i] == 'z');
    tarn_close(c);
    harness_passed(w->h);
}

/* A listener with a full backlog that accepts nothing: further connections get no answer. */
static int full_listener(struct tarn_addr *a, int filling[FILLING])
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof at;

    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 0), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
    for (int i = 0; i < FILLING; i++) {
        filling[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        connect(filling[i], (struct sockaddr *)&at, sizeof at);
    }
    *a = (struct tarn_addr){.host = "127.0.0.1", .port = ntohs(at.sin_port)};
    return fd;
}

/* Makes the client use *a as the node's address. */
static void redirect(struct tarn_peer_node *r, const struct tarn_addr *a)
{
    pthread_mutex_lock(&r->lock);
    r->unix_path[0] = '\0';
    tarn_addr_format(a, r->control, sizeof r->control);
    pthread_mutex_unlock(&r->lock);
}

static void cancel_ends_gets_while_a_connection_is_opened(void **state)
{
    struct world *w = *state;
    struct tarn_client *seed = client_of(w, 1), *c = client_of(w, 1);
    int filling[FILLING];
    struct tarn_addr nowhere;
    int listener = full_listener(&nowhere, filling);

    gets_make(seed, "node0", "k");
    for (int i = 0; i < GETS; i++) { /* gives the client descriptors, but no link */
        struct tarn_hits *hits;
        assert_int_equal(tarn_lookup(c, &gets.items[i].key, 1, NULL, &hits), 0);
        tarn_hits_free(hits);
    }
    redirect(client_remote(c, "node0"), &nowhere);
    for (int i = 0; i < GETS; i++)
        submit(c, i);
    still_runs(c, gets.ops[0]);
    for (int i = GETS - 1; i >= 0; i--)
        cancel_at_once(c, gets.ops[i]);
    for (int i = 0; i < FILLING; i++)
        close(filling[i]);
    close(listener);
    tarn_close(seed);
    tarn_close(c);
    harness_passed(w->h);
}

static bool keeper_is_at_it(struct tarn_client *c)
{
    pthread_mutex_lock(&c->monitor.lock);
    bool is = !c->monitor.asked;
    pthread_mutex_unlock(&c->monitor.lock);
    return is;
}

/* A get and a put on a node that the keeper asks only after other nodes, which do not answer either. */
static void cancel_ends_a_wait_for_the_keeper(void **state)
{
    struct world *w = *state;
    struct harness_node *paused[SUSPECTS];
    struct tarn_client *c = client_of(w, 1);
    struct tarn_put_options there = {.size = sizeof there, .place = "node0", .flags = TARN_PUT_REPLACE};
    tarn_op put;
    char id[16];

    gets_make(c, "node0", "k");
    for (int i = 0; i < SUSPECTS; i++) {
        snprintf(id, sizeof id, "x%d", i);
        paused[i] = world_node(w, id);
        put_on(c, id, id); /* the client then knows the node */
        harness_signal(paused[i]->process, SIGSTOP);
    }
    harness_signal(w->nodes[0]->process, SIGSTOP);
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < SUSPECTS; i++) {
            snprintf(id, sizeof id, "x%d", i);
            tarn_peer_node_judged(client_remote(c, id), true);
            tarn_peer_node_aside(client_remote(c, id), TARN_SLOW, "paused by the test");
        }
        HARNESS_UNTIL(keeper_is_at_it(c), 5000);
        tarn_peer_node_judged(client_remote(c, "node0"), true);
        tarn_peer_node_aside(client_remote(c, "node0"), TARN_SLOW, "paused by the test");
        if (turn == 0) {
            submit(c, 0);
            submit(c, 1);
            still_runs(c, gets.ops[0]);
            cancel_at_once(c, gets.ops[1]);
            cancel_at_once(c, gets.ops[0]);
        } else {
            assert_int_equal(tarn_submit_put(c, &gets.items[0], 1, &there, 0, &put), 0);
            still_runs(c, put);
            cancel_at_once(c, put);
        }
    }
    harness_signal(w->nodes[0]->process, SIGCONT);
    for (int i = 0; i < SUSPECTS; i++)
        harness_signal(paused[i]->process, SIGCONT);
    tarn_close(c);
    harness_passed(w->h);
}

/* Two gets wait for a node, and one for the directory. */
static void cancel_ends_gets_while_another_key_is_looked_up(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = client_of(w, 1), *other = client_of(w, 1);

    gets_make(c, "node0", "k");
    put_on(c, "node1", "b");
    assert_int_equal(client_get(c, "b", 'b', BYTES), 0);
    put_on(other, "node0", "unknown");
    gets.items[2].key = key_of("unknown");
    assert_int_equal(client_get(c, "k0", 'k', BYTES), 0);
    harness_signal(w->nodes[0]->process, SIGSTOP);
    harness_signal(w->nodes[1]->process, SIGSTOP);
    harness_signal(w->redis->process, SIGSTOP);
    submit_together(c, "b");
    still_runs(c, gets.ops[0]);
    cancel_at_once(c, gets.ops[0]); /* in flight */
    still_runs(c, gets.ops[1]);
    cancel_at_once(c, gets.ops[1]); /* waits for a link */
    harness_signal(w->nodes[0]->process, SIGCONT);
    harness_signal(w->nodes[1]->process, SIGCONT);
    harness_signal(w->redis->process, SIGCONT);
    ends_well(c, gets.ops[2]);
    assert_int_equal(gets.data[2][0], 'u');
    tarn_close(other);
    tarn_close(c);
    harness_passed(w->h);
}

/* --- calls that the application interrupts ------------------------------------------------------- */

static uint64_t call_begun_ms;

static int interrupt_soon(void *arg)
{
    (void)arg;
    return harness_now_ms() - call_begun_ms >= MOMENT_MS;
}

static int ignore_object(void *arg, const struct tarn_object *o)
{
    (void)arg, (void)o;
    return 0;
}

static int ignore_node(void *arg, const struct tarn_node_info *n)
{
    (void)arg, (void)n;
    return 0;
}

static int ignore_event(void *arg, const char *what, const struct tarn_key *key, const char *node,
                        const char *pool, uint64_t bytes)
{
    (void)arg, (void)what, (void)key, (void)node, (void)pool, (void)bytes;
    return 0;
}

static int call_get(struct tarn_client *c)
{
    return tarn_get(c, &gets.items[0], 1, NULL);
}

static int call_put(struct tarn_client *c)
{
    struct tarn_put_options o = {.size = sizeof o, .place = "node0", .flags = TARN_PUT_REPLACE};
    return tarn_put(c, &gets.items[0], 1, &o);
}

/* In two steps: RESERVE and COMMIT. */
static int call_put_large(struct tarn_client *c)
{
    const struct tarn_put_options o = {.size = sizeof o, .place = "node0", .flags = TARN_PUT_REPLACE};
    return client_put(c, "large", 'l', 20000, &o);
}

static int call_remove(struct tarn_client *c)
{
    return tarn_remove(c, &gets.items[0].key, 1, NULL, 0);
}

static int call_view(struct tarn_client *c)
{
    struct tarn_view v;
    return tarn_view(c, &gets.items[0].key, 0, &v);
}

static int call_pin(struct tarn_client *c)
{
    return tarn_pin(c, &gets.items[0].key, 0, 0);
}

static int call_unpin(struct tarn_client *c)
{
    return tarn_unpin(c, &gets.items[0].key, 0);
}

static struct tarn_put_session *session;

static int call_begin(struct tarn_client *c)
{
    struct tarn_put_options o = {.size = sizeof o, .place = "node0", .flags = TARN_PUT_REPLACE};
    return tarn_put_begin(c, gets.items, 1, &o, &session);
}

static int call_write(struct tarn_client *c)
{
    (void)c;
    int rc = tarn_put_write(session, 0, 0, gets.pieces, 1, 0);
    tarn_put_abort(session);
    return rc;
}

static int call_commit(struct tarn_client *c)
{
    (void)c;
    return tarn_put_commit(session, NULL, 0);
}

static int call_open(struct tarn_client *c)
{
    struct tarn_options o = {.size = sizeof o,
                             .redis = tarn_directory_address(c->directory),
                             .timeout_ms = 8000,
                             .interrupt = interrupt_soon};
    struct tarn_client *another;
    return tarn_open(&o, &another);
}

static int call_lookup(struct tarn_client *c)
{
    struct tarn_hits *hits = NULL;
    int rc = tarn_lookup(c, &gets.items[0].key, 1, NULL, &hits);
    tarn_hits_free(hits);
    return rc;
}

static int call_stat(struct tarn_client *c)
{
    return tarn_stat(c, &gets.items[0].key, 0, ignore_object, NULL);
}

static int call_list(struct tarn_client *c)
{
    return tarn_list(c, NULL, 0, ignore_object, NULL);
}

static int call_nodes(struct tarn_client *c)
{
    return tarn_nodes(c, 0, ignore_node, NULL);
}

static int call_events(struct tarn_client *c)
{
    return tarn_events(c, 0, ignore_event, NULL);
}

struct interrupted_call {
    const char *name;
    int (*call)(struct tarn_client *c);
    int (*before)(struct tarn_client *c);
};

/* Stops the process when the client knows the object and `before` has run. The call must then end early. */
static void is_interrupted(struct world *w, const struct interrupted_call *i, struct harness_process *stopped)
{
    struct tarn_client *c =
        client_open(w->redis->url, (struct tarn_options){.timeout_ms = 8000, .interrupt = interrupt_soon});

    print_message("%s\n", i->name);
    call_begun_ms = harness_now_ms();
    assert_int_equal(call_lookup(c), 0);
    if (i->before)
        assert_int_equal(i->before(c), 0);
    harness_signal(stopped, SIGSTOP);
    call_begun_ms = harness_now_ms();
    int rc = i->call(c);
    uint64_t took = harness_now_ms() - call_begun_ms;
    harness_signal(stopped, SIGCONT);
    if (rc != TARN_E_CANCELED)
        fail_msg("%s: %s", i->name, tarn_last_error());
    assert_in_range(took, MOMENT_MS, SLACK_MS);
    tarn_close(c);
}

static void are_interrupted(struct world *w, const struct interrupted_call *calls, size_t n,
                            struct harness_process *stopped)
{
    struct tarn_client *seed = client_of(w, 1);

    gets_make(seed, "node0", "k");
    for (size_t i = 0; i < n; i++)
        is_interrupted(w, &calls[i], stopped);
    tarn_close(seed);
    harness_passed(w->h);
}

static void an_interrupt_ends_calls_to_a_stopped_node(void **state)
{
    static const struct interrupted_call calls[] = {
        {"get", call_get, NULL},     {"put", call_put, NULL},     {"remove", call_remove, NULL},
        {"view", call_view, NULL},   {"pin", call_pin, NULL},     {"pin, connected", call_pin, call_pin},
        {"unpin", call_unpin, NULL}, {"begin", call_begin, NULL}, {"write", call_write, call_begin},
    };
    struct world *w = *state;

    are_interrupted(w, calls, sizeof calls / sizeof *calls, w->nodes[0]->process);
}

/* The client does not know then whether the commit took effect. */
static void an_interrupt_ends_a_commit_to_a_stopped_node(void **state)
{
    struct world *w = *state;
    struct tarn_client *seed = client_of(w, 1);
    struct tarn_client *c =
        client_open(w->redis->url, (struct tarn_options){.timeout_ms = 8000, .interrupt = interrupt_soon});

    gets_make(seed, "node0", "k");
    call_begun_ms = harness_now_ms();
    assert_int_equal(call_begin(c), 0);
    assert_int_equal(tarn_put_write(session, 0, 0, gets.pieces, 1, 0), 0);
    harness_signal(w->nodes[0]->process, SIGSTOP);
    call_begun_ms = harness_now_ms();
    assert_int_not_equal(call_commit(c), 0);
    assert_in_range(harness_now_ms() - call_begun_ms, MOMENT_MS, SLACK_MS);
    harness_signal(w->nodes[0]->process, SIGCONT);
    tarn_close(c);
    tarn_close(seed);
    harness_passed(w->h);
}

static void an_interrupt_ends_calls_to_a_stopped_redis(void **state)
{
    static const struct interrupted_call calls[] = {
        {"open", call_open, NULL}, {"lookup", call_lookup, NULL}, {"stat", call_stat, NULL},
        {"list", call_list, NULL}, {"nodes", call_nodes, NULL},   {"events", call_events, NULL},
        {"pin", call_pin, NULL},   {"remove", call_remove, NULL}, {"view", call_view, NULL},
    };
    struct world *w = *state;

    are_interrupted(w, calls, sizeof calls / sizeof *calls, w->redis->process);
}

static void an_interrupt_ends_a_call_that_opens_a_connection(void **state)
{
    struct world *w = *state;
    struct tarn_client *seed = client_of(w, 1);
    struct tarn_client *c =
        client_open(w->redis->url, (struct tarn_options){.timeout_ms = 8000, .interrupt = interrupt_soon});
    int filling[FILLING];
    struct tarn_addr nowhere;
    int listener = full_listener(&nowhere, filling);

    gets_make(seed, "node0", "k");
    call_begun_ms = harness_now_ms();
    assert_int_equal(call_lookup(c), 0);
    redirect(client_remote(c, "node0"), &nowhere);
    call_begun_ms = harness_now_ms();
    assert_int_equal(call_pin(c), TARN_E_CANCELED);
    assert_in_range(harness_now_ms() - call_begun_ms, MOMENT_MS, SLACK_MS);
    for (int i = 0; i < FILLING; i++)
        close(filling[i]);
    close(listener);
    tarn_close(seed);
    tarn_close(c);
    harness_passed(w->h);
}

/*
 * The reply to RESERVE has begun to arrive when the put is canceled. Its rest comes later; what it grants is
 * given back, and the node is not taken for gone. `connected`: the client has another connection to the node,
 * so its session goes on in any case.
 */
static void canceled_within_a_reply(struct world *w, struct relay *relay, bool connected)
{
    struct tarn_client *c = client_open(
        w->redis->url,
        (struct tarn_options){.timeout_ms = 8000, .transports = "tcp", .interrupt = interrupt_soon});

    call_begun_ms = harness_now_ms();
    assert_int_equal(call_lookup(c), 0);
    if (connected)
        assert_int_equal(call_pin(c), 0);
    relay_cut(relay, "RESERVE", 6);
    call_begun_ms = harness_now_ms();
    assert_int_equal(call_put_large(c), TARN_E_CANCELED);
    assert_in_range(harness_now_ms() - call_begun_ms, MOMENT_MS, SLACK_MS);
    assert_int_equal(node_pool_figure(w->nodes[0]->control, "reserved"), 1);
    relay_cut(relay, NULL, 0);
    HARNESS_UNTIL(node_pool_figure(w->nodes[0]->control, "reserved") == 0, 5000);
    assert_int_equal(client_remote(c, "node0")->health, TARN_UP);
    tarn_close(c);
}

static void an_interrupt_within_a_reply_leaves_nothing_reserved(void **state)
{
    struct world *w = *state;
    struct tarn_client *seed = client_of(w, 1);
    struct relay *relay = relay_start(w->nodes[0]->unix_path);

    gets_make(seed, "node0", "k");
    canceled_within_a_reply(w, relay, true);
    canceled_within_a_reply(w, relay, false);
    tarn_close(seed);
    relay_stop(relay);
    harness_passed(w->h);
}

#define CANCEL_TEST(f_) cmocka_unit_test_setup_teardown(f_, start, world_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CANCEL_TEST(cancel_ends_each_get_from_a_paused_node),
        CANCEL_TEST(cancel_ends_a_wait_for_a_link_that_another_get_opens),
        CANCEL_TEST(cancel_ends_gets_while_a_connection_is_opened),
        CANCEL_TEST(cancel_ends_a_wait_for_the_keeper),
        CANCEL_TEST(cancel_ends_gets_while_another_key_is_looked_up),
        CANCEL_TEST(an_interrupt_ends_calls_to_a_stopped_node),
        CANCEL_TEST(an_interrupt_ends_a_commit_to_a_stopped_node),
        CANCEL_TEST(an_interrupt_ends_calls_to_a_stopped_redis),
        CANCEL_TEST(an_interrupt_ends_a_call_that_opens_a_connection),
        CANCEL_TEST(an_interrupt_within_a_reply_leaves_nothing_reserved),
    };
    return cmocka_run_group_tests_name("cancel", tests, NULL, NULL);
}
