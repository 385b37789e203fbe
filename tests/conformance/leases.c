/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/conformance/leases.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/conformance/lender.h"

/* A lease that a key has meant. It stays until all is closed, as another thread may be reading it. */
struct known {
    struct known *next;
    char key[32];
    uint64_t id;
    struct tarn_reach *reach;
    atomic_bool ended;
};

struct leases {
    struct tarn_client *client;
    const char *path;
    pthread_mutex_t lock; /* known */
    struct known *known;
    _Atomic uint64_t stale;
};

struct leases *leases_open(struct tarn_client *c, const char *path)
{
    struct leases *l = calloc(1, sizeof *l);
    l->client = c;
    l->path = path;
    pthread_mutex_init(&l->lock, NULL);
    return l;
}

void leases_close(struct leases *l)
{
    if (!l)
        return;
    for (struct known *k = l->known, *next; k; k = next) {
        next = k->next;
        tarn_reach_free(k->reach);
        free(k);
    }
    pthread_mutex_destroy(&l->lock);
    free(l);
}

uint64_t leases_stale(const struct leases *l)
{
    return atomic_load(&l->stale);
}

const char *leases_path(const struct leases *l)
{
    return l->path;
}

void leases_remove(struct leases *l, const char *key)
{
    lender_ask(l->path, NULL, "REMOVE %s", key);
}

/* --- puts --------------------------------------------------------------------------------------- */

static const char *key_text(const struct tarn_item *item)
{
    return item->key.data; /* the suite's keys end with NUL */
}

static int write_all(struct leases *l, const char *descriptor, const struct tarn_item *item,
                     uint32_t timeout_ms)
{
    const struct tarn_move_options o = {.size = sizeof o, .timeout_ms = timeout_ms};
    struct tarn_move m = {.pieces = item->pieces, .npieces = item->npieces};
    struct tarn_reach *r;
    int rc = tarn_reach(l->client, descriptor, timeout_ms, &r);
    if (rc)
        return rc;
    rc = tarn_write(r, &m, 1, &o);
    tarn_reach_free(r);
    return rc;
}

int leases_put(struct leases *l, const struct tarn_item *item, uint32_t timeout_ms)
{
    char text[LENDER_TEXT];
    uint64_t id;
    int at = 0, rc = lender_ask(l->path, text, "LEASE %" PRIu64 " 0 rw", item->tensor.bytes);
    if (rc || sscanf(text, "%" SCNu64 " %n", &id, &at) != 1)
        return rc ? rc : TARN_E_PROTOCOL;
    rc = write_all(l, text + at, item, timeout_ms);
    if (!rc)
        return lender_ask(l->path, NULL, "NAME %" PRIu64 " %s", id, key_text(item));
    /* Bytes of the write may still be on their way: from then on they are not. */
    int recalled = lender_ask(l->path, NULL, "RECALL %" PRIu64, id);
    return recalled ? TARN_E_PROTOCOL : rc;
}

int leases_put_part(struct leases *l, uint64_t bytes, const struct tarn_piece *piece)
{
    const struct tarn_item item = {.pieces = piece, .npieces = 1};
    char text[LENDER_TEXT];
    uint64_t id;
    int at = 0, rc = lender_ask(l->path, text, "LEASE %" PRIu64 " 0 rw", bytes);
    if (rc || sscanf(text, "%" SCNu64 " %n", &id, &at) != 1)
        return rc ? rc : TARN_E_PROTOCOL;
    return write_all(l, text + at, &item, 0);
}

/* --- gets --------------------------------------------------------------------------------------- */

static struct known *find(struct leases *l, const char *key)
{
    pthread_mutex_lock(&l->lock);
    struct known *k = l->known;
    while (k && (strcmp(k->key, key) != 0 || atomic_load(&k->ended)))
        k = k->next;
    pthread_mutex_unlock(&l->lock);
    return k;
}

static struct known *add(struct leases *l, const char *key, uint64_t id, struct tarn_reach *reach)
{
    struct known *k = calloc(1, sizeof *k);
    snprintf(k->key, sizeof k->key, "%s", key);
    k->id = id;
    k->reach = reach;
    pthread_mutex_lock(&l->lock);
    k->next = l->known;
    l->known = k;
    pthread_mutex_unlock(&l->lock);
    return k;
}

/* What the key means now. */
static int look(struct leases *l, const char *key, struct known **k_p)
{
    char text[LENDER_TEXT];
    struct tarn_reach *r;
    uint64_t id, bytes;
    int at = 0, rc;
    do {
        rc = lender_ask(l->path, text, "LOOK %s", key);
        if (!rc && sscanf(text, "%" SCNu64 " %" SCNu64 " %n", &id, &bytes, &at) != 2)
            rc = TARN_E_PROTOCOL;
        if (!rc)
            rc = tarn_reach(l->client, text + at, 0, &r);
    } while (rc == TARN_E_STALE); /* replaced meanwhile */
    if (!rc)
        *k_p = add(l, key, id, r);
    return rc;
}

/* A read of k ended with STALE, or SIZE. Does the key mean another lease, or none? */
static bool has_ended(const struct leases *l, struct known *k)
{
    char text[LENDER_TEXT];
    int rc = lender_ask(l->path, text, "LOOK %s", k->key);
    if (!rc && strtoull(text, NULL, 10) == k->id)
        return false;
    atomic_store(&k->ended, true);
    return true;
}

int leases_get(struct leases *l, const struct tarn_item *item, uint32_t timeout_ms)
{
    const struct tarn_move_options o = {.size = sizeof o, .timeout_ms = timeout_ms};
    for (;;) {
        struct tarn_move m = {.pieces = item->pieces, .npieces = item->npieces, .offset = item->offset};
        struct known *k = find(l, key_text(item));
        int rc = k ? 0 : look(l, key_text(item), &k);
        if (!rc)
            rc = tarn_read(k->reach, &m, 1, &o);
        if ((rc != TARN_E_STALE && rc != TARN_E_SIZE) || !has_ended(l, k))
            return rc;
        atomic_fetch_add(&l->stale, 1);
    }
}

int leases_submit_get(struct leases *l, const struct tarn_item *item, struct tarn_move *move, uint64_t cookie,
                      tarn_op *op_p)
{
    struct known *k = find(l, key_text(item));
    int rc = k ? 0 : look(l, key_text(item), &k);
    *move = (struct tarn_move){.pieces = item->pieces, .npieces = item->npieces, .offset = item->offset};
    return rc ? rc : tarn_submit_read(k->reach, move, 1, NULL, cookie, op_p);
}
