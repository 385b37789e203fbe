/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a client handles a node's answers, and missing ones. It reports a refusal in the node's own words and
 * does not set the node aside for it. It repeats what is only delayed. Silence counts, however short the
 * calls are.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/net.h"
#include "base/text.h"
#include "client/client.h"
#include "client/health.h"
#include "client/peer_node.h"
#include "tests/harness.h"
#include "tests/node_client.h"
#include "tests/relay.h"
#include "tests/stall.h"
#include "transport/tcp/tcp_frame.h"
#include <tarn/tarn.h>

#define MIB (1u << 20)
#define SESSIONS_MAX 256 /* of one process at a node */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLACK_MS (1000 * harness_slower())
#else
#define SLACK_MS (200 * harness_slower())
#endif

struct world {
    struct harness *h;
    struct harness_redis *redis;
    struct harness_node *node[2];
};

/* Lines in the clients' logs that report a node set aside. Not in the world: a client of a failed test still
 * counts while the world is freed. */
static _Atomic int set_aside;

static void count_set_aside(void *arg, enum tarn_log_level level, const char *line)
{
    (void)arg;
    (void)level;
    if (strstr(line, "node set aside"))
        atomic_fetch_add(&set_aside, 1);
}

static struct tarn_client *client_of(struct world *w, const char *transports)
{
    struct tarn_options o = {.size = sizeof o,
                             .redis = w->redis->url,
                             .timeout_ms = 3000,
                             .transports = transports,
                             .log_level = TARN_LOG_WARN,
                             .log = count_set_aside};
    struct tarn_client *c;
    if (tarn_open(&o, &c))
        fail_msg("open: %s", tarn_last_error());
    return c;
}

/* A record lives 3 heartbeats: longer than the pauses in these tests. */
static int start(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    atomic_store(&set_aside, 0);
    w->h = harness_new();
    w->redis = harness_redis_start(w->h, NULL);
    for (int i = 0; i < 2; i++)
        w->node[i] = harness_node_start(w->h, i ? "node1" : "node0", w->redis, "--pool", "p0:bytes=64M",
                                        "--heartbeat-ms", "5000", NULL);
    *state = w;
    return 0;
}

static int stop(void **state)
{
    struct world *w = *state;
    harness_free(w->h);
    free(w);
    return 0;
}

static int put(struct tarn_client *c, const char *key, size_t bytes, const struct tarn_put_options *o)
{
    char *data = calloc(1, bytes);
    struct tarn_piece piece = {.addr = data, .bytes = bytes};
    struct tarn_item item = {
        .key = {key, strlen(key)}, .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(bytes)};
    int status = tarn_put(c, &item, 1, o);
    free(data);
    return status;
}

static int get(struct tarn_client *c, const char *key, size_t bytes, uint32_t timeout_ms)
{
    char *data = malloc(bytes);
    struct tarn_piece piece = {.addr = data, .bytes = bytes};
    struct tarn_item item = {.key = {key, strlen(key)}, .pieces = &piece, .npieces = 1};
    struct tarn_get_options o = {.size = sizeof o, .timeout_ms = timeout_ms};
    int status = tarn_get(c, &item, 1, &o);
    free(data);
    return status;
}

static bool is_up(struct tarn_client *c, const char *id)
{
    return atomic_load(&client_remote(c, id)->health) == TARN_UP;
}

static const struct tarn_put_options on_node0 = {.size = sizeof on_node0, .place = "node0"};

/* --- HELLO is answered BUSY --------------------------------------------------------------------- */

struct crowd {
    struct tarn_resp *resp[SESSIONS_MAX + 1];
    int n;
};

/* Opens sessions of this process at the node until the node refuses more. */
static void crowd_in(struct crowd *crowd, const struct harness_node *n)
{
    char address[160], session[17];
    bool taken = true;

    snprintf(address, sizeof address, "unix:%s", n->unix_path);
    crowd->n = 0;
    while (taken && crowd->n <= SESSIONS_MAX) {
        struct tarn_resp *r = harness_connect(address);
        snprintf(session, sizeof session, "%016" PRIx64, tarn_random64());
        redisReply *reply = harness_command(r, "HELLO", "1", session, NULL);
        taken = reply->type == REDIS_REPLY_ARRAY;
        if (!taken)
            assert_prefix(reply->str, "BUSY ");
        freeReplyObject(reply);
        if (taken)
            crowd->resp[crowd->n++] = r;
        else
            tarn_resp_free(r);
    }
    assert_false(taken);
}

static void crowd_out(struct crowd *crowd)
{
    while (crowd->n > 0)
        tarn_resp_free(crowd->resp[--crowd->n]);
}

static void assert_too_many_sessions(int status)
{
    if (status != TARN_E_BUSY)
        fail_msg("wanted BUSY, got %d: %s", status, tarn_last_error());
    if (!strstr(tarn_last_error(), "has 256 sessions with node node0: close clients that are not used"))
        fail_msg("not the node's sentence: %s", tarn_last_error());
}

static void a_put_fails_when_its_node_has_too_many_sessions(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = client_of(w, NULL);
    struct crowd crowd;

    crowd_in(&crowd, w->node[0]);
    uint64_t begun = harness_now_ms();
    assert_too_many_sessions(put(c, "k", 100, &on_node0));
    assert_in_range(harness_now_ms() - begun, 0, 250 + SLACK_MS);
    assert_true(is_up(c, "node0"));
    crowd_out(&crowd);
    HARNESS_UNTIL(put(c, "k", 100, &on_node0) == 0, 1000);
    assert_int_equal(atomic_load(&set_aside), 0);
    tarn_close(c);
    harness_passed(w->h);
}

static void a_put_goes_elsewhere_when_a_node_has_too_many_sessions(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = client_of(w, NULL);
    struct crowd crowd;
    char key[16];

    crowd_in(&crowd, w->node[0]);
    for (int i = 0; i < 8; i++) { /* each node is the first choice of some key */
        snprintf(key, sizeof key, "k%d", i);
        if (put(c, key, 100, NULL))
            fail_msg("put %d: %s", i, tarn_last_error());
    }
    assert_int_equal(node_pool_figure(w->node[1]->control, "objects"), 8);
    assert_int_equal(atomic_load(&set_aside), 0);
    crowd_out(&crowd);
    tarn_close(c);
    harness_passed(w->h);
}

static void each_get_fails_while_its_node_has_too_many_sessions(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = client_of(w, NULL);
    struct node_client n = node_connect(w->node[0]->control);
    struct crowd crowd;

    assert_string_equal(node_put(&n, "absent", "k", 100), "");
    crowd_in(&crowd, w->node[0]);
    for (int i = 0; i < 3; i++) {
        uint64_t begun = harness_now_ms();
        assert_too_many_sessions(get(c, "k", 100, 0));
        assert_in_range(harness_now_ms() - begun, 0, 250 + SLACK_MS);
    }
    crowd_out(&crowd);
    HARNESS_UNTIL(get(c, "k", 100, 0) == 0, 5000);
    assert_int_equal(atomic_load(&set_aside), 0);
    node_close(&n);
    tarn_close(c);
    harness_passed(w->h);
}

/* A node was set aside for another reason. An answer counts as a sign of life, even if it is only BUSY. */
static void a_busy_reply_counts_as_a_sign_of_life(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = client_of(w, NULL);
    struct tarn_peer_node *r = client_remote(c, "node0");
    struct crowd crowd;

    crowd_in(&crowd, w->node[0]);
    tarn_peer_node_aside(r, TARN_GONE, "a hiccup made by the test");
    assert_true(tarn_peer_node_settled(r, tarn_deadline(3000), NULL));
    assert_too_many_sessions(put(c, "k", 100, &on_node0));
    crowd_out(&crowd);
    tarn_close(c);
    harness_passed(w->h);
}

/* A node that refuses the client's sessions learns of displaced copies from the directory, within a
 * heartbeat. */
static void a_node_without_free_sessions_frees_displaced_copies(void **state)
{
    struct world *w = *state;
    struct tarn_client *seed = client_of(w, NULL), *c = client_of(w, NULL);
    struct tarn_put_options instead = {
        .size = sizeof instead, .flags = TARN_PUT_REPLACE, .place = "node1", .timeout_ms = 10000};
    struct crowd crowd;

    assert_int_equal(put(seed, "k", 100, &on_node0), 0);
    tarn_close(seed);
    crowd_in(&crowd, w->node[0]);
    assert_int_equal(put(c, "k", 100, &instead), 0);
    assert_int_equal(node_pool_figure(w->node[0]->control, "objects"), 0);
    crowd_out(&crowd);
    assert_int_equal(get(c, "k", 100, 0), 0);
    tarn_close(c);
    harness_passed(w->h);
}

/* --- COMMIT is answered BUSY -------------------------------------------------------------------- */

/* An unfinished PUT of the client's session, on its own data connection. */
struct writer {
    struct tarn_resp *control;
    int fd;
    char *payload;
    uint64_t bytes, sent;
};

static void send_all(int fd, const void *data, uint64_t bytes)
{
    for (uint64_t done = 0; done < bytes;) {
        ssize_t n = send(fd, (const char *)data + done, bytes - done, MSG_NOSIGNAL);
        assert_true(n > 0);
        done += (uint64_t)n;
    }
}

static void data_connect(struct writer *p, const struct harness_node *n, const struct tarn_client *c)
{
    char session[17], address[128], token[64];
    struct tarn_addr a;

    p->control = harness_connect(n->control);
    snprintf(session, sizeof session, "%016" PRIx64, c->session);
    freeReplyObject(harness_command(p->control, "HELLO", "1", session, NULL));
    redisReply *reply = harness_command(p->control, "ATTACH", "tcp", "r", NULL);
    assert_int_equal(sscanf(reply->element[0]->str, "v1 %127s %63s", address, token), 2);
    freeReplyObject(reply);
    assert_int_equal(tarn_addr_parse(address, "data port", &a), 0);
    assert_int_equal(tarn_net_connect(&a, tarn_deadline(3000), NULL, &p->fd), 0);
    fcntl(p->fd, F_SETFL, fcntl(p->fd, F_GETFL) & ~O_NONBLOCK);
    struct tarn_tcp_hello hello = {{.magic = TARN_TCP_MAGIC,
                                    .version = TARN_TCP_VERSION,
                                    .op = TARN_TCP_HELLO,
                                    .gen = c->session,
                                    .bytes = TARN_TOKEN},
                                   {0}};
    memcpy(hello.token, token, sizeof hello.token);
    send_all(p->fd, &hello, sizeof hello);
}

/* The reservation that the node will give next for this many bytes. */
static struct tarn_tcp_frame next_grant(const struct harness_node *n, unsigned bytes)
{
    struct node_client k = node_connect(n->control);
    struct node_grant g = node_reserve(&k, "absent", "only to see the slot", bytes);

    freeReplyObject(harness_command(k.resp, "ABORT", g.pool, g.slot, g.gen, NULL));
    node_close(&k);
    return (struct tarn_tcp_frame){.magic = TARN_TCP_MAGIC,
                                   .version = TARN_TCP_VERSION,
                                   .op = TARN_TCP_PUT,
                                   .slot = (uint32_t)atoi(g.slot),
                                   .gen = strtoull(g.gen, NULL, 16) + 2,
                                   .offset = g.offset,
                                   .bytes = bytes};
}

enum { HELD = 16 * MIB, HELD_BACK = 100 };

/* Returns when the node is reading the PUT: what is sent exceeds the sockets' buffers. */
static struct writer writer_begin(const struct harness_node *n, const struct tarn_client *c,
                                  const struct tarn_tcp_frame *put_frame)
{
    struct writer p = {.bytes = put_frame->bytes, .sent = put_frame->bytes - HELD_BACK};

    p.payload = calloc(1, p.bytes);
    data_connect(&p, n, c);
    send_all(p.fd, put_frame, sizeof *put_frame);
    send_all(p.fd, p.payload, p.sent);
    return p;
}

static void writer_end(struct writer *p, bool complete)
{
    if (complete)
        send_all(p->fd, p->payload, p->bytes - p->sent);
    if (complete) { /* the answers to this connection's HELLO and PUT */
        struct tarn_tcp_frame answers[2];
        assert_int_equal(recv(p->fd, answers, sizeof answers, MSG_WAITALL), sizeof answers);
        assert_int_equal(answers[1].status, 0);
    }
    close(p->fd);
    tarn_resp_free(p->control);
    free(p->payload);
}

static struct tarn_put_session *begun_put(struct tarn_client *c, const char *key,
                                          const struct tarn_put_options *o)
{
    struct tarn_item item = {.key = {key, strlen(key)}, .tensor = tarn_bytes(HELD)};
    struct tarn_put_session *s;

    if (tarn_put_begin(c, &item, 1, o, &s))
        fail_msg("begin: %s", tarn_last_error());
    return s;
}

struct committer {
    struct tarn_put_session *session;
    pthread_t thread;
    _Atomic bool done;
    int status;
};

static void *commit_main(void *arg)
{
    struct committer *k = arg;
    k->status = tarn_put_commit(k->session, NULL, 5000);
    atomic_store(&k->done, true);
    return NULL;
}

static void a_commit_waits_for_a_put_that_still_arrives(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = client_of(w, "tcp");
    struct tarn_tcp_frame frame = next_grant(w->node[0], HELD);
    struct committer k = {.session = begun_put(c, "k", &on_node0)};
    struct writer p = writer_begin(w->node[0], c, &frame);

    pthread_create(&k.thread, NULL, commit_main, &k);
    uint64_t until = harness_now_ms() + 100;
    while (harness_now_ms() < until && !atomic_load(&k.done))
        harness_pause();
    assert_false(atomic_load(&k.done));
    writer_end(&p, true);
    pthread_join(k.thread, NULL);
    assert_int_equal(k.status, 0);
    assert_int_equal(get(c, "k", HELD, 0), 0);
    assert_int_equal(node_pool_figure(w->node[0]->control, "reserved"), 0);
    tarn_close(c);
    harness_passed(w->h);
}

static void a_commit_that_stays_delayed_frees_its_space(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = client_of(w, "tcp");
    struct tarn_tcp_frame frame = next_grant(w->node[0], HELD);
    struct tarn_put_session *s = begun_put(c, "k", &on_node0);
    struct writer p = writer_begin(w->node[0], c, &frame);

    uint64_t begun = harness_now_ms();
    assert_int_equal(tarn_put_commit(s, NULL, 300), TARN_E_BUSY);
    assert_prefix(tarn_last_error(), "put key 'k': node node0 (");
    assert_in_range(harness_now_ms() - begun, 200, 300 + SLACK_MS);
    HARNESS_UNTIL(node_pool_figure(w->node[0]->control, "reserved") == 0, 1000);
    assert_int_equal(node_pool_figure(w->node[0]->control, "objects"), 0);
    writer_end(&p, false);
    assert_int_equal(get(c, "k", HELD, 0), TARN_E_NOT_FOUND);
    assert_int_equal(atomic_load(&set_aside), 0);
    tarn_close(c);
    harness_passed(w->h);
}

/* A delayed copy becomes visible when its PUT has ended, or goes. This holds for the first copy and for
 * copies that join. */
static void each_delayed_copy_becomes_visible_or_is_freed(void **state)
{
    static const struct tarn_put_options thrice = {.size = sizeof thrice, .replicas = 3};
    struct world *w = *state;
    struct harness_node *nodes[3] = {w->node[0], w->node[1],
                                     harness_node_start(w->h, "node2", w->redis, "--pool", "p0:bytes=64M",
                                                        "--heartbeat-ms", "5000", NULL)};
    struct tarn_client *c = client_of(w, "tcp");
    char key[16];

    for (int i = 0; i < 12; i++) { /* node0 holds the first, second or third copy, depending on the key */
        bool complete = i % 2;
        struct tarn_tcp_frame frame = next_grant(w->node[0], HELD);
        snprintf(key, sizeof key, "k%d", i);
        struct committer k = {.session = begun_put(c, key, &thrice)};
        struct writer p = writer_begin(w->node[0], c, &frame);
        if (complete) {
            pthread_create(&k.thread, NULL, commit_main, &k);
            writer_end(&p, true);
            pthread_join(k.thread, NULL);
            assert_int_equal(k.status, 0);
            assert_int_equal(tarn_remove(c, &(struct tarn_key){key, strlen(key)}, 1, NULL, 0), 0);
        } else {
            assert_int_equal(tarn_put_commit(k.session, NULL, 1000 * harness_slower()), TARN_E_BUSY);
            writer_end(&p, false);
        }
        for (int n = 0; n < 3; n++) {
            HARNESS_UNTIL(node_pool_figure(nodes[n]->control, "reserved") == 0, 1000);
            HARNESS_UNTIL(node_pool_figure(nodes[n]->control, "objects") == 0, 1000);
        }
        /* No slot comes back between the next grant and the reservation after it. */
        HARNESS_UNTIL(node_pool_figure(w->node[0]->control, "limbo") == 0, 3000);
    }
    tarn_close(c);
    harness_passed(w->h);
}

/* --- no answer ---------------------------------------------------------------------------------- */

static void short_gets_from_a_paused_node_soon_fail_at_once(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = client_of(w, "tcp");

    assert_int_equal(put(c, "k", 100, &on_node0), 0);
    assert_int_equal(get(c, "k", 100, 0), 0);
    harness_signal(w->node[0]->process, SIGSTOP);
    uint64_t begun = harness_now_ms();
    while (is_up(c, "node0") && harness_now_ms() - begun < 5000)
        assert_int_not_equal(get(c, "k", 100, 40), 0);
    assert_in_range(harness_now_ms() - begun, 200, 250 + 2 * 40 + SLACK_MS);
    begun = harness_now_ms();
    assert_int_equal(get(c, "k", 100, 3000), TARN_E_NODE_DOWN);
    assert_in_range(harness_now_ms() - begun, 0, SLACK_MS);
    harness_signal(w->node[0]->process, SIGCONT);
    HARNESS_UNTIL(get(c, "k", 100, 0) == 0, 5000);
    tarn_close(c);
    harness_passed(w->h);
}

static void short_puts_to_a_paused_node_soon_fail_at_once(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = client_of(w, "tcp");
    struct tarn_put_options quick = on_node0;

    quick.timeout_ms = 40;
    assert_int_equal(put(c, "k", 100, &on_node0), 0);
    harness_signal(w->node[0]->process, SIGSTOP);
    uint64_t begun = harness_now_ms();
    while (is_up(c, "node0") && harness_now_ms() - begun < 5000)
        assert_int_not_equal(put(c, "new", 100, &quick), 0);
    assert_in_range(harness_now_ms() - begun, 200, 250 + 2 * 40 + SLACK_MS);
    begun = harness_now_ms();
    assert_int_equal(put(c, "new", 100, &on_node0), TARN_E_NODE_DOWN);
    assert_in_range(harness_now_ms() - begun, 0, SLACK_MS);
    harness_signal(w->node[0]->process, SIGCONT);
    HARNESS_UNTIL(put(c, "new", 100, &on_node0) == 0, 5000);
    tarn_close(c);
    harness_passed(w->h);
}

static uint64_t failovers(struct tarn_client *c)
{
    struct tarn_stats s = {.size = sizeof s};
    assert_int_equal(tarn_client_stats(c, &s), 0);
    return s.failovers;
}

static void short_gets_soon_begin_with_the_other_replica(void **state)
{
    static const struct tarn_put_options twice = {.size = sizeof twice, .replicas = 2};
    struct world *w = *state;
    struct tarn_client *c = client_of(w, "tcp");

    assert_int_equal(put(c, "k", 100, &twice), 0);
    assert_int_equal(get(c, "k", 100, 0), 0);
    int first = client_remote(c, "node0")->sides[0][0].idle ? 0 : 1; /* the node that served the get */
    const char *id = first ? "node1" : "node0";
    harness_signal(w->node[first]->process, SIGSTOP);
    uint64_t begun = harness_now_ms();
    while (is_up(c, id) && harness_now_ms() - begun < 5000)
        assert_int_equal(get(c, "k", 100, 400), 0);
    assert_in_range(harness_now_ms() - begun, 200, 250 + 2 * 200 + SLACK_MS);
    uint64_t before = failovers(c);
    assert_true(before > 0);
    for (int i = 0; i < 5; i++)
        assert_int_equal(get(c, "k", 100, 400), 0);
    assert_int_equal(failovers(c), before);
    harness_signal(w->node[first]->process, SIGCONT);
    tarn_close(c);
    harness_passed(w->h);
}

/* The object is pinned because puts that were given up hold their space while their bytes still arrive. An
 * unpinned object would be evicted for the next put. */
static void short_deadlines_set_no_healthy_node_aside(void **state)
{
    static const struct tarn_put_options pinned = {
        .size = sizeof pinned, .place = "node0", .flags = TARN_PUT_PIN};
    struct world *w = *state;
    struct tarn_client *c = client_of(w, "tcp");
    struct tarn_put_options quick = {
        .size = sizeof quick, .timeout_ms = 1, .flags = TARN_PUT_REPLACE, .place = "node0"};
    uint64_t late = 0;

    assert_int_equal(put(c, "big", 24 * MIB, &pinned), 0);
    struct stalls *stalls = stalls_start(NULL, NULL);
    uint64_t begun_ns = tarn_now_ns();
    while (late <= 20 || tarn_now_ns() - begun_ns < 1500000000) {
        late += get(c, "big", 24 * MIB, 1) == TARN_E_TIMEOUT;
        late += put(c, "other", 8 * MIB, &quick) == TARN_E_TIMEOUT;
        assert_in_range(tarn_now_ns() - begun_ns, 0, 30000000000);
    }
    /* A host that stalls processes for this long makes a healthy node silent. */
    uint64_t stalled_ns = stalls_within(stalls, begun_ns, tarn_now_ns());
    stalls_stop(stalls);
    if (atomic_load(&set_aside) > 0 && stalled_ns < 100000000)
        fail_msg("a healthy node was set aside; stalled for %" PRIu64 " ns", stalled_ns);
    assert_int_equal(get(c, "big", 24 * MIB, 20000), 0);
    tarn_close(c);
    harness_passed(w->h);
}

/* --- malformed answers -------------------------------------------------------------------------- */

enum { LARGE = 20000 }; /* goes by COMMIT, not by STORE */

static void a_malformed_reply_is_no_success(void **state)
{
    struct world *w = *state;
    struct relay *relay = relay_start(w->node[0]->unix_path);
    struct tarn_client *c = client_of(w, "tcp");
    struct tarn_put_options replace = {.size = sizeof replace, .place = "node0", .flags = TARN_PUT_REPLACE};
    const struct tarn_key key = {"k", 1};
    assert_int_equal(put(c, "k", LARGE, &on_node0), 0);
    relay_answer(relay, "DELETE", "*1\r\n$1\r\n1\r\n");
    assert_int_equal(tarn_remove(c, &key, 1, NULL, 2000), TARN_E_PROTOCOL);
    assert_non_null(strstr(tarn_last_error(), "DELETE: not an answer"));
    relay_answer(relay, "COMMIT", "*1\r\n:1\r\n");
    assert_int_equal(put(c, "k", LARGE, &replace), TARN_E_PROTOCOL);
    assert_non_null(strstr(tarn_last_error(), "COMMIT: not an answer"));
    tarn_close(c);
    relay_stop(relay);
    harness_passed(w->h);
}

static void an_unreadable_list_of_old_copies_is_in_doubt(void **state)
{
    struct world *w = *state;
    struct relay *relay = relay_start(w->node[0]->unix_path);
    struct tarn_client *c = client_of(w, "tcp");
    struct tarn_put_options replace = {.size = sizeof replace, .place = "node0", .flags = TARN_PUT_REPLACE};
    const struct tarn_key key = {"k", 1};
    assert_int_equal(put(c, "k", LARGE, &on_node0), 0);
    relay_answer(relay, "COMMIT", "*1\r\n*1\r\n$3\r\nold\r\n");
    assert_int_equal(put(c, "k", LARGE, &replace), TARN_E_IN_DOUBT);
    assert_non_null(strstr(tarn_last_error(), "key 'k': done, but not all old copies"));
    relay_answer(relay, "DELETE", "*1\r\n*2\r\n:1\r\n:3\r\n");
    assert_int_equal(tarn_remove(c, &key, 1, NULL, 2000), TARN_E_IN_DOUBT);
    assert_non_null(strstr(tarn_last_error(), "key 'k': done, but not all old copies"));
    tarn_close(c);
    relay_stop(relay);
    harness_passed(w->h);
}

#define CASE(fn_) cmocka_unit_test_setup_teardown(fn_, start, stop)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(a_put_fails_when_its_node_has_too_many_sessions),
        CASE(a_put_goes_elsewhere_when_a_node_has_too_many_sessions),
        CASE(each_get_fails_while_its_node_has_too_many_sessions),
        CASE(a_busy_reply_counts_as_a_sign_of_life),
        CASE(a_node_without_free_sessions_frees_displaced_copies),
        CASE(a_commit_waits_for_a_put_that_still_arrives),
        CASE(a_commit_that_stays_delayed_frees_its_space),
        CASE(each_delayed_copy_becomes_visible_or_is_freed),
        CASE(short_gets_from_a_paused_node_soon_fail_at_once),
        CASE(short_puts_to_a_paused_node_soon_fail_at_once),
        CASE(short_gets_soon_begin_with_the_other_replica),
        CASE(short_deadlines_set_no_healthy_node_aside),
        CASE(a_malformed_reply_is_no_success),
        CASE(an_unreadable_list_of_old_copies_is_in_doubt),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("client answers", tests, NULL, NULL);
}
