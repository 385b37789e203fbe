/* SPDX-License-Identifier: Apache-2.0 */
/* Our contestants: get, put and view of a load's objects through libtarn. */
#include "client/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define KEY_BYTES 64
#define CALL_MS 60000

struct bench_objects {
    struct tarn_client *c, *viewer;
    struct bench_load *load;
    char (*names)[KEY_BYTES];
    struct tarn_item *items; /* one an object */
    struct tarn_key *keys;
    struct tarn_view *views; /* of bench_objects_views; NULL before */
    const void **addrs;
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

void bench_objects_free(struct bench_objects *o)
{
    if (!o)
        return;
    for (size_t i = 0; o->views && i < o->load->objects; i++)
        tarn_release(o->viewer, &o->views[i]);
    bench_objects_remove(o);
    free(o->views);
    free(o->addrs);
    free(o->keys);
    free(o->items);
    free(o->names);
    free(o);
}

int bench_objects_put(struct bench_objects *o)
{
    struct tarn_put_options put = {.size = sizeof put, .timeout_ms = CALL_MS};
    struct tarn_get_options get = {.size = sizeof get, .timeout_ms = CALL_MS};
    int rc = 0;

    bench_load_fill(o->load, o->load->bytes);
    for (size_t i = 0; rc == 0 && i < o->load->objects; i++)
        rc = tarn_put(o->c, &o->items[i], 1, &put);
    for (size_t i = 0; rc == 0 && i < o->load->objects; i++)
        rc = tarn_get(o->c, &o->items[i], 1, &get);
    return rc;
}

void bench_objects_remove(struct bench_objects *o)
{
    if (o->keys)
        tarn_remove(o->c, o->keys, o->load->objects, NULL, CALL_MS);
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
    struct tarn_put_options options = {.size = sizeof options, .timeout_ms = CALL_MS};

    (void)thread;
    return tarn_put(o->c, &o->items[i * o->load->depth], o->load->depth, &options);
}

/* Reads what is in the pool, by another way than the one measured. */
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

static int end_put(void *arg)
{
    struct bench_objects *o = arg;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < o->load->objects; i++)
        rc = check_stored(o, i);
    bench_objects_remove(o);
    return rc;
}

const struct bench_ops bench_put_ops = {.begin = begin_put, .op = do_put, .end = end_put};

/* --- view --------------------------------------------------------------------------------------- */

/* Takes a view and gives it back, looking at both ends of what it shows. */
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
