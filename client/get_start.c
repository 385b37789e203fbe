/* SPDX-License-Identifier: Apache-2.0 */
#include "client/get_start.h"

#include <string.h>

#include "client/get_route.h"

/* By how many items look_ahead() and job_ahead() are ahead. */
#define ITEM_AHEAD 12
#define KEY_AHEAD 8
#define PLACE_AHEAD 4
#define JOB_AHEAD 3
#define ENTRY_AHEAD 2

static bool is_left(const struct tarn_get *g, size_t i)
{
    return i >= g->memo.looked || g->items[i].status == TARN_INPROGRESS;
}

void tarn_get_no_memory(struct tarn_get *const *gets, size_t n)
{
    for (size_t g = 0; g < n; g++)
        for (size_t i = 0, left = gets[g]->left; left > 0 && i < gets[g]->n; i++)
            if (is_left(gets[g], i)) {
                left--;
                tarn_verdict_say(&gets[g]->verdict, i, TARN_E_NO_MEMORY, "get", &gets[g]->items[i].key,
                                 "out of memory");
                tarn_get_final(gets[g], i, TARN_E_NO_MEMORY);
            }
}

/* False: the item was wrong and is final. */
static bool check(struct tarn_get_batch *b, struct tarn_get *g, size_t i)
{
    int rc = i < g->memo.looked ? 0 : tarn_get_check(g, i);

    if (rc != 0) {
        b->open--;
        tarn_verdict_note(&g->verdict, i, rc);
        tarn_get_final(g, i, rc);
        return false;
    }
    g->items[i].status = TARN_INPROGRESS;
    return true;
}

static void start(struct tarn_get_batch *b, struct tarn_get_job *j, struct tarn_get *g, size_t i)
{
    memset(j, 0, offsetof(struct tarn_get_job, way));
    j->get = g;
    j->index = i;
    j->x.quiet_on = NULL;
    if (g->memo.found == i) {
        memcpy(&j->desc, &g->memo.desc, tarn_desc_bytes(&g->memo.desc));
        j->gpu = g->memo.gpu;
        j->glanced = g->memo.glanced;
        j->stage = TARN_GET_RESOLVED;
        return;
    }
    int rc = tarn_get_memory(g, i, &j->gpu, &j->glanced);
    if (rc != 0) {
        tarn_get_job_fail(b, j, rc);
        return;
    }
    bool known = tarn_get_find(g, i, tarn_key_hash(&g->items[i].key), &j->desc);
    j->stage = known ? TARN_GET_RESOLVED : TARN_GET_WANTED;
}

/* Will the cache be asked for item i, and with which hash? */
static bool has_hash(const struct tarn_get *g, size_t i, uint64_t *hash_p)
{
    if (i >= g->n || g->hits || tarn_key_check(&g->items[i].key) != 0)
        return false;
    *hash_p = tarn_key_hash(&g->items[i].key);
    return true;
}

/* Loads what the items after this one need, for a call's memory is seldom in the CPU's cache. */
static void look_ahead(const struct tarn_get *g, size_t i)
{
    const struct tarn_item *item = &g->items[i];
    uint64_t hash;

    for (size_t at = 0; i + ITEM_AHEAD < g->n && at < sizeof *item; at += 64)
        __builtin_prefetch((const char *)(item + ITEM_AHEAD) + at, 1);
    if (i + KEY_AHEAD < g->n)
        __builtin_prefetch(item[KEY_AHEAD].key.data);
    if (has_hash(g, i + PLACE_AHEAD, &hash))
        tarn_cache_prefetch_place(g->client->cache, hash);
    if (has_hash(g, i + ENTRY_AHEAD, &hash))
        tarn_cache_prefetch_entry(g->client->cache, hash);
}

/* Loads what will be written of the job JOB_AHEAD after this one. */
static void job_ahead(const struct tarn_get_job *j)
{
    for (size_t at = 0; at < offsetof(struct tarn_get_job, desc.locs[1]); at += 64)
        __builtin_prefetch((const char *)(j + JOB_AHEAD) + at, 1);
}

void tarn_get_start(struct tarn_get_batch *b, struct tarn_get *const *gets, size_t n)
{
    bool at_once = n == 1 && b->open > 1;

    b->n = 0;
    for (size_t g = 0; g < n; g++)
        for (size_t i = 0, left = gets[g]->left; left > 0; i++) {
            if (!is_left(gets[g], i))
                continue;
            left--;
            if (at_once)
                look_ahead(gets[g], i);
            if (at_once && left >= JOB_AHEAD)
                job_ahead(&b->jobs[b->n]);
            if (!check(b, gets[g], i))
                continue;
            struct tarn_get_job *j = &b->jobs[b->n++];
            start(b, j, gets[g], i);
            if (at_once && j->stage == TARN_GET_RESOLVED)
                tarn_get_route(b, j, false, tarn_coarse_ns());
        }
}
