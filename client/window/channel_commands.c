/* SPDX-License-Identifier: Apache-2.0 */
#include "client/window/channel_commands.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "client/client.h"

static int finish(struct tarn_conn *c, int rc)
{
    if (!rc)
        tarn_resp_add_simple(&c->out, "OK");
    return rc;
}

/* --- coming ------------------------------------------------------------------------------------- */

static bool is_near(const struct tarn_conn *c)
{
    return c->local || !strncmp(c->peer, "127.", 4) || !strncmp(c->peer, "[::1]", 5);
}

/* May the stranger connect? given: NULL: it has shown no secret. */
static int admit(struct tarn_channels *all, const struct tarn_conn *c, const redisReply *given)
{
    const char *secret = all->client->secret;
    if (!tarn_channels_listen(all))
        return tarn_fail(TARN_E_NOT_FOUND,
                         "%s: does not listen for channels: call tarn_channel_listen() there", all->self.id);
    if (secret ? given && tarn_secret_is(secret, given) : is_near(c))
        return 0;
    return tarn_fail(TARN_E_AUTH, "%s: %s: give both clients the same (tarn_options.secret, TARN_SECRET)",
                     all->self.id, secret && given ? "wrong secret" : "wants a secret and was shown none");
}

int tarn_channel_command_lender(struct tarn_channels *all, struct tarn_conn *c, size_t n, redisReply **args)
{
    uint64_t protocol;
    if (tarn_arg_u64(args[1], "protocol", 10, UINT32_MAX, &protocol) || protocol != TARN_PROTOCOL)
        return tarn_fail(TARN_E_VERSION, "%s speaks protocol %d: use a client of version %s", all->self.id,
                         TARN_PROTOCOL, tarn_version());
    int rc = admit(all, c, n > 2 ? args[2] : NULL);
    if (rc)
        return rc;
    tarn_resp_add_array(&c->out, TARN_PARTY_FIELDS);
    tarn_party_tell(&all->self, &c->out);
    return 0;
}

/* CONNECT <channel> <7 fields of the connector> <hello> [<secret>]. The control connection does not say
 * enough: everyone who has a descriptor may open one. */
int tarn_channel_command_connect(struct tarn_channels *all, struct tarn_conn *c, size_t n, redisReply **args)
{
    const redisReply *hello = args[2 + TARN_PARTY_FIELDS];
    struct tarn_party peer;
    struct tarn_channel *ch;
    uint64_t peer_id;
    int rc = tarn_arg_u64(args[1], "channel", 10, UINT64_MAX, &peer_id);
    if (!rc)
        rc = tarn_party_take(args + 2, &peer);
    if (!rc && hello->len > TARN_HELLO_MAX)
        rc = tarn_fail(TARN_E_INVALID, "CONNECT: a hello of %zu bytes: at most %d", (size_t)hello->len,
                       TARN_HELLO_MAX);
    if (!rc)
        rc = admit(all, c, n > 3 + TARN_PARTY_FIELDS ? args[3 + TARN_PARTY_FIELDS] : NULL);
    peer.session = c->session->id;
    if (!rc)
        rc = tarn_channel_new(all, &peer, &ch);
    if (rc)
        return rc;
    pthread_mutex_lock(&all->lock);
    ch->accepts = true;
    ch->peer_id = peer_id;
    ch->peer.hello_bytes = (uint32_t)hello->len;
    memcpy(ch->peer.hello, hello->str, hello->len);
    uint64_t id = ch->id;
    rc = tarn_channel_arrive(ch);
    if (rc)
        tarn_channel_unref(ch);
    pthread_mutex_unlock(&all->lock);
    if (!rc)
        tarn_resp_add_integer(&c->out, (int64_t)id);
    return rc;
}

/* --- messages ----------------------------------------------------------------------------------- */

static int unknown_channel(const struct tarn_channels *all, const redisReply *name)
{
    return tarn_fail(TARN_E_NOT_FOUND, "%s has no channel %.20s of this session: it was closed", all->self.id,
                     name->str);
}

/* The open channel of that name. The lock is held. */
static int find(struct tarn_channels *all, const struct tarn_conn *c, const redisReply *name,
                struct tarn_channel **ch_p)
{
    uint64_t id;
    int rc = tarn_arg_u64(name, "channel", 10, UINT64_MAX, &id);
    if (rc)
        return rc;
    *ch_p = tarn_channel_find(all, id, c->session->id);
    return *ch_p && !(*ch_p)->end.code ? 0 : unknown_channel(all, name);
}

/* Fills an announcement from <announcement> <tag> <capacities>, and from what is told of a lease. The
 * channel's node lives as long as the client. */
static int announcement(struct tarn_channels *all, struct tarn_peer_node *node, redisReply **args, size_t n,
                        struct tarn_announcement **a_p)
{
    struct tarn_told_lease lease;
    size_t items;
    int rc = tarn_sizes_count(args[2], &items);
    if (rc)
        return rc;
    struct tarn_announcement *a = calloc(1, sizeof(*a) + items * sizeof(a->capacities[0]));
    if (!a)
        return tarn_fail(TARN_E_NO_MEMORY, "POST: out of memory for %zu items", items);
    a->n = items;
    rc = tarn_arg_u64(args[0], "announcement", 10, UINT64_MAX, &a->id);
    if (!rc)
        rc = tarn_arg_u64(args[1], "tag", 10, UINT64_MAX, &a->tag);
    if (!rc)
        rc = tarn_sizes_parse(args[2], items, a->capacities);
    if (!rc && n > 3)
        rc = n < 7 ? tarn_fail(TARN_E_INVALID, "POST: a lease has more fields")
                   : tarn_arg_slot(args + 3, &lease.window, &lease.slot, &lease.gen);
    lease.token = n > 6 ? args[6]->str : "";
    if (!rc && n > 3)
        rc = tarn_reach_told(all->client, node, &lease, args + 7, n - 7, &a->reach);
    if (rc)
        tarn_announcement_free(a);
    else
        *a_p = a;
    return rc;
}

/* The lock is held. One that is not newer than the last was given up by the peer, or has come already. */
static int announce(struct tarn_channel *ch, struct tarn_announcement *a)
{
    if (a->id <= ch->last_announced)
        return tarn_fail(TARN_E_STALE, "POST: announcement %" PRIu64 " comes late", a->id);
    if (ch->nannounced == TARN_ANNOUNCED_MAX)
        return tarn_fail(TARN_E_AGAIN, "POST: %d receives of the channel wait for messages: post fewer",
                         TARN_ANNOUNCED_MAX);
    ch->last_announced = a->id;
    ch->nannounced++;
    DL_APPEND(ch->announced, a);
    struct tarn_channel_call *k = tarn_channel_first_send(ch, a->tag);
    if (k)
        tarn_channel_wake(k);
    return 0;
}

/* POST <channel> <announcement> <tag> <capacities> [<window> <slot> <gen> <token> <what REACH answers>] */
int tarn_channel_command_post(struct tarn_channels *all, struct tarn_conn *c, size_t n, redisReply **args)
{
    struct tarn_channel *ch;
    struct tarn_announcement *a = NULL;
    pthread_mutex_lock(&all->lock);
    int rc = find(all, c, args[1], &ch);
    struct tarn_peer_node *node = rc ? NULL : ch->node;
    pthread_mutex_unlock(&all->lock);
    if (!rc)
        rc = announcement(all, node, args + 2, n - 2, &a);
    if (rc)
        return rc;
    pthread_mutex_lock(&all->lock);
    rc = find(all, c, args[1], &ch);
    if (!rc)
        rc = announce(ch, a);
    pthread_mutex_unlock(&all->lock);
    if (rc)
        tarn_announcement_free(a);
    return finish(c, rc);
}

/* UNPOST <channel> <announcement> */
int tarn_channel_command_unpost(struct tarn_channels *all, struct tarn_conn *c, redisReply **args)
{
    struct tarn_channel *ch;
    struct tarn_announcement *a = NULL;
    uint64_t id;
    int rc = tarn_arg_u64(args[2], "announcement", 10, UINT64_MAX, &id);
    if (rc)
        return rc;
    pthread_mutex_lock(&all->lock);
    rc = find(all, c, args[1], &ch);
    if (!rc)
        DL_SEARCH_SCALAR(ch->announced, a, id, id);
    if (!rc && id > ch->last_announced)
        ch->last_announced = id; /* its POST is still to come */
    if (a) {
        DL_DELETE(ch->announced, a);
        ch->nannounced--;
    }
    pthread_mutex_unlock(&all->lock);
    tarn_announcement_free(a);
    return finish(c, rc);
}

/* --- DELIVER ------------------------------------------------------------------------------------ */

enum how { HOW_DATA, HOW_WRITTEN, HOW_SIZE, HOW_ABANDONED, HOWS };

static const char *const hows[HOWS] = {"data", "written", "size", "abandoned"};

static int parse_how(const redisReply *arg, enum how *how_p)
{
    for (int h = 0; h < HOWS; h++)
        if (!strcmp(arg->str, hows[h])) {
            *how_p = (enum how)h;
            return 0;
        }
    return tarn_fail(TARN_E_INVALID, "DELIVER: \"%.20s\" is none of data, written, size and abandoned",
                     arg->str);
}

struct delivery {
    enum how how;
    const redisReply *data;
    size_t n;
    const uint64_t *sizes;
};

/* Does the message fit into the receive? INVALID: the sender should have seen that it does not. */
static int check_fit(const struct tarn_channel_call *k, const struct delivery *d)
{
    uint64_t total = 0;
    bool fits = d->n == k->n;
    for (size_t i = 0; fits && i < d->n; i++) {
        const struct tarn_channel_item *item = &k->items[i];
        fits = d->sizes[i] <= tarn_pieces_bytes(item->pieces, item->npieces);
        total += d->sizes[i];
    }
    if (fits && (d->how == HOW_DATA ? total == d->data->len && total <= TARN_SMALL_MAX : k->lease != NULL))
        return 0;
    return tarn_fail(TARN_E_INVALID, "DELIVER: the message does not fit into receive %" PRIu64, k->id);
}

/* How the receive ends, in the words of its caller. */
static int outcome(const struct tarn_channel_call *k, const struct delivery *d)
{
    uint64_t total = 0;
    for (size_t i = 0; i < d->n; i++)
        total += d->sizes[i];
    if (d->how == HOW_ABANDONED)
        return tarn_fail(TARN_E_AGAIN, "recv: %s gave up in the middle of its message: receive again",
                         k->channel->who);
    if (d->how != HOW_SIZE)
        return 0;
    if (d->n != k->n)
        return tarn_fail(TARN_E_SIZE,
                         "recv: %s has sent %zu items, this receives %zu: use as many on both sides",
                         k->channel->who, d->n, k->n);
    return tarn_fail(TARN_E_SIZE,
                     "recv: %s has sent %" PRIu64 " bytes, this receives at most %" PRIu64
                     ": receive each item into as many bytes as it has",
                     k->channel->who, total, k->bytes);
}

/* Ends the receive. The lock is held. */
static int deliver(struct tarn_channel_call *k, const struct delivery *d)
{
    bool moved = d->how == HOW_DATA || d->how == HOW_WRITTEN;
    int rc = moved ? check_fit(k, d) : 0;
    if (rc)
        return rc;
    if (d->how == HOW_DATA && d->data->len > 0 && !(k->data = malloc(d->data->len)))
        return tarn_fail(TARN_E_NO_MEMORY, "DELIVER: out of memory");
    if (k->data)
        memcpy(k->data, d->data->str, d->data->len);
    if (d->n == k->n && d->how != HOW_ABANDONED)
        for (size_t i = 0; i < d->n; i++)
            k->items[i].bytes = d->sizes[i];
    tarn_reason_keep(&k->outcome, outcome(k, d));
    k->state = TARN_RECEIVE_DONE;
    k->done(k);
    return 0;
}

/* The receive with that announcement, unless it has ended. The lock is held. */
static struct tarn_channel_call *find_receive(const struct tarn_channel *ch, uint64_t id)
{
    struct tarn_channel_call *k;
    DL_SEARCH_SCALAR(ch->receives, k, id, id);
    return k && (k->state == TARN_RECEIVE_POSTING || k->state == TARN_RECEIVE_POSTED) ? k : NULL;
}

static int parse_delivery(redisReply **args, uint64_t **sizes_p, struct delivery *d)
{
    int rc = parse_how(args[0], &d->how);
    if (!rc)
        rc = tarn_sizes_count(args[1], &d->n);
    if (rc)
        return rc;
    uint64_t *sizes = calloc(d->n + 1, sizeof(*sizes));
    if (!sizes)
        return tarn_fail(TARN_E_NO_MEMORY, "DELIVER: out of memory for %zu items", d->n);
    *sizes_p = sizes;
    d->sizes = sizes;
    d->data = args[2];
    return tarn_sizes_parse(args[1], d->n, sizes);
}

/* DELIVER <channel> <announcement> <data|written|size|abandoned> <sizes> <data> */
int tarn_channel_command_deliver(struct tarn_channels *all, struct tarn_conn *c, redisReply **args)
{
    struct tarn_channel *ch;
    struct delivery d;
    uint64_t id, *sizes = NULL;
    int rc = tarn_arg_u64(args[2], "announcement", 10, UINT64_MAX, &id);
    if (!rc)
        rc = parse_delivery(args + 3, &sizes, &d);
    pthread_mutex_lock(&all->lock);
    if (!rc)
        rc = find(all, c, args[1], &ch);
    struct tarn_channel_call *k = rc ? NULL : find_receive(ch, id);
    if (k)
        rc = deliver(k, &d);
    else if (!rc)
        rc = tarn_fail(TARN_E_STALE, "DELIVER: receive %" PRIu64 " has ended", id);
    pthread_mutex_unlock(&all->lock);
    free(sizes);
    return finish(c, rc);
}

/* HANGUP <channel> */
int tarn_channel_command_hangup(struct tarn_channels *all, struct tarn_conn *c, redisReply **args)
{
    struct tarn_channel *ch;
    pthread_mutex_lock(&all->lock);
    int rc = find(all, c, args[1], &ch);
    if (!rc)
        tarn_channel_end(ch, TARN_E_NODE_DOWN, "the peer has closed it");
    pthread_mutex_unlock(&all->lock);
    return finish(c, rc);
}
