/* SPDX-License-Identifier: Apache-2.0 */
#include "client/displaced.h"

#include <stdlib.h>
#include <string.h>

#include "client/call.h"
#include "client/client.h"
#include "client/health.h"
#include "client/refresh.h"
#include "client/remote.h"
#include "client/retire.h"
#include "client/words.h"
#include "metadata/records.h"

#define PAUSE_FIRST_MS 5
#define PAUSE_MOST_MS 100
#define PAIRS_MAX 1024 /* of one SETTLED, and copies of one RELEASE */

/* --- the list ----------------------------------------------------------------------------------- */

static int make_room(struct tarn_displaced_list *l)
{
    size_t room = l->room ? l->room * 2 : 16;

    if (l->n < l->room)
        return 0;
    struct tarn_displaced *all = realloc(l->all, room * sizeof *all);
    if (!all)
        return tarn_fail(TARN_E_NO_MEMORY, "displaced copies: out of memory");
    l->all = all;
    l->room = room;
    return 0;
}

static int add(struct tarn_displaced_list *l, const struct tarn_displaced *d)
{
    int rc = make_room(l);

    if (rc == 0)
        l->all[l->n++] = *d;
    return rc;
}

int tarn_displaced_add(struct tarn_displaced_list *l, const struct tarn_key *key, size_t item, const struct tarn_loc *at)
{
    struct tarn_displaced d = {
        .key = key, .item = item, .remote = at->remote, .copy = {.offset = at->offset, .gen = at->gen, .slot = at->slot}};

    memcpy(d.copy.node, at->remote->key.id, sizeof d.copy.node);
    tarn_remote_pool_name(at->remote, at->pool, d.copy.pool);
    return add(l, &d);
}

static int note_one(struct tarn_client *c, struct tarn_displaced_list *l, struct tarn_displaced *d, const redisReply *e)
{
    struct tarn_text text = {e->str, e->str ? e->len : 0};
    int rc = tarn_copy_parse(text, &d->copy);

    if (rc != 0)
        return rc;
    d->remote = tarn_remote_of(c, d->copy.node, (uint32_t)(d->copy.gen >> 32));
    return d->remote ? add(l, d) : tarn_fail(TARN_E_NO_MEMORY, "displaced copies: out of memory");
}

int tarn_displaced_note(struct tarn_client *c, struct tarn_displaced_list *l, const struct tarn_key *key, size_t item,
                        struct tarn_remote *by, redisReply *const *texts, size_t n)
{
    struct tarn_displaced d = {.key = key, .item = item, .by = by};
    char who[352], why[TARN_SENTENCE];

    for (size_t i = 0; i < n; i++)
        if (note_one(c, l, &d, texts[i]) != 0) {
            snprintf(why, sizeof why, "%s", tarn_last_error());
            return tarn_fail(TARN_E_IN_DOUBT, "done, but not all old copies that %s has named are known here (%s): they "
                             "may still be read: do it again", tarn_remote_text(by, who), why);
        }
    return 0;
}

void tarn_displaced_end(struct tarn_displaced_list *l)
{
    free(l->all);
    memset(l, 0, sizeof *l);
}

int tarn_displaced_status(const struct tarn_displaced_list *l, size_t item)
{
    char who[352];

    for (size_t i = 0; i < l->n; i++) {
        const struct tarn_displaced *d = &l->all[i];
        if (d->item == item)
            return tarn_fail(TARN_E_IN_DOUBT,
                             "done, but %s has not given up its old copy: a client that looked the key up before may "
                             "read the old value until the node answers, or until its record expires (3 heartbeats "
                             "after its last): do it again to be sure",
                             tarn_remote_text(d->remote, who));
    }
    return 0;
}

/* Drops what nobody can read any more from the list; true when nothing is left. */
static bool drop_settled(struct tarn_displaced_list *l)
{
    size_t n = 0;

    for (size_t i = 0; i < l->n; i++)
        if (!l->all[i].settled)
            l->all[n++] = l->all[i];
    l->n = n;
    return n == 0;
}

/* --- one command about some of them ------------------------------------------------------------- */

/* The copies that go into one command to one node. */
struct batch {
    struct tarn_displaced *copies[PAIRS_MAX];
    size_t n;
    struct tarn_remote *remote;
    struct tarn_call *call;
    uint64_t until_ns; /* its answer is waited for */
};

/* So many patiences from now. */
static uint64_t within(const struct tarn_remote *r, uint64_t times, uint64_t deadline_ns)
{
    uint64_t until = tarn_now_ns() + times * tarn_remote_patience(r);

    return until < deadline_ns ? until : deadline_ns;
}

static void take_answers(struct batch *b, const redisReply *reply)
{
    for (size_t i = 0; i < b->n && i < reply->elements; i++)
        if (reply->element[i]->type == REDIS_REPLY_INTEGER && reply->element[i]->integer == 1)
            b->copies[i]->settled = true;
}

/* --- RELEASE ------------------------------------------------------------------------------------ */

static int release_words(const struct batch *b, struct tarn_words *a)
{
    int rc = tarn_words_init(a, 1 + 3 * (int)b->n, b->n * (48 + TARN_POOL_NAME_MAX));

    if (rc != 0)
        return rc;
    tarn_words_str(a, "RELEASE");
    for (size_t i = 0; i < b->n; i++) {
        const struct tarn_location *l = &b->copies[i]->copy;
        tarn_words_text(a, l->pool);
        tarn_words_u64(a, l->slot);
        tarn_words_gen(a, l->gen);
    }
    return 0;
}

/* Nodes that are set aside hear of it from the directory, when they beat again. */
static void release_send(struct tarn_client *c, struct batch *b, uint64_t deadline_ns, const struct tarn_stop *stop)
{
    struct tarn_remote *r = b->remote;
    struct tarn_words a;

    b->until_ns = within(r, 1, deadline_ns);
    if (!atomic_load(&r->listed) && !atomic_load(&r->superseded))
        tarn_remotes_refresh(c, b->until_ns);
    if (!atomic_load(&r->listed) || atomic_load(&r->health) != TARN_UP || release_words(b, &a) != 0)
        return;
    int rc = tarn_call_take(r, false, b->until_ns, stop, &b->call);
    if (rc == 0 && tarn_words_send(&a, b->call, b->until_ns) != 0) {
        tarn_call_drop(b->call);
        b->call = NULL;
    }
    tarn_words_free(&a);
}

static void release_answer(struct batch *b, const struct tarn_stop *stop)
{
    redisReply *reply;

    if (!b->call)
        return;
    int rc = tarn_call_reply(b->call, b->until_ns, stop, &reply);
    if (rc == 0) {
        take_answers(b, reply);
        freeReplyObject(reply);
    } else if (rc == TARN_E_TIMEOUT) {
        tarn_remote_silent(b->remote, b->call->since_ns);
    } else if (rc == TARN_E_NODE_DOWN) {
        tarn_remote_aside(b->remote, TARN_GONE, tarn_last_error());
    }
    if (rc == TARN_E_NODE_DOWN || rc == TARN_E_PROTOCOL)
        tarn_call_drop(b->call);
    else
        tarn_call_give(b->call);
}

/* The first copy that is neither settled nor taken, with the others of its node. NULL: none is left. */
static struct batch *next_batch(struct tarn_displaced_list *l, bool *taken)
{
    struct batch *b = calloc(1, sizeof *b);

    for (size_t i = 0; b && i < l->n && b->n < PAIRS_MAX; i++) {
        struct tarn_displaced *d = &l->all[i];
        if (taken[i] || d->settled || (b->remote && d->remote != b->remote))
            continue;
        b->remote = d->remote;
        b->copies[b->n++] = d;
        taken[i] = true;
    }
    if (b && b->n == 0) {
        free(b);
        b = NULL;
    }
    return b;
}

#define BATCHES_MAX 64 /* sent before answers are taken */

void tarn_displaced_release(struct tarn_client *c, struct tarn_displaced_list *l, uint64_t deadline_ns,
                            const struct tarn_stop *stop)
{
    struct batch *batches[BATCHES_MAX];
    bool *taken = calloc(l->n ? l->n : 1, sizeof *taken);
    size_t n;

    do {
        for (n = 0; taken && n < BATCHES_MAX && (batches[n] = next_batch(l, taken)) != NULL; n++)
            release_send(c, batches[n], deadline_ns, stop);
        for (size_t i = 0; i < n; i++) {
            release_answer(batches[i], stop);
            free(batches[i]);
        }
    } while (n == BATCHES_MAX);
    free(taken);
}

/* --- SETTLED ------------------------------------------------------------------------------------ */

struct tarn_remote *tarn_remotes_any(struct tarn_client *c, const struct tarn_remote *but)
{
    struct tarn_remote *r, *next, *found = NULL;

    pthread_rwlock_rdlock(&c->nodes_lock);
    HASH_ITER (hh, c->nodes, r, next)
        if (!found && r != but && tarn_remote_answers(r))
            found = r;
    pthread_rwlock_unlock(&c->nodes_lock);
    return found;
}

/* Whom to ask: who displaced it, any other node, or the holder itself. */
static struct tarn_remote *asked_of(struct tarn_client *c, const struct tarn_displaced *d)
{
    struct tarn_remote *any;

    if (d->by && tarn_remote_answers(d->by))
        return d->by;
    any = tarn_remotes_any(c, d->remote);
    return any || !tarn_remote_answers(d->remote) ? any : d->remote;
}

static void ask(struct batch *b, uint64_t deadline_ns, const struct tarn_stop *stop)
{
    char text[TARN_COPY_TEXT];
    struct tarn_words a;
    redisReply *reply;

    if (tarn_words_init(&a, 1 + 2 * (int)b->n, b->n * sizeof text) != 0)
        return;
    tarn_words_str(&a, "SETTLED");
    for (size_t i = 0; i < b->n; i++) {
        tarn_words_add(&a, b->copies[i]->key->data, b->copies[i]->key->bytes);
        tarn_copy_format(&b->copies[i]->copy, text);
        tarn_words_text(&a, text);
    }
    if (tarn_words_call(&a, b->remote, within(b->remote, 4, deadline_ns), stop, &reply) == 0) {
        take_answers(b, reply);
        freeReplyObject(reply);
    }
    tarn_words_free(&a);
}

/* Asks about each copy that is not settled, once. True: all are. */
static bool ask_all(struct tarn_client *c, struct tarn_displaced_list *l, struct batch *b, uint64_t deadline_ns,
                    const struct tarn_stop *stop)
{
    bool refreshed = false;
    size_t at = 0;

    while (at < l->n && !tarn_stopped(stop)) {
        b->n = 0;
        b->remote = NULL;
        for (; at < l->n && b->n < PAIRS_MAX; at++) {
            struct tarn_remote *r = l->all[at].settled ? NULL : asked_of(c, &l->all[at]);
            if (!l->all[at].settled && !r && !refreshed) {
                refreshed = true;
                tarn_remotes_refresh(c, deadline_ns);
                r = asked_of(c, &l->all[at]);
            }
            if (r && b->remote && r != b->remote)
                break;
            if (!r)
                continue;
            b->remote = r;
            b->copies[b->n++] = &l->all[at];
        }
        if (b->n > 0)
            ask(b, deadline_ns, stop);
    }
    return drop_settled(l);
}

bool tarn_displaced_settle(struct tarn_client *c, struct tarn_displaced_list *l, uint64_t deadline_ns,
                           const struct tarn_stop *stop)
{
    int pause_ms = PAUSE_FIRST_MS;

    if (l->n == 0)
        return true;
    tarn_displaced_release(c, l, deadline_ns, stop);
    bool all = drop_settled(l);
    struct batch *b = all ? NULL : calloc(1, sizeof *b);
    if (!b)
        return all;
    while (!(all = ask_all(c, l, b, deadline_ns, stop)) && tarn_stop_pause(stop, deadline_ns, pause_ms))
        pause_ms = pause_ms * 2 < PAUSE_MOST_MS ? pause_ms * 2 : PAUSE_MOST_MS;
    free(b);
    return all;
}
