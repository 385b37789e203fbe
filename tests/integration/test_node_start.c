/* SPDX-License-Identifier: Apache-2.0 */
/* A real tarnd on a real Redis: how a node starts, what it refuses at its start, how it ends. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/node_client.h"
#include "tests/redis_relay.h"
#include "tests/tcpx/child.h"
#include "tests/transports.h"
#include "tests/world.h"

/* True if the node's record has this value in this field. */
static bool recorded(const struct node_world *w, const char *field, const char *value)
{
    redisReply *r = harness_redis_call(w->redis, "HGET", "tarn:default:node:node0", field, NULL);
    bool same = r->type == REDIS_REPLY_STRING && !strcmp(r->str, value);
    freeReplyObject(r);
    return same;
}

/* --- ready -------------------------------------------------------------------------------------- */

static bool listed(const struct node_world *w)
{
    return harness_redis_integer(w->redis, "EXISTS", "tarn:default:node:node0", NULL) == 1;
}

/* A node whose first heartbeat the relay holds back. The start's own request has another number there. */
static struct harness_process *start_without_heartbeat(struct node_world *w, const char *heartbeat_ms,
                                                       struct redis_relay **relay_p)
{
    struct redis_relay *relay = redis_relay_start(w->h, w->redis->unix_path, "$1\r\n0\r\n$4\r\nhost");
    struct harness_redis through = *w->redis;
    snprintf(through.url, sizeof(through.url), "unix://%.150s", relay->path);
    relay->armed = true;
    struct harness_process *node = harness_node_spawn(w->h, "node0", &through, "--pool", "cpu0:bytes=1M",
                                                      "--heartbeat-ms", heartbeat_ms, NULL);
    HARNESS_UNTIL(!relay->armed, 5000);
    *relay_p = relay;
    return node;
}

/* The start takes so long that the record it wrote expires. */
static void a_node_is_ready_when_a_heartbeat_has_found_its_record(void **state)
{
    struct node_world *w = *state;
    struct redis_relay *relay;
    struct harness_process *node = start_without_heartbeat(w, "300", &relay);
    HARNESS_UNTIL(!listed(w), 5000);
    assert_string_equal(harness_stdout(node, NULL), "");
    relay->deliver = true;
    assert_non_null(harness_wait_line(node, "tarnd ready ", HARNESS_TIMEOUT_MS));
    assert_true(recorded(w, "state", "ready"));
    harness_kill(node);
    redis_relay_end(relay);
    harness_passed(w->h);
}

static void a_node_that_ends_does_not_become_ready(void **state)
{
    struct node_world *w = *state;
    struct redis_relay *relay;
    struct harness_process *node = start_without_heartbeat(w, "3000", &relay);
    char local[160];
    snprintf(local, sizeof(local), "unix:%s", harness_path(w->h, "node0.sock"));
    harness_signal(node, SIGTERM);
    HARNESS_UNTIL(!strcmp(node_info(local, "state"), "draining"), 5000);
    relay->deliver = true;
    assert_int_equal(harness_wait(node, HARNESS_TIMEOUT_MS), 0);
    assert_string_equal(harness_stdout(node, NULL), "");
    redis_relay_end(relay);
    harness_passed(w->h);
}

/* --- the end of a node -------------------------------------------------------------------------- */

static void drain_waits_for_puts_in_flight_and_withdraws(void **state)
{
    struct node_world *w = *state;
    struct node_client c = node_connect(w->node->control);
    struct node_grant refused;
    node_must_put(&c, "absent", "stored", 100);
    struct node_grant g = node_reserve(&c, "absent", "in-flight", 100);
    harness_signal(w->node->process, SIGTERM);
    HARNESS_UNTIL(!strcmp(node_info(w->node->control, "state"), "draining"), 5000);
    assert_prefix(node_try_reserve(&c, "absent", "new", 100, &refused), "BUSY");
    HARNESS_UNTIL(recorded(w, "state", "draining"), 5000); /* with the next heartbeat */
    redisReply *r = node_commit(&c, &g, "5000");
    assert_int_equal(r->type, REDIS_REPLY_ARRAY);
    freeReplyObject(r);
    assert_int_equal(harness_wait(w->node->process, 10000), 0);
    assert_int_equal(harness_redis_integer(w->redis, "KEYS", "tarn:*", NULL), 1); /* the directory's hash */
    node_close(&c);
    harness_passed(w->h);
}

static void drain_gives_up_stuck_reservations(void **state)
{
    struct node_world *w = *state;
    struct harness_node *n = harness_node_start(w->h, "stuck", w->redis, "--pool", "p:bytes=1M",
                                                "--heartbeat-ms", "100", "--drain-timeout-ms", "200", NULL);
    struct node_client c = node_connect(n->control);
    node_reserve(&c, "absent", "never", 100);
    freeReplyObject(harness_call(n->local, "DRAIN", NULL));
    assert_int_equal(harness_wait(n->process, 5000), 0);
    node_close(&c);
    harness_passed(w->h);
}

/* A client that has reserved and then falls silent delays the node's end for 2 s, not longer. */
static void an_idle_reservation_does_not_delay_the_end(void **state)
{
    struct node_world *w = *state;
    struct harness_node *n = harness_node_start(w->h, "idle", w->redis, "--pool", "p:bytes=1M",
                                                "--heartbeat-ms", "100", "--drain-timeout-ms", "60000", NULL);
    struct node_client c = node_connect(n->control);
    node_reserve(&c, "absent", "never", 100);
    uint64_t begun = harness_now_ms();
    HARNESS_UNTIL(harness_now_ms() - begun > 1000, 5000);
    harness_signal(n->process, SIGTERM);
    HARNESS_UNTIL(!strcmp(node_info(n->control, "state"), "draining"), 5000);
    HARNESS_UNTIL(harness_now_ms() - begun > 1500, 5000);
    assert_true(harness_running(n->process));
    assert_int_equal(harness_wait(n->process, 10000), 0);
    node_close(&c);
    harness_passed(w->h);
}

static void second_signal_ends_at_once(void **state)
{
    struct node_world *w = *state;
    struct node_client c = node_connect(w->node->control);
    node_reserve(&c, "absent", "never", 100);
    harness_signal(w->node->process, SIGHUP);
    harness_signal(w->node->process, SIGINT);
    HARNESS_UNTIL(!strcmp(node_info(w->node->control, "state"), "draining"), 5000);
    harness_signal(w->node->process, SIGINT);
    assert_int_equal(harness_wait(w->node->process, 5000), 1);
    node_close(&c);
    harness_passed(w->h);
}

/* --- starting ----------------------------------------------------------------------------------- */

static void refuses(struct node_world *w, struct harness_process *p, int status, const char *sentence)
{
    (void)w;
    assert_int_equal(harness_wait(p, 10000), status);
    if (!strstr(harness_log(p), sentence))
        fail_msg("no \"%s\" in: %s", sentence, harness_log(p));
}

static void second_node_of_an_id_refuses(void **state)
{
    struct node_world *w = *state;
    struct harness_process *p =
        harness_node_spawn(w->h, "node0", w->redis, "--unix", harness_path(w->h, "second.sock"), "--pool",
                           "p:bytes=1M", "--heartbeat-ms", "100", NULL);
    refuses(w, p, 1, "node id node0: the node at 127.0.0.1:");
    freeReplyObject(harness_call(w->node->control, "PING", NULL));
    harness_passed(w->h);
}

/* The node may live in another PID namespace, where its PID means another process, or no process here. */
static void silent_node_keeps_its_id_whatever_its_pid(void **state)
{
    struct node_world *w = *state;
    struct harness_node *n = harness_node_start(w->h, "silent", w->redis, "--ns", "slow", "--pool",
                                                "p:bytes=1M", "--heartbeat-ms", "1000", NULL);
    harness_signal(n->process, SIGSTOP);
    assert_int_equal(harness_redis_integer(w->redis, "HSET", "tarn:slow:node:silent", "pid", "4194304", NULL),
                     0);
    /* The record lives on, as if the node still beat without answering. */
    assert_int_equal(harness_redis_integer(w->redis, "PERSIST", "tarn:slow:node:silent", NULL), 1);
    struct harness_process *p = harness_node_spawn(
        w->h, "silent", w->redis, "--ns", "slow", "--unix", harness_path(w->h, "second.sock"), "--pool",
        "p:bytes=1M", "--heartbeat-ms", "1000", "--redis-timeout-ms", "500", NULL);
    refuses(w, p, 1, "keeps it, and does not answer");
    harness_signal(n->process, SIGCONT);
    assert_string_equal(node_info(n->control, "state"), "ready");
    harness_passed(w->h);
}

/* A killed node can be restarted when its record is gone. */
static void a_killed_node_can_be_restarted_with_its_id(void **state)
{
    struct node_world *w = *state;
    struct harness_node *n =
        harness_node_start(w->h, "again", w->redis, "--pool", "p:bytes=1M", "--heartbeat-ms", "100", NULL);
    harness_kill(n->process);
    n = harness_node_start(w->h, "again", w->redis, "--pool", "p:bytes=1M", "--heartbeat-ms", "100", NULL);
    assert_string_equal(node_info(n->control, "state"), "ready");
    harness_passed(w->h);
}

/* A killed node's port may belong to another server by then: here its record names that of Redis, which
 * answers HELLO with an error. */
static void another_server_at_a_dead_nodes_address_is_not_that_node(void **state)
{
    struct node_world *w = *state;
    struct harness_node *n =
        harness_node_start(w->h, "again", w->redis, "--pool", "p:bytes=1M", "--heartbeat-ms", "300", NULL);
    harness_kill(n->process);
    harness_redis_integer(w->redis, "HSET", "tarn:default:node:again", "control", w->redis->address, NULL);
    n = harness_node_start(w->h, "again", w->redis, "--pool", "p:bytes=1M", "--heartbeat-ms", "300", NULL);
    assert_string_equal(node_info(n->control, "state"), "ready");
    harness_passed(w->h);
}

/* Nobody can tell that it is that node, but its record goes on. */
static void a_node_with_a_secret_keeps_its_id(void **state)
{
    struct node_world *w = *state;
    harness_node_start(w->h, "kept", w->redis, "--pool", "p:bytes=1M", "--secret", "s", "--heartbeat-ms",
                       "300", NULL);
    struct harness_process *p =
        harness_node_spawn(w->h, "kept", w->redis, "--unix", harness_path(w->h, "second.sock"), "--pool",
                           "p:bytes=1M", "--heartbeat-ms", "300", "--redis-timeout-ms", "500", NULL);
    refuses(w, p, 1, "keeps it, and does not answer or wants a secret");
    harness_passed(w->h);
}

static void taken_port_is_named(void **state)
{
    struct node_world *w = *state;
    struct harness_process *p =
        harness_node_spawn(w->h, "n2", w->redis, "--listen", w->node->control, "--pool", "p:bytes=1M", NULL);
    refuses(w, p, 1, w->node->control);
    harness_passed(w->h);
}

static void absent_redis_is_named(void **state)
{
    struct node_world *w = *state;
    char url[64];
    snprintf(url, sizeof(url), "redis://127.0.0.1:%u", harness_free_port());
    struct harness_process *p =
        harness_node_spawn(w->h, "n3", NULL, "--redis", url, "--pool", "p:bytes=1M", NULL);
    refuses(w, p, 1, url + strlen("redis://"));
    harness_passed(w->h);
}

static void wrong_redis_password_is_named(void **state)
{
    struct node_world *w = *state;
    struct harness_redis *locked = harness_redis_start(w->h, "right");
    char url[64];
    snprintf(url, sizeof(url), "redis://:wrong@127.0.0.1:%u", locked->port);
    struct harness_process *p =
        harness_node_spawn(w->h, "n4", NULL, "--redis", url, "--pool", "p:bytes=1M", NULL);
    refuses(w, p, 1, "password");
    assert_null(strstr(harness_log(p), "wrong@"));
    struct harness_node *n = harness_node_start(w->h, "n5", locked, "--pool", "p:bytes=1M", NULL);
    assert_int_equal(harness_redis_integer(locked, "EXISTS", "tarn:default:node:n5", NULL), 1);
    assert_null(strstr(n->redis, "right"));
    harness_passed(w->h);
}

static void redis_that_runs_no_scripts_is_named(void **state)
{
    struct node_world *w = *state;
    struct harness_redis *bare = harness_redis_start(w->h, NULL);
    freeReplyObject(harness_redis_call(bare, "ACL", "SETUSER", "default", "-@scripting", NULL));
    struct harness_process *p =
        harness_node_spawn(w->h, "n6", NULL, "--redis", bare->url, "--pool", "p:bytes=1M", NULL);
    refuses(w, p, 1, "grant the user what metadata/KEYS.md lists");
    harness_passed(w->h);
}

static void wrong_settings_are_refused(void **state)
{
    static const struct {
        const char *option, *value, *sentence;
    } bad[] = {
        {"--pool", "p", "no size"},
        {"--pool", "p:bytes=0", "bytes=0"},
        {"--pool", "p:byts=1M", "byts"},
        {"--pool", "gpu0:bytes=1M", "GPU"},
        {"--pool", "p:bytes=1M,device=", "device="},
        {"--pool", "p:bytes=2M,device=0,huge=1", "huge"},
        {"--pool", "a/b:bytes=1M", "name"},
        {"--id", "a b", "--id"},
        {"--listen", "0.0.0.0:0", "0.0.0.0"},
        {"--listen", "nonsense", "--listen"},
        {"--heartbeat-ms", "5", "heartbeat-ms"},
        {"--log-level", "loud", "loud"},
        {"--eviction", "mru", "give lru or adaptive"},
        {"--tcpx-unpack-impl", "quick",
         "TARN_TCPX_UNPACK_IMPL=quick: there is no such way to unpack: name d2d"},
        {"--tcpx-plugin", "/nowhere/lib.so", "--tcpx-plugin /nowhere/lib.so: No such file or directory"},
        {"--hartbeat-ms", "100", "heartbeat-ms"},
    };
    struct node_world *w = *state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char name[32];
        snprintf(name, sizeof(name), "bad%zu", i);
        const char *argv[] = {"tarnd", bad[i].option, bad[i].value, NULL};
        refuses(w, harness_spawn(w->h, name, argv), 2, bad[i].sentence);
    }
    harness_passed(w->h);
}

/* The flag wins over the environment variable that the transport reads. */
static void the_flag_decides_which_plugin_is_loaded(void **state)
{
    struct node_world *w = *state;
    setenv("TARN_TCPX_PLUGIN", child_plugin("fixture-v7"), 1);
    struct harness_process *p = harness_node_spawn(w->h, "node0", w->redis, "--transports", "tcpx",
                                                   "--tcpx-plugin", child_plugin("bad-1"), NULL);
    unsetenv("TARN_TCPX_PLUGIN");
    refuses(w, p, 1, "libtcpx-bad-1.so: has none of ncclNetPlugin_v7");
    harness_passed(w->h);
}

/* A node or client without a usable transport would otherwise fail later, and elsewhere. */
static void an_unusable_transport_is_refused_at_the_start(void **state)
{
    static const char *const names[] = {"tcpx", "rdma"};
    struct node_world *w = *state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char sentence[512];
        struct tarn_client *c;
        if (find_transport(names[i])->probe() == 0)
            continue; /* this machine can use it */
        snprintf(sentence, sizeof(sentence), "transport %s is not usable here: %s", names[i],
                 tarn_last_error());
        refuses(w, harness_node_spawn(w->h, names[i], w->redis, "--transports", names[i], NULL), 1, sentence);
        const struct tarn_options o = {.size = sizeof(o), .redis = w->redis->url, .transports = names[i]};
        assert_int_equal(tarn_open(&o, &c), TARN_E_UNAVAILABLE);
        assert_string_equal(tarn_last_error(), sentence);
    }
    harness_passed(w->h);
}

static void pool_larger_than_memory_is_refused(void **state)
{
    struct node_world *w = *state;
    struct harness_process *p = harness_node_spawn(w->h, "huge", w->redis, "--pool", "p:bytes=100T", NULL);
    refuses(w, p, 1, "pool");
    harness_passed(w->h);
}

static void a_private_redis_starts_and_ends_with_its_node(void **state)
{
    struct node_world *w = *state;
    struct harness_node *n = harness_node_start(w->h, "alone", NULL, "--pool", "p:bytes=1M", NULL);
    const char *address = strchr(n->redis, '@') + 1;
    struct tarn_client *c = client_open(n->redis, (struct tarn_options){0});
    assert_int_equal(client_put(c, "k", 'x', 100, NULL), 0);
    assert_int_equal(client_get(c, "k", 'x', 100), 0);
    tarn_close(c);
    harness_signal(n->process, SIGTERM);
    assert_int_equal(harness_wait(n->process, 10000), 0);
    struct tarn_addr a;
    int fd;
    assert_int_equal(tarn_addr_parse(address, "redis", &a), 0);
    assert_int_not_equal(tarn_net_connect(&a, tarn_deadline(1000), NULL, &fd), 0);

    /* A killed node takes its private Redis with it. */
    n = harness_node_start(w->h, "killed", NULL, "--pool", "p:bytes=1M", NULL);
    assert_int_equal(tarn_addr_parse(strchr(n->redis, '@') + 1, "redis", &a), 0);
    harness_kill(n->process);
    HARNESS_UNTIL(tarn_net_connect(&a, tarn_deadline(1000), NULL, &fd) || close(fd), 5000);
    harness_passed(w->h);
}

/* Clients get its address by TCP; the node itself uses the Unix socket, whatever the path is made of. */
static void a_node_talks_to_its_private_redis_by_the_unix_socket(void **state)
{
    struct node_world *w = *state;
    const char *dir = harness_path(w->h, "a@b:%41?c,d");
    char path[200];
    assert_int_equal(mkdir(dir, 0700), 0);
    snprintf(path, sizeof(path), "%s/n.sock", dir);
    struct harness_node *n =
        harness_node_start(w->h, "near", NULL, "--pool", "p:bytes=1M", "--unix", path, NULL);
    assert_memory_equal(n->redis, "redis://default:", 16);
    snprintf(path, sizeof(path), "unix://%s/redis-", dir);
    assert_prefix(node_info(n->local, "redis"), path);
    struct tarn_client *c = client_open(n->redis, (struct tarn_options){0});
    assert_int_equal(client_put(c, "k", 'x', 100, NULL), 0);
    tarn_close(c);
    harness_passed(w->h);
}

static void texts_are_printed(void **state)
{
    static const struct {
        const char *flag, *part;
    } texts[] = {{"--help", "--pool"},
                 {"--version", "tarnd "},
                 {"--man", ".Nm tarnd"},
                 {"--markdown", "tarnd"},
                 {"--print-conf", "heartbeat-ms = 1000"}};
    struct node_world *w = *state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct harness_process *p;
        assert_int_equal(harness_run(w->h, &p, "tarnd", texts[i].flag, NULL), 0);
        if (!strstr(harness_stdout(p, NULL), texts[i].part))
            fail_msg("%s: no \"%s\"", texts[i].flag, texts[i].part);
    }
    harness_passed(w->h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_REDIS(a_node_is_ready_when_a_heartbeat_has_found_its_record),
        WITH_REDIS(a_node_that_ends_does_not_become_ready),
        WITH_NODE(drain_waits_for_puts_in_flight_and_withdraws),
        WITH_REDIS(drain_gives_up_stuck_reservations),
        WITH_REDIS(an_idle_reservation_does_not_delay_the_end),
        WITH_NODE(second_signal_ends_at_once),
        WITH_NODE(second_node_of_an_id_refuses),
        WITH_REDIS(silent_node_keeps_its_id_whatever_its_pid),
        WITH_REDIS(a_killed_node_can_be_restarted_with_its_id),
        WITH_REDIS(another_server_at_a_dead_nodes_address_is_not_that_node),
        WITH_REDIS(a_node_with_a_secret_keeps_its_id),
        WITH_NODE(taken_port_is_named),
        WITH_REDIS(absent_redis_is_named),
        WITH_REDIS(wrong_redis_password_is_named),
        WITH_REDIS(redis_that_runs_no_scripts_is_named),
        WITH_REDIS(wrong_settings_are_refused),
        WITH_REDIS(the_flag_decides_which_plugin_is_loaded),
        WITH_REDIS(an_unusable_transport_is_refused_at_the_start),
        WITH_REDIS(pool_larger_than_memory_is_refused),
        WITH_REDIS(a_private_redis_starts_and_ends_with_its_node),
        WITH_REDIS(a_node_talks_to_its_private_redis_by_the_unix_socket),
        WITH_REDIS(texts_are_printed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
