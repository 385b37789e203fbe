/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts: RELEASE, of the copies that a put displaced and of its own that it takes back.
 *
 * Copies that a replacing put displaced on other nodes are released there before success is reported, so
 * that no reader's old descriptor outlives the put. A node that does not answer is told as soon as it does
 * (errand.c). Until then, and only while it is paused and keeps its heartbeat's record, clients on its host
 * that have the old descriptor may read the old copy out of its shared memory.
 */
#include "client/put.h"

#include <stdlib.h>
#include <string.h>

#define RELEASE_NS (100 * TARN_NS_PER_MS)

/* "@<node>/<pool>=<offset>:<slot>:<gen>" */
static bool parse_displaced(struct tarn_client *c, const redisReply *e, struct tarn_displaced *d)
{
    char node[TARN_NODE_ID_MAX + 1];
    const char *s = e->str, *end = s ? s + e->len : NULL;

    if (!s || *s++ != '@')
        return false;
    const char *slash = memchr(s, '/', (size_t)(end - s)),
               *equal = slash ? memchr(slash, '=', (size_t)(end - slash)) : NULL;
    const char *slot = equal ? memchr(equal, ':', (size_t)(end - equal)) : NULL;
    const char *gen = slot ? memchr(slot + 1, ':', (size_t)(end - slot - 1)) : NULL;
    if (!gen || slash - s > TARN_NODE_ID_MAX || equal - slash - 1 > TARN_POOL_NAME_MAX ||
        tarn_u64_parse(slot + 1, (size_t)(gen - slot - 1), 10, UINT32_MAX, &d->slot) != 0 ||
        tarn_u64_parse(gen + 1, (size_t)(end - gen - 1), 16, UINT64_MAX, &d->gen) != 0)
        return false;
    memcpy(node, s, (size_t)(slash - s));
    node[slash - s] = '\0';
    memcpy(d->pool, slash + 1, (size_t)(equal - slash - 1));
    d->pool[equal - slash - 1] = '\0';
    d->sent = false;
    d->remote = tarn_remote_of(c, node, (uint32_t)(d->gen >> 32));
    return d->remote != NULL;
}

void tarn_releases_note(struct tarn_put *p, struct tarn_releases *r, const redisReply *list)
{
    for (size_t i = 0; i < list->elements; i++) {
        if (r->n == r->room) {
            uint32_t room = r->room ? r->room * 2 : 16;
            struct tarn_displaced *all = realloc(r->all, room * sizeof *all);
            if (!all)
                return; /* the nodes' scrub finds them */
            r->all = all;
            r->room = room;
        }
        if (parse_displaced(p->client, list->element[i], &r->all[r->n]))
            r->n++;
    }
}

/* The put has taken place, so its own deadline must not leave old copies behind on a healthy node; a silent
 * one is not waited for any longer than it takes to know that. */
static uint64_t release_deadline(const struct tarn_put *p)
{
    uint64_t now = tarn_now_ns(), least = now + RELEASE_NS, most = now + TARN_PATIENCE_NS;

    return p->deadline_ns < least ? least : p->deadline_ns > most ? most : p->deadline_ns;
}

/* RELEASEs there, if need be later. Takes the words over. */
static void release_send(struct tarn_put *p, struct tarn_remote *remote, struct tarn_words *a)
{
    redisReply *reply;

    if (atomic_load(&remote->superseded)) { /* so is what it held */
        tarn_words_free(a);
        return;
    }
    if (tarn_words_call(a, remote, release_deadline(p), NULL, &reply) != 0) {
        tarn_log(&p->client->log, TARN_LOG_INFO, "client",
                 "msg=\"replaced copies are released when their node answers\" node=%s", remote->key.id);
        tarn_monitor_errand(remote, a);
        return;
    }
    freeReplyObject(reply);
    tarn_words_free(a);
}

static void release_on(struct tarn_put *p, struct tarn_releases *r, struct tarn_remote *remote)
{
    struct tarn_words a;

    if (tarn_words_init(&a, 1 + 3 * (int)r->n, r->n * (48 + TARN_POOL_NAME_MAX)) != 0)
        return;
    tarn_words_str(&a, "RELEASE");
    for (uint32_t i = 0; i < r->n; i++) {
        struct tarn_displaced *d = &r->all[i];
        if (d->remote != remote)
            continue;
        d->sent = true;
        tarn_words_text(&a, d->pool);
        tarn_words_u64(&a, d->slot);
        tarn_words_gen(&a, d->gen);
    }
    if (!atomic_load(&remote->listed) && !atomic_load(&remote->superseded))
        tarn_remotes_refresh(p->client, release_deadline(p));
    release_send(p, remote, &a);
}

void tarn_releases_send(struct tarn_put *p, struct tarn_releases *r)
{
    for (uint32_t i = 0; i < r->n; i++)
        if (!r->all[i].sent)
            release_on(p, r, r->all[i].remote);
    free(r->all);
}

/* Takes back the copies of a job that failed on another node. Exactly those: the key may be another put's
 * by now. */
void tarn_put_undo(struct tarn_put *p, struct tarn_put_job *job)
{
    char pool[TARN_POOL_NAME_MAX + 1];

    for (uint32_t k = 0; k < p->replicas; k++) {
        struct tarn_target *t = &job->targets[k];
        struct tarn_words a;
        if (t->state != TARN_TARGET_STORED || tarn_words_init(&a, 4, 48 + TARN_POOL_NAME_MAX) != 0)
            continue;
        tarn_remote_pool_name(t->remote, t->pool, pool);
        tarn_words_str(&a, "RELEASE");
        tarn_words_text(&a, pool);
        tarn_words_u64(&a, t->slot);
        tarn_words_gen(&a, t->gen + 1);
        release_send(p, t->remote, &a);
        t->state = TARN_TARGET_LOST;
    }
}
