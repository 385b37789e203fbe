/* SPDX-License-Identifier: Apache-2.0 */
/* What clients and administrators may do with a node. docs/security.md has the rules. */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "tests/node_client.h"
#include "tests/world.h"

/* Commands for administrators only. DRAIN comes last, because it ends the node. */
static const char *const administration[][4] = {
    {"CONFIG", "GET", "id"}, {"CLIENT", "LIST"}, {"EVICT", "p", "1"}, {"DRAIN"}};
enum { NADMINISTRATION = sizeof(administration) / sizeof(administration[0]) };

static redisReply *administer(struct tarn_resp *r, size_t i)
{
    const char *const *a = administration[i];
    return harness_command(r, a[0], a[1], a[1] ? a[2] : NULL, NULL);
}

static void may_not_administer(struct tarn_resp *r)
{
    for (size_t i = 0; i < NADMINISTRATION; i++)
        assert_error(administer(r, i), "AUTH");
}

static void may_administer(struct tarn_resp *r)
{
    for (size_t i = 0; i < NADMINISTRATION; i++) {
        redisReply *reply = administer(r, i);
        if (reply->type == REDIS_REPLY_ERROR)
            fail_msg("%s: %s", administration[i][0], reply->str);
        freeReplyObject(reply);
    }
}

static struct harness_node *start(struct node_world *w, const char *id, const char *secret, const char *admin)
{
    const char *args[9] = {"--pool", "p:bytes=1M", "--heartbeat-ms", "100"};
    size_t n = 4;
    if (secret)
        args[n++] = "--secret", args[n++] = secret;
    if (admin)
        args[n++] = "--admin-secret", args[n++] = admin;
    return harness_node_startv(w->h, id, w->redis, args);
}

static uint64_t count(const char *text, const char *words)
{
    uint64_t n = 0;
    for (; (text = strstr(text, words)); text += strlen(words))
        n++;
    return n;
}

/* If strangers could fill the log, they could fill the disk. */
static void only_some_of_many_refusals_are_logged(void **state)
{
    struct node_world *w = *state;
    struct harness_node *n = start(w, "locked", "s3cret", NULL);
    uint64_t begun = tarn_now_ns(), lines;
    for (int i = 0; i < 300; i++) {
        struct tarn_resp *r = harness_connect(n->control);
        assert_error(harness_command(r, "INFO", NULL), "AUTH");
        tarn_resp_free(r);
    }
    lines = count(harness_log(n->process), "msg=\"refused\"");
    assert_in_range(lines, 1, 20 * ((tarn_now_ns() - begun) / TARN_NS_PER_S + 2));
    harness_passed(w->h);
}

static void administration_over_tcp_needs_the_admin_secret(void **state)
{
    struct node_world *w = *state;
    struct harness_node *open = start(w, "open", NULL, NULL), *n = start(w, "locked", "s3cret", "adm1n");
    struct tarn_resp *r = harness_connect(open->control);
    may_not_administer(r);
    freeReplyObject(harness_command(r, "AUTH", "anything", NULL));
    may_not_administer(r);
    tarn_resp_free(r);

    r = harness_connect(n->control);
    may_not_administer(r);
    freeReplyObject(harness_command(r, "AUTH", "s3cret", NULL));
    assert_error(harness_command(r, "AUTH", "adm1m", NULL), "AUTH");
    may_not_administer(r);
    freeReplyObject(harness_command(r, "HELLO", "1", "01", "s3cret", NULL));
    may_not_administer(r);
    assert_string_equal(harness_running(n->process) ? "runs" : "has ended", "runs");
    redisReply *reply =
        harness_command(r, "HELLO", "1", "01", "adm1n", NULL); /* includes the secret's rights */
    assert_int_equal(reply->type, REDIS_REPLY_ARRAY);
    freeReplyObject(reply);
    may_administer(r);
    assert_int_equal(harness_wait(n->process, 10000), 0);
    tarn_resp_free(r);
    harness_passed(w->h);
}

/* The node's own user and root need no secret on the Unix socket, except for sessions. */
static void the_nodes_user_may_administer_over_the_unix_socket(void **state)
{
    struct node_world *w = *state;
    struct harness_node *n = start(w, "locked", "s3cret", NULL);
    struct tarn_resp *r = harness_connect(n->local);
    redisReply *reply = harness_command(r, "INFO", NULL);
    assert_int_equal(reply->type, REDIS_REPLY_STRING);
    freeReplyObject(reply);
    assert_error(harness_command(r, "HELLO", "1", "01", NULL), "AUTH");
    may_administer(r);
    assert_int_equal(harness_wait(n->process, 10000), 0);
    tarn_resp_free(r);
    harness_passed(w->h);
}

static void no_setting_shows_a_password(void **state)
{
    struct node_world *w = *state;
    struct harness_redis *locked = harness_redis_start(w->h, "pa55word");
    struct harness_node *n = harness_node_start(w->h, "n", locked, "--pool", "p:bytes=1M", "--heartbeat-ms",
                                                "100", "--secret", "s3cret", "--admin-secret", "adm1n", NULL);
    redisReply *r = harness_call(n->local, "CONFIG", "GET", "*", NULL);
    assert_true(r->elements > 20);
    for (size_t i = 0; i < r->elements; i++) {
        assert_null(strstr(r->element[i]->str, "pa55word"));
        assert_null(strstr(r->element[i]->str, "s3cret"));
        assert_null(strstr(r->element[i]->str, "adm1n"));
        if (!strcmp(r->element[i]->str, "redis"))
            assert_string_equal(r->element[i + 1]->str, strchr(locked->url, '@') ? n->redis : "?");
    }
    freeReplyObject(r);
    struct harness_process *p;
    assert_int_equal(harness_run(w->h, &p, "tarnd", "--redis", locked->url, "--print-conf", NULL), 0);
    assert_non_null(strstr(harness_stdout(p, NULL), locked->address));
    assert_null(strstr(harness_stdout(p, NULL), "pa55word"));
    harness_passed(w->h);
}

/* --- a generated secret ------------------------------------------------------------------------- */

static const char *made_secret(const struct harness_redis *r, const char *id)
{
    static char secret[64];
    char record[96];
    snprintf(record, sizeof(record), "tarn:default:node:%s", id);
    redisReply *reply = harness_redis_call(r, "HGET", record, "secret", NULL);
    snprintf(secret, sizeof(secret), "%s", reply->type == REDIS_REPLY_STRING ? reply->str : "");
    freeReplyObject(reply);
    return secret;
}

static void wants_a_secret(const struct harness_node *n, bool yes)
{
    redisReply *r = harness_call(n->control, "HELLO", "1", "01", NULL);
    assert_int_equal(r->type, yes ? REDIS_REPLY_ERROR : REDIS_REPLY_ARRAY);
    freeReplyObject(r);
}

static bool warns(struct harness_node *n)
{
    return strstr(harness_log(n->process), "may read and change what the node holds") != NULL;
}

/* If Redis has a password, the node generates a secret for all clients that have that password. A secret set
 * by the operator is never published. */
static void a_node_makes_a_secret_when_redis_has_a_password(void **state)
{
    struct node_world *w = *state;
    struct harness_redis *locked = harness_redis_start(w->h, "pa55word");
    const char *pool = "p:bytes=1M";
    struct harness_node *open = harness_node_start(w->h, "open", w->redis, "--pool", pool, NULL);
    struct harness_node *made = harness_node_start(w->h, "made", locked, "--pool", pool, NULL);
    struct harness_node *set =
        harness_node_start(w->h, "set", locked, "--pool", pool, "--secret", "s3cret", NULL);
    wants_a_secret(open, false);
    wants_a_secret(made, true);
    wants_a_secret(set, true);
    assert_true(warns(open) && !warns(made) && !warns(set));
    assert_string_equal(made_secret(w->redis, "open"), "");
    assert_string_equal(made_secret(locked, "set"), "");
    assert_int_equal(strlen(made_secret(locked, "made")), 32);
    assert_null(strstr(harness_log(made->process), made_secret(locked, "made")));

    /* The user sets one variable, and the client finds the secret. A given secret is used instead. */
    struct tarn_put_options there = {.size = sizeof(there), .place = "made"};
    struct tarn_client *c = client_open(locked->url, (struct tarn_options){0});
    struct tarn_client *wrong = client_open(locked->url, (struct tarn_options){.secret = "s3cret"});
    assert_int_equal(client_put(c, "k", 'x', 100, &there), 0);
    assert_int_equal(client_get(c, "k", 'x', 100), 0);
    assert_int_equal(client_put(wrong, "l", 'x', 100, &there), TARN_E_AUTH);
    tarn_close(c);
    tarn_close(wrong);
    harness_passed(w->h);
}

/* An address of this host that others may reach. False: there is none. */
static bool far_address(char *out, size_t bytes)
{
    struct ifaddrs *all = NULL;
    bool found = false;
    assert_int_equal(getifaddrs(&all), 0);
    for (const struct ifaddrs *i = all; i && !found; i = i->ifa_next) {
        if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || (i->ifa_flags & IFF_LOOPBACK) ||
            !(i->ifa_flags & IFF_UP))
            continue;
        char host[INET_ADDRSTRLEN];
        inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr, host,
                  sizeof(host));
        snprintf(out, bytes, "%s:0", host);
        found = true;
    }
    freeifaddrs(all);
    return found;
}

/* Other hosts can reach the node, but not its Redis. The node warns that this Redis has no password. */
static void a_node_makes_a_secret_when_other_hosts_can_connect(void **state)
{
    struct node_world *w = *state;
    char listen[64];
    if (!far_address(listen, sizeof(listen)))
        harness_skip("network", "this host has no address but loopback's");
    struct harness_node *n =
        harness_node_start(w->h, "far", w->redis, "--pool", "p:bytes=1M", "--listen", listen, NULL);
    wants_a_secret(n, true);
    assert_int_equal(strlen(made_secret(w->redis, "far")), 32);
    assert_true(warns(n));
    struct tarn_client *c = client_open(w->redis->url, (struct tarn_options){.transports = "tcp"});
    assert_int_equal(client_put(c, "k", 'x', 100, NULL), 0);
    tarn_close(c);
    harness_passed(w->h);
}

/* Each start generates a new secret. Clients of the previous run read the record again. */
static void clients_find_the_new_secret_of_a_restarted_node(void **state)
{
    struct node_world *w = *state;
    struct harness_redis *locked = harness_redis_start(w->h, "pa55word");
    char listen[32], before[64];
    snprintf(listen, sizeof(listen), "127.0.0.1:%u", harness_free_port());
    const char *args[] = {"--listen", listen, "--pool", "p:bytes=1M", "--heartbeat-ms", "100", NULL};
    struct harness_node *n = harness_node_startv(w->h, "again", locked, args);
    struct tarn_client *c =
        client_open(locked->url, (struct tarn_options){.timeout_ms = 20000, .transports = "tcp"});
    assert_int_equal(client_put(c, "k", 'x', 100, NULL), 0);
    snprintf(before, sizeof(before), "%s", made_secret(locked, "again"));
    harness_kill(n->process);
    harness_node_startv(w->h, "again", locked, args);
    assert_string_not_equal(made_secret(locked, "again"), before);
    HARNESS_UNTIL(client_put(c, "l", 'y', 100, &replacing) == 0, 20000);
    assert_int_equal(client_get(c, "l", 'y', 100), 0);
    assert_int_equal(client_get(c, "k", 'x', 100), TARN_E_NOT_FOUND);
    tarn_close(c);
    harness_passed(w->h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_REDIS(administration_over_tcp_needs_the_admin_secret),
        WITH_REDIS(only_some_of_many_refusals_are_logged),
        WITH_REDIS(the_nodes_user_may_administer_over_the_unix_socket),
        WITH_REDIS(no_setting_shows_a_password),
        WITH_REDIS(a_node_makes_a_secret_when_redis_has_a_password),
        WITH_REDIS(a_node_makes_a_secret_when_other_hosts_can_connect),
        WITH_REDIS(clients_find_the_new_secret_of_a_restarted_node),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
