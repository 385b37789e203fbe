/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory thread when Redis is late or silent: publishes of one key run in the order they were
 * submitted, publishes that timed out do not run, and remaining work is done.
 */
#include "tests/integration/directory_thread_rig.h"

#include "tests/redis_relay.h"

#define TTL_MS 300 /* time to live of node records, three heartbeats: a node must be missing that long */

/* --- one order of both sides, held at one of them ------------------------------------------------- */

/* A directory thread that reaches Redis through a relay, which can hold requests about key "held". */
struct through {
    struct rig g;
    struct fixture f;
    struct redis_relay *relay;
};

static void through_start(struct through *t, struct fixture *f, const char *word, uint32_t timeout_ms)
{
    char uri[280];
    t->f = *f;
    t->relay = redis_relay_start(f->h, f->path, word);
    snprintf(uri, sizeof uri, "unix://%s", t->relay->path);
    t->f.d = open_directory(uri);
    rig_start_ttl(&t->g, &t->f, timeout_ms, TTL_MS);
    warm_up(&t->g);
}

static void through_stop(struct through *t)
{
    rig_stop(&t->g);
    tarn_directory_close(t->f.d);
    redis_relay_end(t->relay);
}

static void deliver_soon(void *arg)
{
    ((struct through *)arg)->relay->deliver = true;
}

/* A direct publish waits for earlier requests of the directory thread. */
static void nothing_overtakes_the_directory_thread(void **state)
{
    struct fixture *f = *state;
    struct through t;
    struct asked a, b;
    struct tarn_watch *soon_after;
    through_start(&t, f, NS ":o:held", 5000);
    t.g.gen[1] = 2; /* the copy of version 1 lives */
    t.relay->armed = true;
    submit(&t.g, &a, "held", TARN_PUBLISH_REPLACE, 1);
    HARNESS_UNTIL(!t.relay->armed, PATIENCE_MS);
    submit(&t.g, &b, "held", TARN_PUBLISH_ABSENT, 2);
    assert_int_equal(tarn_timer_new(t.g.loop, 100, deliver_soon, &t, &soon_after), 0);
    tarn_loop_run(t.g.loop);
    assert_int_equal(a.publish.status, 0);
    assert_int_equal(b.publish.status, TARN_E_EXISTS);
    assert_int_equal(look(f->d, "held").record.version, 1);
    tarn_watch_free(soon_after);
    through_stop(&t);
}

/* The directory thread waits for earlier direct publishes. */
static void the_directory_thread_overtakes_nothing(void **state)
{
    struct fixture *f = *state;
    struct through t;
    struct asked a, b;
    struct tarn_watch *soon_after;
    through_start(&t, f, NS ":o:held", 5000);
    t.relay->armed = true;
    submit(&t.g, &a, "held", TARN_PUBLISH_ABSENT, 1);
    HARNESS_UNTIL(!t.relay->armed, PATIENCE_MS);
    submit(&t.g, &b, "held", TARN_PUBLISH_REPLACE, 2);
    assert_int_equal(tarn_timer_new(t.g.loop, 100, deliver_soon, &t, &soon_after), 0);
    tarn_loop_run(t.g.loop);
    assert_int_equal(a.publish.status, 0);
    assert_int_equal(b.publish.status, 0);
    assert_int_equal(look(f->d, "held").record.version, 2);
    tarn_watch_free(soon_after);
    through_stop(&t);
}

/* The caller was told that it failed. */
static void an_abandoned_commit_is_not_published_later(void **state)
{
    struct fixture *f = *state;
    struct through t;
    struct asked a;
    through_start(&t, f, NS ":o:held", 500);
    tarn_directory_thread_doubts(t.g.dt);
    t.relay->armed = true;
    submit(&t.g, &a, "held", TARN_PUBLISH_ABSENT, 1);
    HARNESS_UNTIL(!t.relay->armed, PATIENCE_MS);
    assert_false(tarn_directory_thread_cancel(t.g.dt, &a.request));
    tarn_loop_run(t.g.loop);
    assert_int_equal(a.request.failure.code, TARN_E_TIMEOUT);
    assert_int_equal(look(f->d, "held").status, TARN_E_NOT_FOUND);
    assert_true(tarn_directory_thread_doubts(t.g.dt));
    through_stop(&t);
}

/* --- remaining work ------------------------------------------------------------------------------- */

struct leaving {
    struct tarn_request request;
    struct tarn_directory_thread *dt;
    struct tarn_loop *loop;
    uint64_t waiting;
};

static void left(struct tarn_request *r)
{
    struct leaving *l = (struct leaving *)r;
    struct tarn_directory_thread_stats s;
    tarn_directory_thread_stats(l->dt, &s);
    l->waiting = s.waiting_withdrawals;
    tarn_loop_stop(l->loop);
}

static void the_record_goes_after_all_locations(void **state)
{
    struct rig g;
    rig_start(&g, *state, 5000);
    struct leaving l = {.request = {.kind = TARN_REQUEST_LEAVE, .done = left, .record = &g.record},
                        .dt = g.dt,
                        .loop = g.loop};
    for (unsigned v = 0; v < 30000; v++) {
        struct tarn_location at = location("n1", 4096 * v, 2);
        tarn_directory_thread_withdraw(g.dt, &(struct tarn_key){"k", 1}, &at, 8, NULL);
    }
    tarn_directory_thread_submit(g.dt, &l.request);
    tarn_loop_run(g.loop);
    assert_int_equal(l.request.failure.code, 0);
    assert_int_equal(l.waiting, 0);
    rig_stop(&g);
}

static bool is_silent(struct rig *g)
{
    struct tarn_directory_thread_stats s;
    tarn_directory_thread_stats(g->dt, &s);
    return s.silent;
}

/* A withdrawal that does not arrive is sent again when Redis answers. */
static void withdrawals_outlast_a_silent_redis(void **state)
{
    struct fixture *f = *state;
    struct through t;
    through_start(&t, f, NS ":o:held", 500);
    assert_int_equal(put(f->d, "held", TARN_PUBLISH_ABSENT, 3, "n1", 6), 0);
    struct tarn_location at = look(f->d, "held").record.locations[0];
    t.relay->armed = true;
    tarn_directory_thread_withdraw(t.g.dt, &(struct tarn_key){"held", 4}, &at, 8, NULL);
    HARNESS_UNTIL(is_silent(&t.g), PATIENCE_MS);
    assert_false(t.relay->armed);
    rig_beat(&t.g);
    HARNESS_UNTIL(look(f->d, "held").status == TARN_E_NOT_FOUND, PATIENCE_MS);
    through_stop(&t);
}

/* --- SETTLED -------------------------------------------------------------------------------------- */

struct settling {
    struct tarn_request request;
    struct tarn_copy_seen copy;
    bool settled;
    struct tarn_loop *loop;
};

static void settling_done(struct tarn_request *r)
{
    assert_int_equal(r->failure.code, 0);
    tarn_loop_stop(((struct settling *)r)->loop);
}

static void settling_submit(struct rig *g, struct settling *s)
{
    *s = (struct settling){.copy = {.key = key_of("k"), .copy = location("away", 4096, 2)}, .loop = g->loop};
    s->request = (struct tarn_request){.kind = TARN_REQUEST_SETTLED,
                                       .done = settling_done,
                                       .n = 1,
                                       .copies = &s->copy,
                                       .settled = &s->settled};
    tarn_directory_thread_submit(g->dt, &s->request);
}

/* The node is missing, but returns while the directory thread checks the directory. */
static void a_node_that_returns_meanwhile_is_not_missing(void **state)
{
    struct fixture *f = *state;
    struct through t;
    struct settling s;
    through_start(&t, f, "*2\r\n$7\r\nHGETALL\r\n$19\r\ntarn:" NS ":directory", 5000);
    /* Another node beats as often as this one, so the directory is calm. */
    command(f, "HSET", "tarn:" NS ":directory", "beat", "9000000000000", "heartbeat", "100");
    command(f, "HSET", "tarn:" NS ":o:k", "-away/cpu0:1:0000000000000002", "4096");
    settling_submit(&t.g, &s);
    tarn_loop_run(t.g.loop);
    assert_false(s.settled);
    HARNESS_UNTIL((settling_submit(&t.g, &s), tarn_loop_run(t.g.loop), s.settled), PATIENCE_MS);
    t.relay->armed = true;
    settling_submit(&t.g, &s);
    HARNESS_UNTIL(!t.relay->armed, PATIENCE_MS);
    command(f, "HSET", "tarn:" NS ":node:away", "epoch", "0000000000000000");
    t.relay->deliver = true;
    tarn_loop_run(t.g.loop);
    assert_false(s.settled);
    command(f, "DEL", "tarn:" NS ":node:away");
    settling_submit(&t.g, &s);
    tarn_loop_run(t.g.loop);
    assert_false(s.settled); /* it is missing only since now */
    HARNESS_UNTIL((settling_submit(&t.g, &s), tarn_loop_run(t.g.loop), s.settled), PATIENCE_MS);
    through_stop(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(nothing_overtakes_the_directory_thread, empty),
        cmocka_unit_test_setup(the_directory_thread_overtakes_nothing, empty),
        cmocka_unit_test_setup(an_abandoned_commit_is_not_published_later, empty),
        cmocka_unit_test_setup(the_record_goes_after_all_locations, empty),
        cmocka_unit_test_setup(withdrawals_outlast_a_silent_redis, empty),
        cmocka_unit_test_setup(a_node_that_returns_meanwhile_is_not_missing, empty),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
