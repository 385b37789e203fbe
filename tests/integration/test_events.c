/* SPDX-License-Identifier: Apache-2.0 */
/* Events of the directory on a real Redis: what is announced, and what several objects share a command for.
 */
#include "tests/directory_fixture.h"

#include <pthread.h>

struct listener {
    struct tarn_directory *d;
    char lines[8][128];
    size_t n, until;
    int rc;
};

static int hear(void *arg, const char *what, const struct tarn_key *key, const char *node_id,
                const char *pool, uint64_t bytes)
{
    struct listener *l = arg;
    snprintf(l->lines[l->n++], sizeof l->lines[0], "%s [%.*s] %s %s %llu", what, (int)key->bytes,
             (const char *)key->data, node_id, pool, (unsigned long long)bytes);
    return l->n == l->until ? 42 : 0;
}

static void *listen_until(void *arg)
{
    struct listener *l = arg;
    l->rc = tarn_directory_events(l->d, soon(), NULL, hear, l);
    return NULL;
}

static bool subscribed(const struct fixture *f)
{
    redisReply *r = harness_call(f->address, "PUBSUB", "NUMSUB", "tarn:" NS ":events", NULL);
    bool yes = r->type == REDIS_REPLY_ARRAY && r->elements == 2 && r->element[1]->integer == 1;
    freeReplyObject(r);
    return yes;
}

/* How many scripts Redis has run. */
static long long calls(const struct fixture *f)
{
    redisReply *r = harness_call(f->address, "INFO", "commandstats", NULL);
    const char *at = strstr(r->str, "cmdstat_evalsha:calls=");
    long long n = at ? atoll(at + strlen("cmdstat_evalsha:calls=")) : 0;
    freeReplyObject(r);
    return n;
}

static void events_report_each_change(void **state)
{
    struct fixture *f = *state;
    struct listener l = {.d = f->d, .until = 3};
    struct tarn_withdraw w[] = {
        {.key = key_of("a b"), .location = location("node0", 4096, 2), .bytes = 64, .why = "evicted"},
        {.key = key_of("a b"), .location = location("node0", 4096, 2), .bytes = 64, .why = "removed"},
        {.key = key_of("quiet"), .location = location("node0", 8192, 2), .bytes = 64},
    };
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, listen_until, &l), 0);
    HARNESS_UNTIL(subscribed(f), PATIENCE_MS);
    command(f, "PUBLISH", "tarn:" NS ":events", "no event");
    command(f, "PUBLISH", "tarn:" NS ":events", "stored %zz n p 1");
    command(f, "PUBLISH", "tarn:" NS ":events", "\033[31mred k n p 1");
    assert_int_equal(put(f->d, "a b", TARN_PUBLISH_ABSENT, 1, "node0", 2), 0);
    assert_int_equal(put(f->d, "a b", TARN_PUBLISH_ABSENT, 1, "node0", 2), 0); /* no change */
    assert_int_equal(put(f->d, "a b", TARN_PUBLISH_ABSENT, 9, "node0", 2), TARN_E_EXISTS);
    assert_int_equal(put(f->d, "quiet", TARN_PUBLISH_RESTORE, 2, "node0", 2), 0);
    assert_int_equal(tarn_directory_withdraw(f->d, w, COUNT(w), soon()), 0);
    assert_int_equal(put(f->d, "last", TARN_PUBLISH_REPLACE, 3, "node1", 4), 0);
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_int_equal(l.rc, 42);
    assert_string_equal(l.lines[0], "stored [a b] node0 cpu0 64");
    assert_string_equal(l.lines[1], "evicted [a b] node0 cpu0 64");
    assert_string_equal(l.lines[2], "stored [last] node1 cpu0 64");
}

/* One that is refused, and one that changes nothing, are not announced. */
static void events_of_a_batch_are_told_in_order(void **state)
{
    struct fixture *f = *state;
    struct listener l = {.d = f->d, .until = 4};
    struct tarn_publish p[] = {
        copy_of("a", TARN_PUBLISH_ABSENT, 1, "node0", 2),
        copy_of("text", TARN_PUBLISH_ABSENT, 1, "node0", 2),
        copy_of("there", TARN_PUBLISH_ABSENT, 1, "node0", 2),
        copy_of("there", TARN_PUBLISH_REPLACE, 2, "node1", 4),
        copy_of("a", TARN_PUBLISH_ABSENT, 1, "node0", 2),
        copy_of("100%", TARN_PUBLISH_REPLACE, 1, "node0", 2),
    };
    pthread_t t;
    command(f, "SET", "tarn:" NS ":o:text", "x");
    assert_int_equal(pthread_create(&t, NULL, listen_until, &l), 0);
    HARNESS_UNTIL(subscribed(f), PATIENCE_MS);
    assert_int_equal(tarn_directory_publish(f->d, p, COUNT(p), soon()), 0);
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_int_equal(l.rc, 42);
    assert_string_equal(l.lines[0], "stored [a] node0 cpu0 64");
    assert_string_equal(l.lines[1], "stored [there] node0 cpu0 64");
    assert_string_equal(l.lines[2], "stored [there] node1 cpu0 64");
    assert_string_equal(l.lines[3], "stored [100%] node0 cpu0 64");
}

/* One command withdraws what has left one pool. Each object has its own answer. Announced are those whose
 * location went: not a displaced copy, not what is damaged, not what was replaced meanwhile. */
static void withdrawals_of_a_pool_share_a_command(void **state)
{
    struct fixture *f = *state;
    struct listener l = {.d = f->d, .until = 4};
    struct tarn_withdraw w[] = {
        {.key = key_of("a"), .location = location("node0", 4096, 2), .bytes = 0, .why = "evicted"},
        {.key = key_of("a"), .location = location("node0", 4096, 2), .bytes = 1, .why = "evicted"},
        {.key = key_of("text"), .location = location("node0", 4096, 2), .bytes = 2, .why = "evicted"},
        {.key = key_of("displaced"), .location = location("node0", 4096, 2), .bytes = 3, .why = "evicted"},
        {.key = key_of("never"), .location = location("node0", 4096, 2), .bytes = 4, .why = "evicted"},
        {.key = key_of("reused"), .location = location("node0", 4096, 8), .bytes = 5, .why = "evicted"},
        {.key = key_of("b%"), .location = location("node0", 4096, 2), .bytes = 6, .why = "expired"},
        {.key = key_of("b%"), .location = location("node1", 4096, 4), .bytes = 7, .why = "evicted"},
        {.key = key_of("quiet"), .location = location("node1", 4096, 2), .bytes = 8},
        {.key = key_of("a"), .location = location("node0", 4096, 2), .bytes = 9, .why = "evicted"},
    };
    static const bool removed[COUNT(w)] = {false, true, false, true, false, false, true, true, true, false};
    struct tarn_publish last = copy_of("last", TARN_PUBLISH_ABSENT, 1, "node0", 2);
    pthread_t t;
    strcpy(w[0].location.pool, "cpu1");
    command(f, "SET", "tarn:" NS ":o:text", "x");
    assert_int_equal(put(f->d, "a", TARN_PUBLISH_RESTORE, 1, "node0", 2), 0);
    assert_int_equal(put(f->d, "displaced", TARN_PUBLISH_RESTORE, 1, "node0", 2), 0);
    assert_int_equal(put(f->d, "reused", TARN_PUBLISH_RESTORE, 1, "node0", 2), 0);
    assert_int_equal(put(f->d, "quiet", TARN_PUBLISH_RESTORE, 1, "node1", 2), 0);
    assert_int_equal(put(f->d, "b%", TARN_PUBLISH_RESTORE, 1, "node0", 2), 0);
    assert_int_equal(put(f->d, "b%", TARN_PUBLISH_JOIN, 1, "node1", 4), 0);
    assert_int_equal(put(f->d, "displaced", TARN_PUBLISH_REPLACE, 2, "node1", 4), 0);
    assert_int_equal(pthread_create(&t, NULL, listen_until, &l), 0);
    HARNESS_UNTIL(subscribed(f), PATIENCE_MS);
    long long before = calls(f);
    assert_int_equal(tarn_directory_withdraw(f->d, w, COUNT(w), soon()), 0);
    assert_int_equal(calls(f) - before, 5); /* cpu1, node0, node1, without events, node0 */
    assert_int_equal(tarn_directory_publish(f->d, &last, 1, soon()), 0);
    assert_int_equal(pthread_join(t, NULL), 0);
    for (size_t i = 0; i < COUNT(w); i++)
        assert_int_equal(w[i].removed, removed[i]);
    assert_string_equal(l.lines[0], "evicted [a] node0 cpu0 1");
    assert_string_equal(l.lines[1], "expired [b%] node0 cpu0 6");
    assert_string_equal(l.lines[2], "evicted [b%] node1 cpu0 7");
    assert_string_equal(l.lines[3], "stored [last] node0 cpu0 64");
    assert_int_equal(look(f->d, "displaced").record.version, 2);
    assert_int_equal(look(f->d, "reused").status, 0);
    assert_int_equal(command(f, "EXISTS", "tarn:" NS ":o:a", "tarn:" NS ":o:b%25", "tarn:" NS ":o:quiet"), 0);
    assert_int_equal(command(f, "EXISTS", "tarn:" NS ":o:text"), 1);
}

/* More than one command takes. */
static void many_withdrawals(void **state)
{
    enum { N = 200 };
    struct fixture *f = *state;
    struct tarn_withdraw w[N];
    char keys[N][8];
    for (int i = 0; i < N; i++) {
        snprintf(keys[i], sizeof keys[i], "k%d", i);
        assert_int_equal(put(f->d, keys[i], TARN_PUBLISH_ABSENT, 1, "node0", 2), 0);
        w[i] = (struct tarn_withdraw){.key = key_of(keys[i]), .location = location("node0", 4096, 2)};
    }
    long long before = calls(f);
    assert_int_equal(tarn_directory_withdraw(f->d, w, N, soon()), 0);
    assert_int_equal(calls(f) - before, (N + 63) / 64);
    for (int i = 0; i < N; i++)
        assert_true(w[i].removed);
    assert_int_equal(command(f, "DBSIZE"), 0);
}

static void events_end_at_the_deadline(void **state)
{
    struct fixture *f = *state;
    struct listener l = {.until = 1};
    assert_int_equal(tarn_directory_events(f->d, tarn_deadline(50), NULL, hear, &l), 0);
    assert_int_equal(l.n, 0);
}

#define TEST(name_) cmocka_unit_test_setup(name_, empty)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(events_report_each_change),
        TEST(events_of_a_batch_are_told_in_order),
        TEST(withdrawals_of_a_pool_share_a_command),
        TEST(many_withdrawals),
        TEST(events_end_at_the_deadline),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
