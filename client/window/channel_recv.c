/* SPDX-License-Identifier: Apache-2.0 */
#include "client/window/channel_recv.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "client/window/channel_ask.h"
#include "client/window/channel_small.h"
#include "client/window/lease_text.h"
#include "client/window/lender.h"

/* A transfer in the middle of its copy may take so long before the receive ends with BUSY. */
#define RECALL_MS 200

/* --- the lease ---------------------------------------------------------------------------------- */

static bool lies_in(const struct tarn_pool_memory *m, const struct tarn_piece *p)
{
    uintptr_t base = (uintptr_t)m->base, at = (uintptr_t)p->addr;
    return at >= base && at - base <= m->bytes && tarn_piece_span(p) <= m->bytes - (at - base);
}

/* Do all pieces lie in the window? */
static bool holds(const struct tarn_pool_memory *m, const struct tarn_channel_call *k)
{
    for (size_t i = 0; i < k->n; i++)
        for (uint32_t j = 0; j < k->items[i].npieces; j++)
            if (k->items[i].pieces[j].bytes > 0 && !lies_in(m, &k->items[i].pieces[j]))
                return false;
    return true;
}

static struct tarn_window *window_of(struct tarn_lent *lent, const struct tarn_channel_call *k)
{
    struct tarn_window *w = NULL;
    pthread_mutex_lock(&lent->lock);
    for (uint32_t i = 0; i < TARN_WINDOWS_MAX && !w; i++)
        if (lent->windows[i] && holds(&lent->pools[i], k))
            w = lent->windows[i];
    pthread_mutex_unlock(&lent->lock);
    return w;
}

static uint32_t fill_runs(const struct tarn_channel_call *k, const char *base, struct tarn_run *runs)
{
    uint32_t n = 0;
    for (size_t i = 0; i < k->n; i++)
        for (uint32_t j = 0; j < k->items[i].npieces; j++) {
            const struct tarn_piece *p = &k->items[i].pieces[j];
            if (p->bytes > 0)
                runs[n++] = (struct tarn_run){.offset = (uint64_t)((const char *)p->addr - base),
                                              .bytes = p->bytes,
                                              .stride = p->stride,
                                              .count = p->count};
        }
    return n;
}

int tarn_channel_recv_begin(struct tarn_channel_call *k)
{
    const struct tarn_lease_options o = {.size = sizeof(o), .flags = TARN_LEASE_WRITE};
    struct tarn_lent *lent = k->channel->all->lent;
    size_t npieces = 0;
    if (k->bytes <= TARN_SMALL_MAX)
        return 0;
    struct tarn_window *w = window_of(lent, k);
    if (!w)
        return tarn_fail(TARN_E_INVALID,
                         "recv: %" PRIu64
                         " bytes that do not lie in one window of this client: make a window "
                         "over them (tarn_window_new), or receive at most %d bytes",
                         k->bytes, TARN_SMALL_MAX);
    for (size_t i = 0; i < k->n; i++)
        npieces += k->items[i].npieces;
    struct tarn_run *runs = npieces <= TARN_RUNS_MAX ? calloc(npieces, sizeof(*runs)) : NULL;
    if (!runs)
        return tarn_fail(TARN_E_NO_MEMORY, "recv: out of memory for %zu pieces: at most %d", npieces,
                         TARN_RUNS_MAX);
    uint32_t n = fill_runs(k, lent->pools[w->index].base, runs);
    int rc = tarn_lease(w, runs, n, &o, &k->lease);
    if (!rc)
        tarn_lent_receive(lent, k->lease, true);
    free(runs);
    return rc;
}

/* --- POST --------------------------------------------------------------------------------------- */

/* Adds <window> <slot> <gen> <token> and what REACH answers. The peer may use the window from then on. */
static int add_lease(const struct tarn_channel_call *k, struct tarn_command *c)
{
    const struct tarn_channels *all = k->channel->all;
    const struct tarn_window *w = k->lease->window;
    struct tarn_lease_text t = {.base = all->lent->pools[w->index].base};
    bool write;
    int rc = tarn_lent_admit(all->lent, w->index, w->tokens[1], k->channel->session, &write);
    if (!rc)
        rc = tarn_lent_visit(all->lent, k->channel->session, k->channel->who, w->index, k->lease->slot,
                             k->lease->gen, tarn_lease_tell, &t);
    if (rc)
        return rc;
    tarn_command_u64(c, w->index);
    tarn_command_u64(c, k->lease->slot);
    tarn_command_gen(c, k->lease->gen);
    tarn_command_str(c, w->tokens[1]);
    tarn_command_str(c, t.rights);
    tarn_command_u64(c, t.bytes);
    tarn_command_str(c, t.id);
    tarn_command_add(c, t.runs.data, t.runs.bytes);
    c->strings.failed |= t.runs.failed;
    tarn_buf_free(&t.runs);
    for (uint32_t i = 0; i < all->host->ntransports; i++)
        if (all->host->transports[i].ops->serves(all->host->transports[i].half, w->index))
            tarn_command_str(c, all->host->transports[i].ops->name);
    return 0;
}

static int post(const struct tarn_channel_call *k, uint64_t id, uint64_t deadline_ns,
                struct tarn_cancel *cancel)
{
    struct tarn_command c = {.n = 0};
    struct tarn_buf sizes = {0};
    tarn_channel_say(k->channel, &c, "POST");
    tarn_command_u64(&c, id);
    tarn_command_u64(&c, k->tag);
    tarn_sizes_format(k->items, k->n, &sizes);
    tarn_command_add(&c, sizes.data, sizes.bytes);
    c.strings.failed |= sizes.failed;
    tarn_buf_free(&sizes);
    int rc = k->lease ? add_lease(k, &c) : 0;
    if (rc) {
        tarn_command_free(&c);
        return rc;
    }
    return tarn_channel_ask(k->channel, &c, deadline_ns, cancel);
}

static void unpost(const struct tarn_channel_call *k)
{
    struct tarn_command c = {.n = 0};
    tarn_channel_say(k->channel, &c, "UNPOST");
    tarn_command_u64(&c, k->id);
    tarn_channel_owe(k->channel, &c);
}

/* --- the call ----------------------------------------------------------------------------------- */

/* The first receive that the peer does not have. */
static struct tarn_channel_call *first_unposted(const struct tarn_channel *ch)
{
    struct tarn_channel_call *k;
    DL_FOREACH (ch->receives, k)
        if (k->state == TARN_RECEIVE_NEW || k->state == TARN_RECEIVE_POSTING)
            return k;
    return NULL;
}

static void wake_unposted(const struct tarn_channel *ch)
{
    struct tarn_channel_call *k = first_unposted(ch);
    if (k)
        tarn_channel_wake(k);
}

/* At its turn, has the peer know of it. The lock is held, but not meanwhile. */
static int post_in_turn(struct tarn_channel_call *k, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    struct tarn_channel *ch = k->channel;
    if (k->state != TARN_RECEIVE_NEW || first_unposted(ch) != k)
        return TARN_INPROGRESS;
    k->state = TARN_RECEIVE_POSTING;
    k->id = ++ch->last_posted;
    pthread_mutex_unlock(&ch->all->lock);
    int rc = post(k, k->id, deadline_ns, cancel);
    pthread_mutex_lock(&ch->all->lock);
    if (!rc && k->state == TARN_RECEIVE_POSTING)
        k->state = TARN_RECEIVE_POSTED;
    wake_unposted(ch);
    return rc;
}

/* Ends it for the peer. */
static void leave(struct tarn_channel_call *k)
{
    struct tarn_channel *ch = k->channel;
    bool owes = (k->state == TARN_RECEIVE_POSTING || k->state == TARN_RECEIVE_POSTED) && !ch->end.code;
    DL_DELETE(ch->receives, k);
    wake_unposted(ch);
    if (!owes)
        return;
    pthread_mutex_unlock(&ch->all->lock);
    unpost(k);
    pthread_mutex_lock(&ch->all->lock);
}

int tarn_channel_recv_advance(struct tarn_channel_call *k, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    struct tarn_reason why = {0};
    while (k->state != TARN_RECEIVE_DONE && !why.code) {
        tarn_reason_keep(&why, tarn_channel_call_over(k, deadline_ns, cancel));
        int rc = why.code ? 0 : post_in_turn(k, deadline_ns, cancel);
        if (rc == TARN_INPROGRESS)
            return rc;
        tarn_reason_keep(&why, why.code ? why.code : rc);
    }
    if (k->state == TARN_RECEIVE_DONE)
        why = k->outcome;
    leave(k);
    return tarn_reason_fail(&why);
}

int tarn_channel_recv_finish(struct tarn_channel_call *k, int rc)
{
    struct tarn_reason why;
    tarn_reason_keep(&why, rc);
    if (k->lease) {
        int busy = tarn_lender_recall(k->lease, tarn_deadline(RECALL_MS), NULL);
        if (busy) {
            tarn_reason_keep(&why, busy);
            tarn_lent_receive(&k->lease->window->lender->lent, k->lease, false); /* the window frees it */
        } else {
            tarn_lease_free(k->lease);
        }
    }
    if (!why.code && k->data)
        tarn_reason_keep(&why, tarn_channel_scatter(k, k->data));
    free(k->data);
    if (k->bytes_p && k->n == 1 && (why.code == 0 || why.code == TARN_E_SIZE))
        *k->bytes_p = k->items[0].bytes;
    return tarn_reason_fail(&why);
}
