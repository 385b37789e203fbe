/* SPDX-License-Identifier: Apache-2.0 */
#include "client/window/channels.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/text.h"
#include "base/thread.h"
#include "client/client.h"
#include "client/op.h"
#include "client/retire.h"

/* --- start and end ------------------------------------------------------------------------------ */

void tarn_channels_init(struct tarn_channels *all, struct tarn_client *c, struct tarn_lent *lent,
                        const struct tarn_host *host)
{
    all->client = c;
    all->lent = lent;
    all->host = host;
    all->accept_fd = -1;
    pthread_mutex_init(&all->lock, NULL);
    tarn_cond_init(&all->arrived);
}

void tarn_announcement_free(struct tarn_announcement *a)
{
    if (a)
        tarn_reach_free(a->reach);
    free(a);
}

static void drop_announced(struct tarn_channel *ch)
{
    struct tarn_announcement *a, *next;
    DL_FOREACH_SAFE(ch->announced, a, next)
    tarn_announcement_free(a);
    ch->announced = NULL;
    ch->nannounced = 0;
}

static void channel_free(struct tarn_channel *ch)
{
    drop_announced(ch);
    DL_DELETE(ch->all->list, ch);
    free(ch);
}

/* A session whose last connection says QUIT ends with it, though its process lives. */
static void say_goodbye(struct tarn_control_conn *conn)
{
    if (!tarn_resp_append_strs(conn->resp, "QUIT", NULL))
        tarn_resp_flush(conn->resp, tarn_now_ns(), NULL);
    tarn_control_conn_drop(conn);
}

void tarn_channels_end(struct tarn_channels *all)
{
    struct tarn_channel *ch, *next;
    DL_FOREACH_SAFE(all->list, ch, next)
    {
        tarn_watch_free(ch->watch);
        if (ch->lifeline)
            say_goodbye(ch->lifeline);
        channel_free(ch);
    }
    if (all->accept_fd >= 0)
        close(all->accept_fd);
    pthread_cond_destroy(&all->arrived);
    pthread_mutex_destroy(&all->lock);
}

bool tarn_channels_listen(struct tarn_channels *all)
{
    pthread_mutex_lock(&all->lock);
    bool listens = all->accept_fd >= 0;
    pthread_mutex_unlock(&all->lock);
    return listens;
}

void tarn_channels_info(struct tarn_channels *all, struct tarn_buf *text)
{
    const struct tarn_channel *ch;
    const struct tarn_channel_call *k;
    uint32_t n = 0, broken = 0, announced = 0, calls = 0, count;
    pthread_mutex_lock(&all->lock);
    DL_FOREACH (all->list, ch) {
        n++;
        broken += ch->end.code != 0;
        announced += ch->nannounced;
        DL_COUNT(ch->sends, k, count);
        calls += count;
        DL_COUNT(ch->receives, k, count);
        calls += count;
    }
    tarn_buf_printf(text,
                    "channels:%u\r\nchannels_unaccepted:%u\r\nchannels_broken:%u\r\nchannel_calls:%u\r\n"
                    "receives_announced:%u\r\n",
                    n, all->nunaccepted, broken, calls, announced);
    pthread_mutex_unlock(&all->lock);
}

/* --- coming and going --------------------------------------------------------------------------- */

int tarn_channel_new(struct tarn_channels *all, const struct tarn_party *peer, struct tarn_channel **ch_p)
{
    const struct tarn_descriptor d = {.epoch = peer->epoch};
    struct tarn_descriptor lender = d;
    struct tarn_channel *ch = calloc(1, sizeof(*ch));
    snprintf(lender.address, sizeof(lender.address), "%s", peer->address);
    snprintf(lender.unix_path, sizeof(lender.unix_path), "%s", peer->unix_path);
    snprintf(lender.host_id, sizeof(lender.host_id), "%s", peer->host_id);
    snprintf(lender.token, sizeof(lender.token), "%s", peer->secret);
    if (!ch || !(ch->node = tarn_lender_node(all->client, &lender))) {
        free(ch);
        return tarn_fail(TARN_E_NO_MEMORY, "channel: out of memory");
    }
    ch->all = all;
    ch->session = peer->session;
    ch->refs = 1;
    ch->peer.id = peer->epoch;
    snprintf(ch->peer.address, sizeof(ch->peer.address), "%s", peer->address);
    snprintf(ch->who, sizeof(ch->who), "%s (%s)", peer->id, peer->address);
    pthread_mutex_lock(&all->lock);
    ch->id = ++all->last_id;
    DL_APPEND(all->list, ch);
    pthread_mutex_unlock(&all->lock);
    *ch_p = ch;
    return 0;
}

void tarn_channel_unref(struct tarn_channel *ch)
{
    if (--ch->refs == 0)
        channel_free(ch);
}

static void leave_queue(struct tarn_channel *ch)
{
    eventfd_t count;
    ch->unaccepted = false;
    if (--ch->all->nunaccepted == 0)
        eventfd_read(ch->all->accept_fd, &count);
}

int tarn_channel_arrive(struct tarn_channel *ch)
{
    struct tarn_channels *all = ch->all;
    if (all->nunaccepted == TARN_UNACCEPTED_MAX)
        return tarn_fail(TARN_E_AGAIN, "CONNECT: %d channels wait to be accepted at %s: connect again later",
                         TARN_UNACCEPTED_MAX, all->self.id);
    ch->unaccepted = true;
    if (all->nunaccepted++ == 0)
        eventfd_write(all->accept_fd, 1);
    pthread_cond_broadcast(&all->arrived);
    return 0;
}

struct tarn_channel *tarn_channel_take_arrived(struct tarn_channels *all)
{
    struct tarn_channel *ch;
    DL_SEARCH_SCALAR(all->list, ch, unaccepted, true);
    if (ch)
        leave_queue(ch);
    return ch;
}

struct tarn_channel *tarn_channel_find(struct tarn_channels *all, uint64_t id, uint64_t session)
{
    struct tarn_channel *ch;
    DL_SEARCH_SCALAR(all->list, ch, id, id);
    return ch && ch->session == session ? ch : NULL;
}

void tarn_channel_end(struct tarn_channel *ch, int code, const char *cause)
{
    struct tarn_channel_call *k;
    if (ch->end.code)
        return;
    tarn_reason_keep(&ch->end, tarn_fail(code, "channel with %s: %s", ch->who, cause));
    drop_announced(ch);
    DL_FOREACH (ch->sends, k)
        tarn_channel_wake(k);
    DL_FOREACH (ch->receives, k)
        tarn_channel_wake(k);
    if (ch->unaccepted) {
        leave_queue(ch);
        tarn_channel_unref(ch);
    }
}

int tarn_channel_fail(const struct tarn_channel *ch)
{
    return tarn_reason_fail(&ch->end);
}

void tarn_channels_forget(struct tarn_channels *all, uint64_t session)
{
    struct tarn_channel *ch, *next;
    pthread_mutex_lock(&all->lock);
    DL_FOREACH_SAFE(all->list, ch, next)
    if (ch->accepts && ch->session == session)
        tarn_channel_end(ch, TARN_E_NODE_DOWN, "its session is over: has that process ended?");
    pthread_mutex_unlock(&all->lock);
}

/* --- calls -------------------------------------------------------------------------------------- */

int tarn_channel_call_over(const struct tarn_channel_call *k, uint64_t deadline_ns,
                           const struct tarn_cancel *cancel)
{
    if (k->channel->end.code)
        return tarn_channel_fail(k->channel);
    if (tarn_canceled(cancel))
        return tarn_cancel_fail();
    if (tarn_now_ns() < deadline_ns)
        return 0;
    return tarn_fail(TARN_E_TIMEOUT, "%s: %s has not %s with tag %" PRIu64 " in time: raise timeout_ms",
                     k->send ? "send" : "recv", k->channel->who, k->send ? "received" : "sent", k->tag);
}

void tarn_channel_wake(struct tarn_channel_call *k)
{
    if (k->submitted)
        tarn_op_wake(k->channel->all->client, atomic_load(&k->op));
    else
        pthread_cond_signal(&k->woken);
}

struct tarn_channel_call *tarn_channel_first_send(const struct tarn_channel *ch, uint64_t tag)
{
    struct tarn_channel_call *k;
    DL_SEARCH_SCALAR(ch->sends, k, tag, tag);
    return k;
}

/* --- sizes -------------------------------------------------------------------------------------- */

void tarn_sizes_format(const struct tarn_channel_item *items, size_t n, struct tarn_buf *text)
{
    for (size_t i = 0; i < n; i++)
        tarn_buf_printf(text, "%s%llu", i ? " " : "",
                        (unsigned long long)tarn_pieces_bytes(items[i].pieces, items[i].npieces));
}

int tarn_sizes_count(const redisReply *text, size_t *n_p)
{
    size_t n = text->len > 0;
    for (size_t i = 0; i < text->len; i++)
        n += text->str[i] == ' ';
    if (n > TARN_CHANNEL_ITEMS_MAX)
        return tarn_fail(TARN_E_INVALID, "channel: a message of %zu items: at most %d", n,
                         TARN_CHANNEL_ITEMS_MAX);
    *n_p = n;
    return 0;
}

int tarn_sizes_parse(const redisReply *text, size_t n, uint64_t *sizes)
{
    const char *at = text->str;
    for (size_t i = 0; i < n; i++) {
        size_t bytes = strcspn(at, " ");
        if (tarn_u64_parse(at, bytes, 10, UINT64_MAX, &sizes[i]))
            return tarn_fail(TARN_E_INVALID, "channel: \"%.40s\" is no size", at);
        at += bytes + (at[bytes] == ' ');
    }
    return 0;
}
