/* SPDX-License-Identifier: Apache-2.0 */
#include "client/window/channel_send.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "client/window/channel_ask.h"
#include "client/window/channel_small.h"
#include "client/window/move.h"

/* --- one message -------------------------------------------------------------------------------- */

static void begin_deliver(const struct tarn_channel_call *k, const struct tarn_announcement *a,
                          const char *how, struct tarn_command *c)
{
    struct tarn_buf sizes = {0};
    tarn_channel_say(k->channel, c, "DELIVER");
    tarn_command_u64(c, a->id);
    tarn_command_str(c, how);
    tarn_sizes_format(k->items, k->n, &sizes);
    tarn_command_add(c, sizes.data, sizes.bytes);
    c->strings.failed |= sizes.failed;
    tarn_buf_free(&sizes);
}

/* `data`: of a small message. */
static int deliver(const struct tarn_channel_call *k, const struct tarn_announcement *a, const char *how,
                   const char *data, uint64_t bytes, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    struct tarn_command c = {.n = 0};
    begin_deliver(k, a, how, &c);
    tarn_command_add(&c, data, bytes);
    return tarn_channel_ask(k->channel, &c, deadline_ns, cancel);
}

/* The announcement is taken, so no other send ends the receive. If DELIVER was under way, the first of both
 * counts. */
static void abandon(const struct tarn_channel_call *k, const struct tarn_announcement *a)
{
    struct tarn_command c = {.n = 0};
    begin_deliver(k, a, "abandoned", &c);
    tarn_command_add(&c, "", 0);
    tarn_channel_owe(k->channel, &c);
}

/* Writes all items into the lease: item i begins where the capacities before it end. */
static int write_items(const struct tarn_channel_call *k, const struct tarn_announcement *a,
                       uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    struct tarn_move *moves = calloc(k->n, sizeof(*moves));
    uint64_t offset = 0;
    if (!moves)
        return tarn_fail(TARN_E_NO_MEMORY, "send: out of memory for %zu items", k->n);
    for (size_t i = 0; i < k->n; offset += a->capacities[i++])
        moves[i] = (struct tarn_move){
            .pieces = k->items[i].pieces, .npieces = k->items[i].npieces, .offset = offset};
    int rc = tarn_move_run(a->reach, moves, k->n, true, deadline_ns, cancel);
    free(moves);
    return rc;
}

static int send_large(const struct tarn_channel_call *k, const struct tarn_announcement *a,
                      uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    int rc = write_items(k, a, deadline_ns, cancel);
    return rc ? rc : deliver(k, a, "written", "", 0, deadline_ns, cancel);
}

static int send_small(const struct tarn_channel_call *k, const struct tarn_announcement *a,
                      uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    char data[TARN_SMALL_MAX];
    int rc = tarn_channel_gather(k, data);
    return rc ? rc : deliver(k, a, "data", data, k->bytes, deadline_ns, cancel);
}

static bool fits(const struct tarn_channel_call *k, const struct tarn_announcement *a)
{
    if (k->n != a->n)
        return false;
    for (size_t i = 0; i < k->n; i++)
        if (tarn_pieces_bytes(k->items[i].pieces, k->items[i].npieces) > a->capacities[i])
            return false;
    return true;
}

static int refuse(const struct tarn_channel_call *k, const struct tarn_announcement *a, uint64_t deadline_ns,
                  struct tarn_cancel *cancel)
{
    uint64_t room = 0;
    int rc = deliver(k, a, "size", "", 0, deadline_ns, cancel);
    for (size_t i = 0; i < a->n; i++)
        room += a->capacities[i];
    if (rc)
        return rc;
    if (k->n != a->n)
        return tarn_fail(TARN_E_SIZE, "send: %zu items: %s receives %zu: use as many on both sides", k->n,
                         k->channel->who, a->n);
    return tarn_fail(TARN_E_SIZE,
                     "send: %" PRIu64 " bytes: %s receives at most %" PRIu64
                     ": send each item as large as its place",
                     k->bytes, k->channel->who, room);
}

/* STALE: the receive has ended without this message. However this ends, the receive does. */
static int send_to(const struct tarn_channel_call *k, const struct tarn_announcement *a, uint64_t deadline_ns,
                   struct tarn_cancel *cancel)
{
    bool fit = fits(k, a);
    struct tarn_reason why;
    tarn_reason_keep(&why, !fit                         ? refuse(k, a, deadline_ns, cancel)
                           : k->bytes <= TARN_SMALL_MAX ? send_small(k, a, deadline_ns, cancel)
                                                        : send_large(k, a, deadline_ns, cancel));
    if (why.code && why.code != TARN_E_STALE && (fit || why.code != TARN_E_SIZE))
        abandon(k, a);
    return tarn_reason_fail(&why);
}

/* --- the call ----------------------------------------------------------------------------------- */

/* The oldest announcement of the tag, if the call is at its turn. */
static struct tarn_announcement *take(const struct tarn_channel_call *k)
{
    struct tarn_channel *ch = k->channel;
    struct tarn_announcement *a = NULL;
    if (tarn_channel_first_send(ch, k->tag) == k)
        DL_SEARCH_SCALAR(ch->announced, a, tag, k->tag);
    if (a) {
        DL_DELETE(ch->announced, a);
        ch->nannounced--;
    }
    return a;
}

/* The next send of the tag is at its turn. */
static void leave(struct tarn_channel_call *k)
{
    struct tarn_channel *ch = k->channel;
    DL_DELETE(ch->sends, k);
    struct tarn_channel_call *next = tarn_channel_first_send(ch, k->tag);
    if (next)
        tarn_channel_wake(next);
}

int tarn_channel_send_advance(struct tarn_channel_call *k, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    pthread_mutex_t *lock = &k->channel->all->lock;
    int rc;
    do {
        rc = tarn_channel_call_over(k, deadline_ns, cancel);
        if (rc)
            break;
        struct tarn_announcement *a = take(k);
        if (!a)
            return TARN_INPROGRESS;
        pthread_mutex_unlock(lock);
        rc = send_to(k, a, deadline_ns, cancel);
        tarn_announcement_free(a);
        pthread_mutex_lock(lock);
    } while (rc == TARN_E_STALE);
    leave(k);
    return rc;
}
