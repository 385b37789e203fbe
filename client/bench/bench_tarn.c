/* SPDX-License-Identifier: Apache-2.0 */
/* Our contestants: get, put and view of a load's objects with libtarn. */
#include "client/bench/bench.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tarn/layout.h>

#include "base/clock.h"
#include "base/error.h"

#define KEY_BYTES 64
#define CALL_MS 60000

struct bench_objects {
    struct tarn_client *c, *viewer;
    struct bench_load *load;
    const char *place;
    char (*names)[KEY_BYTES];
    struct tarn_item *items; /* one for each object */
    struct tarn_key *keys;
    struct tarn_view *views; /* taken by bench_objects_views(); NULL until then */
    const void **addrs;
    struct tarn_put_session **sessions; /* one for each thread during a slice of bench_put_write_ops */
};

/* --- objects ------------------------------------------------------------------------------------ */

static void name_objects(struct bench_objects *o, const char *name)
{
    for (size_t i = 0; i < o->load->objects; i++) {
        struct tarn_item *item = &o->items[i];
        int n = snprintf(o->names[i], KEY_BYTES, "bench/%s/%llu/%zu", name,
                         (unsigned long long)o->load->bytes, i);
        o->keys[i] = item->key = (struct tarn_key){.data = o->names[i], .bytes = (size_t)n};
        item->pieces = bench_load_pieces(o->load, i);
        item->npieces = o->load->npieces;
        if (o->load->layout) {
            item->npieces /= o->load->arrays;
            item->layout = o->load->layout;
            item->pages = o->load->pages + i * item->npieces;
        }
        item->tensor = tarn_bytes(o->load->bytes);
    }
}

int bench_objects_new(struct tarn_client *c, struct tarn_client *viewer, const char *name,
                      struct bench_load *l, struct bench_objects **o_p)
{
    struct bench_objects *o = calloc(1, sizeof *o);

    if (!o)
        return tarn_fail(TARN_E_NO_MEMORY, "objects of the benchmark: out of memory");
    *o = (struct bench_objects){.c = c, .viewer = viewer, .load = l};
    o->names = calloc(l->objects, sizeof *o->names);
    o->items = calloc(l->objects, sizeof *o->items);
    o->keys = calloc(l->objects, sizeof *o->keys);
    if (!o->names || !o->items || !o->keys) {
        free(o->keys);
        o->keys = NULL;
        bench_objects_free(o);
        return tarn_fail(TARN_E_NO_MEMORY, "objects of the benchmark: out of memory");
    }
    name_objects(o, name);
    *o_p = o;
    return 0;
}

void bench_objects_place(struct bench_objects *o, const char *place)
{
    o->place = place;
}

void bench_objects_free(struct bench_objects *o)
{
    if (!o)
        return;
    for (size_t i = 0; o->views && i < o->load->objects; i++)
        tarn_release(o->viewer, &o->views[i]);
    bench_objects_remove(o);
    free(o->sessions);
    free(o->views);
    free(o->addrs);
    free(o->keys);
    free(o->items);
    free(o->names);
    free(o);
}

int bench_objects_put(struct bench_objects *o)
{
    struct tarn_put_options put = {.size = sizeof put, .timeout_ms = CALL_MS, .place = o->place};
    struct tarn_get_options get = {.size = sizeof get, .timeout_ms = CALL_MS};
    size_t n = o->load->depth;
    int rc = 0;

    bench_load_fill(o->load, o->load->bytes);
    for (size_t i = 0; rc == 0 && i < o->load->objects; i += n)
        rc = tarn_put(o->c, &o->items[i], n, &put);
    for (size_t i = 0; rc == 0 && i < o->load->objects; i += n)
        rc = tarn_get(o->c, &o->items[i], n, &get);
    return rc;
}

void bench_objects_remove(struct bench_objects *o)
{
    if (o->keys)
        tarn_remove(o->c, o->keys, o->load->objects, NULL, CALL_MS);
}

int bench_warm_pool(struct tarn_client *c, struct tarn_client *viewer)
{
    uint64_t bytes = 64 << 20;
    struct bench_load *l;
    struct bench_objects *o;
    int rc = bench_load_new(bytes, 1, 1, 1, BENCH_POOL_BYTES / bytes - 3, &l);

    if (rc != 0)
        return rc;
    rc = bench_objects_new(c, viewer, "warm", l, &o);
    if (rc == 0) {
        rc = bench_objects_put(o);
        bench_objects_free(o);
    }
    bench_load_free(l);
    return rc;
}

int bench_objects_views(struct bench_objects *o, const void ***addrs_p)
{
    size_t n = o->load->objects;
    int rc = 0;

    o->views = calloc(n, sizeof *o->views);
    o->addrs = calloc(n, sizeof *o->addrs);
    if (!o->views || !o->addrs)
        return tarn_fail(TARN_E_NO_MEMORY, "views of the benchmark: out of memory");
    for (size_t i = 0; rc == 0 && i < n; i++) {
        rc = tarn_view(o->viewer, &o->items[i].key, CALL_MS, &o->views[i]);
        o->addrs[i] = o->views[i].addr;
    }
    *addrs_p = o->addrs;
    return rc;
}

/* --- get ---------------------------------------------------------------------------------------- */

static int begin_get(void *arg, uint64_t round)
{
    struct bench_objects *o = arg;

    (void)round;
    bench_load_poison(o->load);
    return 0;
}

static int do_get(void *arg, uint32_t thread, size_t i)
{
    struct bench_objects *o = arg;
    struct tarn_get_options options = {.size = sizeof options, .timeout_ms = CALL_MS};

    (void)thread;
    return tarn_get(o->c, &o->items[i * o->load->depth], o->load->depth, &options);
}

static int end_get(void *arg)
{
    struct bench_objects *o = arg;
    return bench_load_check(o->load);
}

const struct bench_ops bench_get_ops = {.begin = begin_get, .op = do_get, .end = end_get};

static int submit_one(struct bench_objects *o, size_t i, uint64_t *started)
{
    struct tarn_get_options options = {.size = sizeof options, .timeout_ms = CALL_MS};

    started[i] = tarn_now_ns();
    return tarn_submit_get(o->c, &o->items[i], 1, &options, i, NULL);
}

/* Takes the completed gets and submits as many new ones. */
static int turn_over(struct bench_objects *o, size_t total, size_t *sent, size_t *ended, uint64_t *started,
                     struct bench_hist *h)
{
    struct tarn_completion done[16];
    struct pollfd p = {.fd = tarn_event_fd(o->c), .events = POLLIN};
    int n = tarn_drain(o->c, done, sizeof done / sizeof done[0]), rc = n < 0 ? n : 0;

    if (n == 0)
        poll(&p, 1, CALL_MS);
    for (int i = 0; rc == 0 && i < n; i++) {
        if (done[i].status != 0)
            return tarn_fail(done[i].status, "%s", done[i].error);
        bench_hist_add(h, tarn_now_ns() - started[done[i].cookie]);
        ++*ended;
        if (*sent < total)
            rc = submit_one(o, (*sent)++, started);
    }
    return rc;
}

static int get_window(void *arg, double *items_s, struct bench_hist *h)
{
    struct bench_objects *o = arg;
    size_t total = o->load->objects, sent = 0, ended = 0;
    uint64_t *started = calloc(total, sizeof *started), start = tarn_now_ns();
    int rc = started ? 0 : tarn_fail(TARN_E_NO_MEMORY, "gets: out of memory");

    while (rc == 0 && sent < o->load->depth)
        rc = submit_one(o, sent++, started);
    while (rc == 0 && ended < total)
        rc = turn_over(o, total, &sent, &ended, started, h);
    *items_s = (double)total * 1e9 / (double)(tarn_now_ns() - start);
    free(started);
    return rc;
}

const struct bench_ops bench_get_window_ops = {.begin = begin_get, .slice = get_window, .end = end_get};

/* --- put ---------------------------------------------------------------------------------------- */

static int begin_put(void *arg, uint64_t round)
{
    struct bench_objects *o = arg;

    bench_load_fill(o->load, round + 1);
    return 0;
}

static int do_put(void *arg, uint32_t thread, size_t i)
{
    struct bench_objects *o = arg;
    struct tarn_put_options options = {.size = sizeof options, .timeout_ms = CALL_MS, .place = o->place};

    (void)thread;
    return tarn_put(o->c, &o->items[i * o->load->depth], o->load->depth, &options);
}

/* Checks an object in the pool through a view, which is not the measured code. */
static int check_stored(struct bench_objects *o, size_t i)
{
    struct tarn_view v;
    int rc = tarn_view(o->viewer, &o->items[i].key, CALL_MS, &v);

    if (rc != 0)
        return rc;
    rc = v.tensor.bytes == o->load->bytes ? bench_check(v.addr, v.tensor.bytes, o->load->seed, i)
                                          : tarn_fail(TARN_E_SIZE, "object %zu has the wrong size", i);
    tarn_release(o->viewer, &v);
    return rc;
}

static int get_back(struct bench_objects *o)
{
    int rc = 0;

    bench_load_poison(o->load);
    for (size_t i = 0; rc == 0 && i < o->load->ops + o->load->threads; i++)
        rc = do_get(o, 0, i);
    return rc ? rc : bench_load_check(o->load);
}

static int end_put(void *arg)
{
    struct bench_objects *o = arg;
    int rc = o->viewer ? 0 : get_back(o);

    for (size_t i = 0; rc == 0 && o->viewer && i < o->load->objects; i++)
        rc = check_stored(o, i);
    bench_objects_remove(o);
    return rc;
}

const struct bench_ops bench_put_ops = {.begin = begin_put, .op = do_put, .end = end_put};

/* --- put, the data phase alone ------------------------------------------------------------------ */

/* Begins a put session for each thread. A session has consecutive objects. */
static int begin_sessions(void *arg, uint64_t round)
{
    struct bench_objects *o = arg;
    struct tarn_put_options options = {.size = sizeof options, .timeout_ms = CALL_MS, .place = o->place};
    uint32_t threads = o->load->threads;
    size_t each = o->load->objects / threads;
    int rc = 0;

    bench_load_fill(o->load, round + 1);
    if (!o->sessions && !(o->sessions = calloc(threads, sizeof(struct tarn_put_session *))))
        return tarn_fail(TARN_E_NO_MEMORY, "put sessions: out of memory");
    for (uint32_t t = 0; rc == 0 && t < threads; t++)
        rc = tarn_put_begin(o->c, &o->items[t * each], each, &options, &o->sessions[t]);
    return rc;
}

/* An object of the load as item k of a session. */
static int write_object(const struct bench_objects *o, size_t object, struct tarn_put_session *s, size_t k)
{
    const struct tarn_item *item = &o->items[object];

    if (item->layout)
        return tarn_put_write_pages(s, k, 0, item->layout, item->pages, item->npieces, CALL_MS);
    return tarn_put_write(s, k, 0, item->pieces, item->npieces, CALL_MS);
}

/* Operation i belongs to thread i % threads. A thread with more operations than objects starts over. */
static int do_write(void *arg, uint32_t thread, size_t i)
{
    struct bench_objects *o = arg;
    size_t each = o->load->objects / o->load->threads, k = i / o->load->threads * o->load->depth % each;
    int rc = 0;

    for (size_t end = k + o->load->depth; rc == 0 && k < end; k++)
        rc = write_object(o, thread * each + k, o->sessions[thread], k);
    return rc;
}

static int end_sessions(void *arg)
{
    struct bench_objects *o = arg;
    int rc = 0;

    for (uint32_t t = 0; o->sessions && t < o->load->threads; t++) {
        int committed = o->sessions[t] ? tarn_put_commit(o->sessions[t], NULL, CALL_MS) : 0;
        rc = rc ? rc : committed;
        o->sessions[t] = NULL;
    }
    int checked = end_put(o);
    return rc ? rc : checked;
}

const struct bench_ops bench_put_write_ops = {.begin = begin_sessions, .op = do_write, .end = end_sessions};

/* --- view --------------------------------------------------------------------------------------- */

/* Takes a view, checks the first and the last word, and releases it. */
static int do_view(void *arg, uint32_t thread, size_t i)
{
    struct bench_objects *o = arg;
    struct tarn_view v;
    int rc = tarn_view(o->c, &o->items[i].key, CALL_MS, &v);

    (void)thread;
    if (rc != 0)
        return rc;
    uint64_t seed = bench_pattern_seed(o->load->seed, i), last = v.tensor.bytes - 8;
    if (bench_pattern_check(v.addr, 8, seed, 0) != UINT64_MAX ||
        bench_pattern_check((const char *)v.addr + last, 8, seed, last) != UINT64_MAX)
        rc = tarn_fail(TARN_E_INVALID, "the view of object %zu shows other bytes", i);
    tarn_release(o->c, &v);
    return rc;
}

static int end_view(void *arg)
{
    struct bench_objects *o = arg;
    return check_stored(o, 0);
}

const struct bench_ops bench_view_ops = {.op = do_view, .end = end_view};
