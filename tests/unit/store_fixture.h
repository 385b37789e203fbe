/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the store tests: a store, puts, and a record of the `gone` calls. */
#ifndef TARN_TESTS_STORE_FIXTURE_H
#define TARN_TESTS_STORE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "server/store/store.h"

#define EPOCH 0x1122334455667788ull
#define KIB 1024ull
#define MIB (1024 * KIB)
#define SESSION 77

/* What the `gone` callback reported. */
struct gone {
    uint32_t n;
    char key[64];
    enum tarn_left why;
    struct tarn_location location;
    uint64_t bytes;
};

static inline void on_gone(void *arg, const struct tarn_key *key, const struct tarn_location *l,
                           uint64_t bytes, enum tarn_left why)
{
    struct gone *g = arg;
    g->n++;
    snprintf(g->key, sizeof(g->key), "%.*s", (int)key->bytes, (const char *)key->data);
    g->why = why;
    g->location = *l;
    g->bytes = bytes;
}

static inline struct tarn_store *new_store(struct gone *g, uint64_t session_max)
{
    *g = (struct gone){0};
    struct tarn_store_options o = {
        .epoch = EPOCH,
        .node = "n1",
        .session_reserved_max = session_max,
        .gone = on_gone,
        .arg = g,
    };
    struct tarn_store *s = NULL;
    assert_int_equal(tarn_store_new(&o, &s), 0);
    return s;
}

static inline void add_pool(struct tarn_store *s, const char *name, uint64_t bytes, uint32_t slots)
{
    struct tarn_pool_options o = {.bytes = bytes, .slots = slots};
    snprintf(o.name, sizeof(o.name), "%s", name);
    assert_int_equal(tarn_store_add_pool(s, &o), 0);
}

static inline struct tarn_store *one_pool(struct gone *g, uint64_t bytes, uint32_t slots)
{
    struct tarn_store *s = new_store(g, 0);
    add_pool(s, "p", bytes, slots);
    return s;
}

static inline struct tarn_key key_of(const char *text)
{
    return (struct tarn_key){text, strlen(text)};
}

static inline struct tarn_reserve want(const char *key, uint64_t bytes)
{
    return (struct tarn_reserve){
        .key = key_of(key), .tensor = tarn_bytes(bytes), .pool = -1, .version = 5, .session = SESSION};
}

static inline struct tarn_committed commit(struct tarn_store *s, const struct tarn_grant *g, bool published)
{
    struct tarn_publish p;
    assert_int_equal(tarn_store_commit_begin(s, SESSION, g->pool, g->slot, g->gen, &p), 0);
    return tarn_store_commit_end(s, g->pool, g->slot, g->gen, published);
}

static inline int put_as(struct tarn_store *s, const struct tarn_reserve *r, struct tarn_grant *g)
{
    int rc = tarn_store_reserve(s, r, g);
    if (rc == 0)
        commit(s, g, true);
    return rc;
}

static inline struct tarn_grant put(struct tarn_store *s, const char *key, uint64_t bytes)
{
    struct tarn_grant g;
    struct tarn_reserve r = want(key, bytes);
    assert_int_equal(put_as(s, &r, &g), 0);
    return g;
}

static inline bool has(const struct tarn_store *s, const char *key)
{
    struct tarn_key k = key_of(key);
    return tarn_store_find(s, &k, NULL, NULL);
}

static inline struct tarn_pool_stats stats(const struct tarn_store *s)
{
    struct tarn_pool_stats st;
    tarn_store_stats(s, 0, &st);
    return st;
}

static inline uint64_t gen_at(const struct tarn_store *s, const struct tarn_grant *g)
{
    uint32_t n;
    return atomic_load(&tarn_store_pools(s, &n)[g->pool].gen[g->slot]);
}

#endif
