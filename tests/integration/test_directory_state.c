/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory's hash and the records of nodes: what a heartbeat creates, marks, records and leaves alone,
 * on a real Redis. Heartbeats are long, so time passes only when a test moves it.
 */
#include "tests/directory_fixture.h"
#include "tests/redis_relay.h"

#define HASH "tarn:" NS ":directory"
#define NODE "tarn:" NS ":node:node0"

static uint64_t field(struct fixture *f, const char *name)
{
    struct tarn_directory_state s;
    assert_int_equal(tarn_directory_look(f->d, soon(), &s), 0);
    return !strcmp(name, "since") ? s.since_ms : !strcmp(name, "resumed") ? s.resumed_ms : s.lived_ms;
}

/* Moves a time in the hash back. */
static void ago(struct fixture *f, const char *name, uint64_t ms)
{
    char text[24];
    struct tarn_directory_state s;
    assert_int_equal(tarn_directory_look(f->d, soon(), &s), 0);
    snprintf(text, sizeof text, "%llu", (unsigned long long)(s.now_ms - ms));
    command(f, "HSET", HASH, name, text);
}

static void the_first_beat_creates_a_young_directory(void **state)
{
    struct fixture *f = *state;
    struct tarn_node_record n = node("node0", 5);
    struct beaten b = beat(f->d, &n);
    assert_int_equal(b.rc, 0);
    assert_int_equal(strlen(b.b.state.id), 16);
    assert_false(b.b.state.lost || b.b.other || b.b.gone);
    assert_true(b.b.state.since_ms == b.b.state.now_ms);
    assert_false(tarn_directory_aged(&b.b.state, 60000));
    struct beaten second = beat_again(f->d, &n, &b.b);
    assert_string_equal(second.b.state.id, b.b.state.id);
    assert_true(second.b.state.since_ms == b.b.state.since_ms);
    assert_false(second.b.other);
}

static void a_private_directory_is_aged_at_once(void **state)
{
    struct fixture *f = *state;
    struct tarn_node_record n = node("node0", 5);
    struct tarn_beat b = {.node = &n, .heartbeat_ms = 20000, .ttl_ms = 60000, .own_redis = true};
    assert_int_equal(tarn_directory_beat(f->d, &b, soon()), 0);
    assert_true(tarn_directory_aged(&b.state, 60000));
    /* A directory that lost its predecessor is not aged. */
    command(f, "FLUSHALL");
    memcpy(b.known, b.state.id, sizeof b.known);
    assert_int_equal(tarn_directory_beat(f->d, &b, soon()), 0);
    assert_true(b.other && b.state.lost);
    assert_false(tarn_directory_aged(&b.state, 60000));
}

static void a_node_that_knew_the_lost_directory_marks_the_new_one(void **state)
{
    struct fixture *f = *state;
    struct tarn_node_record n = node("node0", 5), fresh = node("fresh", 6);
    struct beaten before = beat(f->d, &n);
    command(f, "FLUSHALL");
    assert_false(beat(f->d, &fresh).b.state.lost);
    ago(f, "since", 1000);
    uint64_t since = field(f, "since");
    struct beaten b = beat_again(f->d, &n, &before.b);
    assert_true(b.b.other && b.b.state.lost);
    assert_true(b.b.state.since_ms > since);
    assert_true(b.b.state.lived_ms == before.b.state.now_ms);
    assert_int_equal(command(f, "EXISTS", NODE), 0); /* the node's record was not created */
    /* A second mark only adds what it remembers. */
    ago(f, "since", 2000);
    since = field(f, "since");
    before.b.state.now_ms += 7;
    b = beat_again(f->d, &n, &before.b);
    assert_true(b.b.state.since_ms == since);
    assert_true(b.b.state.lived_ms == before.b.state.now_ms);
}

static void each_node_that_reported_counts_once(void **state)
{
    struct fixture *f = *state;
    struct tarn_node_record n = node("node", 5), other = node("node0", 6), fresh = node("fresh", 7);
    struct beaten before = beat(f->d, &n), others = beat(f->d, &other);
    assert_int_equal(beat_again(f->d, &n, &before.b).b.state.nodes, 2);
    command(f, "FLUSHALL");
    assert_int_equal(beat(f->d, &fresh).b.state.told, 0); /* the new node knows no earlier directory */
    assert_int_equal(beat_again(f->d, &other, &others.b).b.state.told, 1);
    assert_int_equal(beat_again(f->d, &other, &others.b).b.state.told, 1);
    struct beaten b = beat_again(f->d, &n, &before.b);
    assert_int_equal(b.b.state.told, 2);
    assert_int_equal(b.b.state.nodes, 1); /* only the new node is listed since then */
    command(f, "FLUSHALL");
    assert_int_equal(beat_again(f->d, &n, &before.b).b.state.told, 1); /* its creator tells, too */
}

static void a_directory_older_than_a_ttl_is_not_marked(void **state)
{
    struct fixture *f = *state;
    struct tarn_node_record n = node("node0", 5), fresh = node("fresh", 6);
    struct beaten before = beat(f->d, &n);
    command(f, "FLUSHALL");
    assert_int_equal(beat(f->d, &fresh).rc, 0);
    ago(f, "since", 60001);
    struct beaten b = beat_again(f->d, &n, &before.b);
    assert_true(b.b.other);
    assert_false(b.b.state.lost);
    assert_int_equal(b.b.state.told, 0);
    assert_true(tarn_directory_aged(&b.b.state, 60000));
}

/* Old data, as after a restart with persistence. */
static void another_redis_run_makes_another_directory(void **state)
{
    struct fixture *f = *state;
    struct tarn_node_record n = node("node0", 5), fresh = node("fresh", 6);
    struct beaten before = beat(f->d, &n);
    command(f, "HSET", HASH, "run", "0123456789012345678901234567890123456789");
    ago(f, "since", 100000);
    struct tarn_directory_state s;
    assert_int_equal(tarn_directory_look(f->d, soon(), &s), 0);
    assert_string_equal(s.id, ""); /* no node has noticed yet */
    struct beaten b = beat(f->d, &fresh);
    assert_true(b.b.state.lost);
    assert_string_not_equal(b.b.state.id, before.b.state.id);
    assert_false(tarn_directory_aged(&b.b.state, 60000));
    assert_true(beat_again(f->d, &n, &before.b).b.other);
}

/* --- one heartbeat for all ---------------------------------------------------------------------- */

/* A beat of a node with --heartbeat-ms 500; the others use 20000. */
static struct beaten beat_at_500(struct fixture *f, const struct tarn_node_record *n, const char *known)
{
    struct beaten b = {.b = {.node = n, .heartbeat_ms = 500, .ttl_ms = 1500, .make_until_ms = UINT64_MAX}};
    snprintf(b.b.known, sizeof b.b.known, "%s", known);
    b.rc = tarn_directory_beat(f->d, &b.b, soon());
    return b;
}

static void another_heartbeat_is_refused_and_changes_nothing(void **state)
{
    struct fixture *f = *state;
    struct tarn_node_record n = node("node0", 5), odd = node("odd", 6);
    struct tarn_directory_state before, after;
    assert_int_equal(beat(f->d, &n).rc, 0);
    ago(f, "beat", 59000);
    assert_int_equal(tarn_directory_look(f->d, soon(), &before), 0);
    assert_true(before.heartbeat_ms == 20000);
    static const char *const known[] = {"", "0123456789abcdef"};
    for (size_t i = 0; i < 2; i++) {
        struct beaten b = beat_at_500(f, &odd, known[i]);
        assert_int_equal(b.rc, TARN_E_CONFIG);
        assert_true(b.b.conflict && !b.b.other && !b.b.gone);
        assert_said("--heartbeat-ms 500: the other nodes of namespace '" NS "' (redis at ");
        assert_said(f->path);
        assert_said(") beat every 20000 ms: start with --heartbeat-ms 20000, or stop them first");
        assert_true(b.b.state.heartbeat_ms == 20000 && b.b.state.beat_ms == before.beat_ms);
        assert_string_equal(b.b.state.id, before.id);
    }
    assert_int_equal(tarn_directory_look(f->d, soon(), &after), 0);
    after.now_ms = before.now_ms;
    assert_memory_equal(&after, &before, sizeof after);
    assert_int_equal(command(f, "EXISTS", "tarn:" NS ":node:odd"), 0);
    assert_int_equal(command(f, "SISMEMBER", "tarn:" NS ":nodes", "odd"), 0);
}

/* Objects may have been replaced in the meantime. A node that knew the old directory finds another id. */
static void a_dead_directory_with_another_heartbeat_is_replaced(void **state)
{
    struct fixture *f = *state;
    struct tarn_node_record n = node("node0", 5), odd = node("odd", 6);
    struct beaten before = beat(f->d, &n);
    ago(f, "since", 100000);
    ago(f, "beat", 60001);
    struct beaten b = beat_at_500(f, &odd, "");
    assert_int_equal(b.rc, 0);
    assert_true(b.b.state.heartbeat_ms == 500 && b.b.state.lost);
    assert_string_not_equal(b.b.state.id, before.b.state.id);
    assert_true(b.b.state.since_ms == b.b.state.now_ms && b.b.state.beat_ms == b.b.state.now_ms);
    assert_true(b.b.state.lived_ms + 60001 <= b.b.state.now_ms);
    assert_int_equal(beat_again(f->d, &n, &before.b).rc, TARN_E_CONFIG);
}

/* The old run's heartbeat says nothing about the live nodes. */
static void another_redis_run_has_no_heartbeat(void **state)
{
    struct fixture *f = *state;
    struct tarn_node_record n = node("node0", 5), odd = node("odd", 6);
    assert_int_equal(beat(f->d, &n).rc, 0);
    command(f, "HSET", HASH, "run", "0123456789012345678901234567890123456789");
    assert_int_equal(beat_at_500(f, &odd, "").rc, 0);
}

static void the_directory_is_not_calm_for_another_heartbeat(void **state)
{
    struct fixture *f = *state;
    struct tarn_node_record n = node("node0", 5);
    struct tarn_directory_state s;
    assert_int_equal(beat(f->d, &n).rc, 0);
    ago(f, "since", 100000);
    assert_int_equal(tarn_directory_look(f->d, soon(), &s), 0);
    assert_true(tarn_directory_calm(&s, 20000, 60000));
    assert_false(tarn_directory_calm(&s, 10000, 30000));
}

/* --- time --------------------------------------------------------------------------------------- */

static void a_silence_of_all_nodes_is_recorded(void **state)
{
    struct fixture *f = *state;
    struct tarn_node_record n = node("node0", 5);
    struct beaten b = beat(f->d, &n);
    ago(f, "since", 100000);
    assert_true(b.b.state.resumed_ms == 0);
    ago(f, "beat", 39000);
    b = beat_again(f->d, &n, &b.b);
    assert_true(b.b.state.resumed_ms == 0);
    assert_true(tarn_directory_calm(&b.b.state, 20000, 60000));
    ago(f, "beat", 41000);
    b = beat_again(f->d, &n, &b.b);
    assert_true(b.b.state.resumed_ms == b.b.state.now_ms);
    assert_true(b.b.state.silent_ms + 41000 <= b.b.state.now_ms);
    assert_false(tarn_directory_calm(&b.b.state, 20000, 60000));
    ago(f, "resumed", 60001);
    b = beat_again(f->d, &n, &b.b);
    assert_true(tarn_directory_calm(&b.b.state, 20000, 60000));
    /* No node beats, so it is not calm, either. */
    struct tarn_directory_state s;
    ago(f, "beat", 40000);
    assert_int_equal(tarn_directory_look(f->d, soon(), &s), 0);
    assert_false(tarn_directory_calm(&s, 20000, 60000));
}

static void an_expired_record_is_not_created_again(void **state)
{
    struct fixture *f = *state;
    struct tarn_node_record n = node("node0", 5);
    struct beaten first = beat(f->d, &n);
    command(f, "DEL", NODE); /* as if it expired */
    struct tarn_beat b = {.node = &n, .heartbeat_ms = 20000, .ttl_ms = 60000};
    memcpy(b.known, first.b.state.id, sizeof b.known);
    assert_int_equal(tarn_directory_beat(f->d, &b, soon()), 0);
    assert_true(b.gone);
    assert_int_equal(command(f, "EXISTS", NODE), 0);
    /* Nor after the time limit for making it. */
    b.make_until_ms = b.state.now_ms;
    assert_int_equal(tarn_directory_beat(f->d, &b, soon()), 0);
    assert_true(b.gone);
    assert_int_equal(command(f, "EXISTS", NODE), 0);
    b.make_until_ms = b.state.now_ms + 10000;
    assert_int_equal(tarn_directory_beat(f->d, &b, soon()), 0);
    assert_false(b.gone);
    assert_int_equal(command(f, "EXISTS", NODE), 1);
    b.make_until_ms = 0;
    assert_int_equal(tarn_directory_beat(f->d, &b, soon()), 0);
    assert_false(b.gone);
}

/* A missing node must not be forgotten before the directory is calm enough to be sure. */
static void a_calm_directory_reports_a_dead_node_once(void **state)
{
    struct fixture *f = *state;
    struct tarn_node_record n = node("node0", 5), dead = node("dead", 6);
    struct beaten b = beat(f->d, &n);
    assert_int_equal(beat(f->d, &dead).rc, 0);
    command(f, "DEL", "tarn:" NS ":node:dead");
    assert_false(beat_again(f->d, &n, &b.b).b.left);
    ago(f, "since", 100000);
    assert_true(beat_again(f->d, &n, &b.b).b.left);
    assert_false(beat_again(f->d, &n, &b.b).b.left);
    assert_int_equal(command(f, "SCARD", "tarn:" NS ":nodes"), 1);
}

struct beating {
    struct tarn_directory *d;
    struct tarn_node_record node;
    struct beaten before, b;
};

static void *beat_thread(void *arg)
{
    struct beating *t = arg;
    t->b = beat_again(t->d, &t->node, &t->before.b);
    return NULL;
}

/* The check finds the node missing, but it returns before it is removed from the set. It stays, and no node
 * sweeps its copies. */
static void a_returned_node_is_still_known(void **state)
{
    struct fixture *f = *state;
    struct redis_relay *relay = redis_relay_start(f->h, f->path, "$1\r\n2\r\n$15\r\ntarn:" NS ":nodes");
    char uri[280];
    snprintf(uri, sizeof uri, "unix://%s", relay->path);
    struct beating t = {.d = open_directory(uri), .node = node("node0", 5)};
    struct tarn_node_record back = node("back", 6);
    pthread_t thread;
    t.before = beat(t.d, &t.node);
    assert_int_equal(beat(f->d, &back).rc, 0);
    ago(f, "since", 100000);
    command(f, "DEL", "tarn:" NS ":node:back");
    relay->armed = true;
    assert_int_equal(pthread_create(&thread, NULL, beat_thread, &t), 0);
    HARNESS_UNTIL(!relay->armed, PATIENCE_MS);
    assert_int_equal(beat(f->d, &back).rc, 0);
    relay->deliver = true;
    pthread_join(thread, NULL);
    assert_int_equal(t.b.rc, 0);
    assert_false(t.b.b.left);
    assert_int_equal(command(f, "SISMEMBER", "tarn:" NS ":nodes", "back"), 1);
    tarn_directory_close(t.d);
    redis_relay_end(relay);
}

/* The node may have returned by then and found its location in the record. Each withdrawal has its own limit.
 */
static void a_late_sweep_removes_nothing(void **state)
{
    struct fixture *f = *state;
    struct tarn_directory_state s;
    assert_int_equal(put(f->d, "k", TARN_PUBLISH_ABSENT, 1, "dead", 2), 0);
    assert_int_equal(put(f->d, "late", TARN_PUBLISH_ABSENT, 1, "dead", 2), 0);
    struct tarn_withdraw w[] = {
        {.key = key_of("k"), .location = look(f->d, "k").record.locations[0]},
        {.key = key_of("late"), .location = look(f->d, "late").record.locations[0]},
    };
    assert_int_equal(tarn_directory_look(f->d, soon(), &s), 0);
    w[0].until_ms = s.now_ms + 20000;
    w[1].until_ms = s.now_ms;
    assert_int_equal(tarn_directory_sweep(f->d, w, 2, soon()), 0);
    assert_true(w[0].removed);
    assert_false(w[1].removed);
    assert_int_equal(look(f->d, "k").status, TARN_E_NOT_FOUND);
    assert_int_equal(look(f->d, "late").status, 0);
}

/* The node may count as dead by then. A newer object may be there, put by a node whose clock is behind. */
static void a_late_restore_changes_nothing(void **state)
{
    struct fixture *f = *state;
    struct tarn_directory_state s;
    struct tarn_publish p = copy_of("k", TARN_PUBLISH_RESTORE, 2, "node0", 2);
    assert_int_equal(put(f->d, "k", TARN_PUBLISH_ABSENT, 1, "node1", 4), 0);
    assert_int_equal(tarn_directory_look(f->d, soon(), &s), 0);
    p.until_ms = s.now_ms;
    assert_int_equal(publish(f->d, &p), TARN_E_AGAIN);
    assert_int_equal(look(f->d, "k").record.version, 1);
    p.until_ms = s.now_ms + 20000;
    assert_int_equal(publish(f->d, &p), 0);
    assert_int_equal(look(f->d, "k").record.version, 2);
}

/* A beat reports when another node's record expires before the next beat, so that the node can beat
 * earlier. */
static void a_beat_reports_a_record_about_to_expire(void **state)
{
    struct fixture *f = *state;
    struct tarn_node_record n = node("node0", 5), other = node("other", 6);
    struct beaten b = beat(f->d, &n);
    assert_int_equal(beat(f->d, &other).rc, 0);
    assert_int_equal(beat_again(f->d, &n, &b.b).b.expires_in_ms, 0);
    command(f, "PEXPIRE", "tarn:" NS ":node:other", "15000");
    assert_in_range(beat_again(f->d, &n, &b.b).b.expires_in_ms, 1, 15001);
}

static void a_full_redis_still_takes_the_state(void **state)
{
    struct fixture *f = *state;
    struct tarn_node_record n = node("node0", 5);
    struct beaten b = beat(f->d, &n);
    ago(f, "beat", 50000);
    command(f, "CONFIG", "SET", "maxmemory", "1");
    beat_again(f->d, &n, &b.b);
    uint64_t resumed = field(f, "resumed");
    command(f, "CONFIG", "SET", "maxmemory", "0");
    assert_true(resumed > 0);
}

static void an_evicting_redis_is_refused(void **state)
{
    struct fixture *f = *state;
    struct tarn_node_record n = node("node0", 5);
    static const char *const policies[] = {"allkeys-lru", "allkeys-random", "volatile-ttl", "volatile-lfu"};
    assert_int_equal(tarn_directory_check_redis(f->d, soon()), 0);
    for (size_t i = 0; i < 4; i++) {
        command(f, "CONFIG", "SET", "maxmemory-policy", policies[i]);
        assert_int_equal(tarn_directory_check_redis(f->d, soon()), 0); /* no memory limit */
        command(f, "CONFIG", "SET", "maxmemory", "1000000000");
        assert_int_equal(tarn_directory_check_redis(f->d, soon()), TARN_E_CONFIG);
        assert_non_null(strstr(tarn_last_error(), policies[i]));
        assert_non_null(strstr(tarn_last_error(), "noeviction"));
        assert_true(beat(f->d, &n).b.evicts);
        command(f, "CONFIG", "SET", "maxmemory", "0");
    }
    command(f, "CONFIG", "SET", "maxmemory-policy", "noeviction");
    command(f, "CONFIG", "SET", "maxmemory", "1000000000");
    assert_int_equal(tarn_directory_check_redis(f->d, soon()), 0);
    assert_false(beat(f->d, &n).b.evicts);
    command(f, "CONFIG", "SET", "maxmemory", "0");
}

#define TEST(test_) cmocka_unit_test_setup(test_, empty)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_first_beat_creates_a_young_directory),
        TEST(a_private_directory_is_aged_at_once),
        TEST(a_node_that_knew_the_lost_directory_marks_the_new_one),
        TEST(each_node_that_reported_counts_once),
        TEST(a_directory_older_than_a_ttl_is_not_marked),
        TEST(another_redis_run_makes_another_directory),
        TEST(another_heartbeat_is_refused_and_changes_nothing),
        TEST(a_dead_directory_with_another_heartbeat_is_replaced),
        TEST(another_redis_run_has_no_heartbeat),
        TEST(the_directory_is_not_calm_for_another_heartbeat),
        TEST(a_silence_of_all_nodes_is_recorded),
        TEST(an_expired_record_is_not_created_again),
        TEST(a_calm_directory_reports_a_dead_node_once),
        TEST(a_returned_node_is_still_known),
        TEST(a_late_sweep_removes_nothing),
        TEST(a_late_restore_changes_nothing),
        TEST(a_beat_reports_a_record_about_to_expire),
        TEST(a_full_redis_still_takes_the_state),
        TEST(an_evicting_redis_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
