/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the tests of the directory thread: the thread with a loop and a heartbeat, a real Redis, and
 * publishes of one item.
 */
#ifndef TARN_TESTS_UNIT_DIRECTORY_THREAD_RIG_H
#define TARN_TESTS_UNIT_DIRECTORY_THREAD_RIG_H

#include "base/container.h"
#include "server/directory/directory_thread.h"
#include "tests/directory_fixture.h"

#define TICK_MS 20

struct rig {
    struct fixture *f;
    struct tarn_loop *loop;
    struct tarn_watch *tick;
    struct tarn_node_record record;
    struct tarn_request beat;
    uint32_t ttl_ms; /* of node records */
    struct tarn_directory_thread *dt;
    _Atomic uint64_t gen[64];
    _Atomic uint32_t touch[64];
    struct tarn_pool_memory pool;
    int warmed;         /* keys of warm_up() */
    unsigned waiting;   /* requests not yet completed */
    unsigned more;      /* publishes still to submit for one key, each from a completion */
    uint64_t version;   /* version of the last of those */
    uint64_t last_done; /* version of the last successful completion */
};

struct asked {
    struct tarn_request request;
    struct tarn_publish publish;
    struct rig *rig;
    bool done;
};

static inline void tick(void *arg)
{
    tarn_directory_thread_tick(((struct rig *)arg)->dt);
}

static inline void beaten(struct tarn_request *r)
{
    struct rig *g = TARN_CONTAINER_OF(r, struct rig, beat);
    assert_int_equal(r->failure.code, 0);
    tarn_loop_stop(g->loop);
}

/* The first heartbeat of a node with a private Redis: the directory counts as settled afterwards. */
static inline void rig_beat(struct rig *g)
{
    g->record = node("n1", 7);
    g->beat = (struct tarn_request){.kind = TARN_REQUEST_BEAT,
                                    .done = beaten,
                                    .beat = {.node = &g->record,
                                             .heartbeat_ms = g->ttl_ms / 3,
                                             .ttl_ms = g->ttl_ms,
                                             .own_redis = true,
                                             .make_until_ms = UINT64_MAX}};
    tarn_directory_thread_submit(g->dt, &g->beat);
    tarn_loop_run(g->loop);
}

/* ttl_ms: time to live of node records. */
static inline void rig_start_ttl(struct rig *g, struct fixture *f, uint32_t timeout_ms, uint32_t ttl_ms)
{
    *g = (struct rig){.f = f, .ttl_ms = ttl_ms};
    g->pool = (struct tarn_pool_memory){.name = "cpu0", .gen = g->gen, .touch = g->touch, .nslots = 64};
    struct tarn_directory_thread_options o = {.directory = f->d,
                                              .node = "n1",
                                              .pools = &g->pool,
                                              .npools = 1,
                                              .timeout_ms = timeout_ms,
                                              .heartbeat_ms = ttl_ms / 3,
                                              .ttl_ms = ttl_ms};
    assert_int_equal(tarn_loop_new(&g->loop), 0);
    o.loop = g->loop;
    assert_int_equal(tarn_directory_thread_start(&o, &g->dt), 0);
    assert_int_equal(tarn_timer_new(g->loop, TICK_MS, tick, g, &g->tick), 0);
    rig_beat(g);
}

static inline void rig_start(struct rig *g, struct fixture *f, uint32_t timeout_ms)
{
    rig_start_ttl(g, f, timeout_ms, 180000);
}

static inline void rig_stop(struct rig *g)
{
    tarn_watch_free(g->tick);
    tarn_directory_thread_stop(g->dt);
    tarn_loop_free(g->loop);
}

static inline void done(struct tarn_request *r);

static inline void submit(struct rig *g, struct asked *a, const char *key, enum tarn_publish_mode mode,
                          uint64_t version)
{
    *a = (struct asked){.publish = copy_of(key, mode, version, "n1", 2 * version), .rig = g};
    a->publish.record.locations[0].slot = version % 64;
    a->request =
        (struct tarn_request){.kind = TARN_REQUEST_PUBLISH, .done = done, .n = 1, .publishes = &a->publish};
    g->waiting++;
    tarn_directory_thread_submit(g->dt, &a->request);
}

static inline void submit_next(struct rig *g, struct asked *a)
{
    submit(g, a, "k", rand() % 2 ? TARN_PUBLISH_REPLACE : TARN_PUBLISH_ABSENT, ++g->version);
}

static inline void done(struct tarn_request *r)
{
    struct asked *a = (struct asked *)r;
    struct rig *g = a->rig;
    a->done = true;
    if (!r->failure.code && !a->publish.status)
        g->last_done = a->publish.record.version;
    if (g->more) {
        g->more--;
        submit_next(g, a);
    }
    if (--g->waiting == 0)
        tarn_loop_stop(g->loop);
}

/* Publishes one item, waits, and returns its status. */
static inline int publish_one(struct rig *g, const char *key, enum tarn_publish_mode mode, uint64_t version)
{
    struct asked a;
    submit(g, &a, key, mode, version);
    tarn_loop_run(g->loop);
    assert_true(a.done);
    return a.request.failure.code ? a.request.failure.code : a.publish.status;
}

static inline uint64_t direct(struct rig *g)
{
    struct tarn_directory_thread_stats s;
    tarn_directory_thread_stats(g->dt, &s);
    return s.direct;
}

/* Publishes until one goes directly. REPLACE never goes directly. */
static inline void warm_up(struct rig *g)
{
    uint64_t before = direct(g), last_done = g->last_done;
    for (uint64_t v = 1; direct(g) == before; v++) {
        char key[24];
        snprintf(key, sizeof(key), "warm%d", g->warmed++);
        assert_int_equal(publish_one(g, key, TARN_PUBLISH_ABSENT, v), 0);
    }
    g->last_done = last_done;
}

#endif
