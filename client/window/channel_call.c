/* SPDX-License-Identifier: Apache-2.0 */
/* Sends and receives, blocking and submitted. */
#include <stdlib.h>
#include <utlist.h>

#include "base/thread.h"
#include "client/check.h"
#include "client/client.h"
#include "client/op.h"
#include "client/window/channel_recv.h"
#include "client/window/channel_send.h"
#include "client/window/lender.h"

static int check_items(struct tarn_channel_call *k)
{
    const char *call = k->send ? "send" : "recv";
    if (k->n > TARN_CHANNEL_ITEMS_MAX)
        return tarn_fail(TARN_E_INVALID, "%s: %zu items: at most %d: use more messages", call, k->n,
                         TARN_CHANNEL_ITEMS_MAX);
    if (k->n && !k->items)
        return tarn_fail(TARN_E_INVALID, "%s: items is NULL", call);
    for (size_t i = 0; i < k->n; i++) {
        int rc = tarn_pieces_check(call, i, k->items[i].pieces, k->items[i].npieces);
        if (rc)
            return rc;
        if (__builtin_add_overflow(k->bytes, tarn_pieces_bytes(k->items[i].pieces, k->items[i].npieces),
                                   &k->bytes))
            return tarn_fail(TARN_E_INVALID, "%s: the items have more than 2^64 bytes", call);
    }
    return tarn_flags_check(call, k->options.flags, 0);
}

/* Checks the call, and gives it its place among those of the channel. */
static int begin(struct tarn_channel_call *k, const struct tarn_channel_options *given)
{
    struct tarn_channel *ch = k->channel;
    int rc = ch ? tarn_client_enter(ch->all->client)
                : tarn_fail(TARN_E_INVALID,
                            "%s: no channel: pass what tarn_channel_connect() or "
                            "tarn_channel_accept() made",
                            k->send ? "send" : "recv");
    if (!rc)
        rc = tarn_options_copy(&k->options, sizeof(k->options), given);
    if (!rc)
        rc = check_items(k);
    if (!rc && !k->send)
        rc = tarn_channel_recv_begin(k);
    if (rc)
        return rc;
    pthread_mutex_lock(&ch->all->lock);
    ch->refs++;
    if (k->send)
        DL_APPEND(ch->sends, k);
    else
        DL_APPEND(ch->receives, k);
    pthread_mutex_unlock(&ch->all->lock);
    return 0;
}

static int advance(struct tarn_channel_call *k, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    return k->send ? tarn_channel_send_advance(k, deadline_ns, cancel)
                   : tarn_channel_recv_advance(k, deadline_ns, cancel);
}

/* It has ended with rc. The lock is held; this gives it back. */
static int finish(struct tarn_channel_call *k, int rc)
{
    struct tarn_channels *all = k->channel->all;
    tarn_channel_unref(k->channel);
    pthread_mutex_unlock(&all->lock);
    return k->send ? rc : tarn_channel_recv_finish(k, rc);
}

static int run(struct tarn_channel_call *k, const struct tarn_channel_options *given)
{
    struct tarn_cancel own;
    tarn_cond_init(&k->woken);
    k->done = tarn_channel_wake;
    int rc = begin(k, given);
    if (!rc) {
        const struct tarn_client *c = k->channel->all->client;
        struct tarn_cancel *cancel = tarn_client_cancel(c, &own);
        uint64_t deadline = tarn_client_deadline(c, k->options.timeout_ms);
        pthread_mutex_t *lock = &k->channel->all->lock;
        pthread_mutex_lock(lock);
        while ((rc = advance(k, deadline, cancel)) == TARN_INPROGRESS)
            tarn_cancel_cond(cancel, &k->woken, lock, deadline);
        rc = finish(k, rc);
    }
    pthread_cond_destroy(&k->woken);
    return rc;
}

static struct tarn_channel_item one(const struct tarn_piece *pieces, uint32_t npieces)
{
    return (struct tarn_channel_item){.pieces = pieces, .npieces = npieces};
}

int tarn_send(struct tarn_channel *ch, uint64_t tag, const struct tarn_piece *pieces, uint32_t npieces,
              const struct tarn_channel_options *o)
{
    struct tarn_channel_call k = {
        .channel = ch, .send = true, .tag = tag, .one = one(pieces, npieces), .items = &k.one, .n = 1};
    return run(&k, o);
}

int tarn_recv(struct tarn_channel *ch, uint64_t tag, const struct tarn_piece *pieces, uint32_t npieces,
              const struct tarn_channel_options *o, uint64_t *bytes_p)
{
    struct tarn_channel_call k = {
        .channel = ch, .tag = tag, .one = one(pieces, npieces), .items = &k.one, .n = 1, .bytes_p = bytes_p};
    return run(&k, o);
}

int tarn_sendv(struct tarn_channel *ch, uint64_t tag, struct tarn_channel_item *items, size_t n,
               const struct tarn_channel_options *o)
{
    struct tarn_channel_call k = {.channel = ch, .send = true, .tag = tag, .items = items, .n = n};
    return run(&k, o);
}

int tarn_recvv(struct tarn_channel *ch, uint64_t tag, struct tarn_channel_item *items, size_t n,
               const struct tarn_channel_options *o)
{
    struct tarn_channel_call k = {.channel = ch, .tag = tag, .items = items, .n = n};
    return run(&k, o);
}

/* --- submitted ---------------------------------------------------------------------------------- */

static int run_submitted(void *arg, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    struct tarn_channel_call *k = arg;
    pthread_mutex_t *lock = &k->channel->all->lock;
    pthread_mutex_lock(lock);
    int rc = advance(k, deadline_ns, cancel);
    if (rc != TARN_INPROGRESS)
        return finish(k, rc);
    pthread_mutex_unlock(lock);
    return rc;
}

static bool uses(const void *arg, const void *addr, uint64_t bytes)
{
    const struct tarn_channel_call *k = arg;
    for (size_t i = 0; i < k->n; i++)
        for (uint32_t j = 0; j < k->items[i].npieces; j++)
            if (tarn_piece_overlaps(&k->items[i].pieces[j], addr, bytes))
                return true;
    return false;
}

/* Ends a parked receive without a worker, unless somebody is still at its memory. */
static void done(struct tarn_channel_call *k)
{
    struct tarn_client *c = k->channel->all->client;
    struct tarn_operation *op = tarn_op_claim(c, atomic_load(&k->op));
    if (!op)
        return; /* a worker has it, and looks again */
    if (k->lease && tarn_lender_recall_now(k->lease)) {
        tarn_op_park(c, op); /* a worker waits for that */
        return;
    }
    tarn_lease_free(k->lease);
    k->lease = NULL;
    int rc = advance(k, UINT64_MAX, NULL);
    tarn_channel_unref(k->channel);
    tarn_op_complete(c, op, tarn_channel_recv_finish(k, rc));
}

/* It was not submitted. */
static void take_back(struct tarn_channel_call *k)
{
    pthread_mutex_lock(&k->channel->all->lock);
    if (k->send)
        DL_DELETE(k->channel->sends, k);
    else
        DL_DELETE(k->channel->receives, k);
    finish(k, TARN_E_CANCELED);
}

static int submit(const struct tarn_channel_call *as, const struct tarn_channel_options *given,
                  uint64_t cookie, tarn_op *op_p)
{
    struct tarn_channel_call *k = malloc(sizeof(*k));
    if (!k)
        return tarn_fail(TARN_E_NO_MEMORY, "submit: out of memory");
    *k = *as;
    k->submitted = true;
    k->done = done;
    if (as->items == &as->one)
        k->items = &k->one;
    int rc = begin(k, given);
    if (rc) {
        free(k);
        return rc;
    }
    const struct tarn_op_task t = {.kind = k->send ? TARN_OP_SEND : TARN_OP_RECV,
                                   .timeout_ms = k->options.timeout_ms,
                                   .cookie = cookie,
                                   .run = run_submitted,
                                   .uses = uses,
                                   .arg = k,
                                   .parks = true,
                                   .id_p = &k->op};
    struct tarn_reason why;
    if (tarn_reason_keep(&why, tarn_op_submit(k->channel->all->client, &t, op_p))) {
        take_back(k);
        free(k);
    }
    return tarn_reason_fail(&why);
}

int tarn_submit_send(struct tarn_channel *ch, uint64_t tag, const struct tarn_piece *pieces, uint32_t npieces,
                     const struct tarn_channel_options *o, uint64_t cookie, tarn_op *op_p)
{
    struct tarn_channel_call k = {
        .channel = ch, .send = true, .tag = tag, .one = one(pieces, npieces), .items = &k.one, .n = 1};
    return submit(&k, o, cookie, op_p);
}

int tarn_submit_recv(struct tarn_channel *ch, uint64_t tag, const struct tarn_piece *pieces, uint32_t npieces,
                     const struct tarn_channel_options *o, uint64_t *bytes_p, uint64_t cookie, tarn_op *op_p)
{
    struct tarn_channel_call k = {
        .channel = ch, .tag = tag, .one = one(pieces, npieces), .items = &k.one, .n = 1, .bytes_p = bytes_p};
    return submit(&k, o, cookie, op_p);
}

int tarn_submit_sendv(struct tarn_channel *ch, uint64_t tag, struct tarn_channel_item *items, size_t n,
                      const struct tarn_channel_options *o, uint64_t cookie, tarn_op *op_p)
{
    struct tarn_channel_call k = {.channel = ch, .send = true, .tag = tag, .items = items, .n = n};
    return submit(&k, o, cookie, op_p);
}

int tarn_submit_recvv(struct tarn_channel *ch, uint64_t tag, struct tarn_channel_item *items, size_t n,
                      const struct tarn_channel_options *o, uint64_t cookie, tarn_op *op_p)
{
    struct tarn_channel_call k = {.channel = ch, .tag = tag, .items = items, .n = n};
    return submit(&k, o, cookie, op_p);
}
