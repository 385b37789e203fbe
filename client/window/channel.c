/* SPDX-License-Identifier: Apache-2.0 */
/* Channels come and go. Messages are in channel_call.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "client/check.h"
#include "client/client.h"
#include "client/control_conn.h"
#include "client/op.h"
#include "client/retire.h"
#include "client/window/channel_ask.h"
#include "client/window/lender.h"

#define PROTOCOL "1"

/* --- listening ---------------------------------------------------------------------------------- */

static bool is_loopback(const char *address)
{
    return !strncmp(address, "127.", 4) || !strncmp(address, "[::1]", 5) ||
           !strncmp(address, "localhost:", 10);
}

static int check_listen(const struct tarn_lender *l)
{
    if (l->client->secret || is_loopback(l->address))
        return 0;
    return tarn_fail(TARN_E_CONFIG,
                     "channel: listening at %s would let in everybody: give this client a secret "
                     "(tarn_options.secret, TARN_SECRET), or listen at 127.0.0.1",
                     l->address);
}

int tarn_channel_listen(struct tarn_client *c)
{
    struct tarn_lender *l;
    int fd = -1, rc = tarn_client_enter(c);
    if (!rc)
        rc = tarn_lender_of(c, &l);
    if (!rc)
        rc = check_listen(l);
    if (rc)
        return rc;
    pthread_mutex_lock(&l->channels.lock);
    if (l->channels.accept_fd < 0)
        rc = tarn_client_eventfd(&fd);
    if (!rc && fd >= 0)
        l->channels.accept_fd = fd;
    pthread_mutex_unlock(&l->channels.lock);
    return rc;
}

/* The lender of a client that listens. */
static int listener(struct tarn_client *c, struct tarn_channels **all_p)
{
    int rc = tarn_client_enter(c);
    if (rc)
        return rc;
    pthread_mutex_lock(&c->lender_lock);
    struct tarn_lender *l = c->lender;
    pthread_mutex_unlock(&c->lender_lock);
    if (!l || !tarn_channels_listen(&l->channels))
        return tarn_fail(TARN_E_INVALID,
                         "channel: this client does not listen: call tarn_channel_listen() first");
    *all_p = &l->channels;
    return 0;
}

int tarn_channel_address(struct tarn_client *c, char address[TARN_CHANNEL_ADDRESS_MAX],
                         char unix_path[TARN_CHANNEL_ADDRESS_MAX])
{
    struct tarn_channels *all;
    int rc = listener(c, &all);
    if (!rc && address)
        snprintf(address, TARN_CHANNEL_ADDRESS_MAX, "%s", all->self.address);
    if (!rc && unix_path)
        snprintf(unix_path, TARN_CHANNEL_ADDRESS_MAX, "%s", all->self.unix_path);
    return rc;
}

int tarn_channel_accept(struct tarn_client *c, uint32_t timeout_ms, struct tarn_channel **ch_p)
{
    struct tarn_channels *all;
    struct tarn_channel *ch;
    struct tarn_cancel own;
    int rc = listener(c, &all);
    if (!rc)
        rc = tarn_out_check("accept", ch_p);
    if (rc)
        return rc;
    struct tarn_cancel *cancel = tarn_client_cancel(c, &own);
    uint64_t deadline = tarn_client_deadline(c, timeout_ms);
    bool more = true;
    pthread_mutex_lock(&all->lock);
    while (!(ch = tarn_channel_take_arrived(all)) && more)
        more = tarn_cancel_cond(cancel, &all->arrived, &all->lock, deadline);
    pthread_mutex_unlock(&all->lock);
    if (!ch)
        return tarn_canceled(cancel) ? tarn_cancel_fail()
                                     : tarn_fail(TARN_E_TIMEOUT, "accept: nobody has connected to %s in time",
                                                 all->self.address);
    *ch_p = ch;
    return 0;
}

int tarn_channel_accept_fd(struct tarn_client *c)
{
    struct tarn_channels *all;
    int rc = listener(c, &all);
    return rc ? rc : all->accept_fd;
}

/* --- connecting --------------------------------------------------------------------------------- */

struct knock {
    struct tarn_client *client;
    struct tarn_lender *lender;
    struct tarn_addr at;
    uint64_t deadline_ns;
    struct tarn_cancel *cancel;
    const void *hello;
    size_t hello_bytes;
};

static int parse_address(const char *address, struct tarn_addr *a)
{
    if (!address || address[0] != '/')
        return address ? tarn_addr_parse(address, "connect", a)
                       : tarn_fail(TARN_E_INVALID, "connect: address is NULL");
    if (strlen(address) >= sizeof(a->host))
        return tarn_fail(TARN_E_INVALID, "connect: a path of %zu bytes: at most %zu", strlen(address),
                         sizeof(a->host) - 1);
    *a = (struct tarn_addr){.is_unix = true};
    snprintf(a->host, sizeof(a->host), "%s", address);
    return 0;
}

/* The answer to LENDER. */
static int take_party(const redisReply *reply, const struct tarn_addr *at, struct tarn_party *peer)
{
    char who[300];
    tarn_addr_format(at, who, sizeof(who));
    int rc = tarn_resp_error(reply, who, TARN_E_PROTOCOL);
    if (!rc && (reply->type != REDIS_REPLY_ARRAY || reply->elements != TARN_PARTY_FIELDS))
        rc = tarn_fail(TARN_E_PROTOCOL, "connect: %s: no client of tarn answers there", who);
    if (!rc)
        rc = tarn_party_take(reply->element, peer);
    if (!rc && !at->is_unix)
        tarn_addr_format(at, peer->address, sizeof(peer->address));
    return rc;
}

/* Asks who answers at the address, on a connection of its own. */
static int ask_who(const struct knock *k, struct tarn_party *peer)
{
    struct tarn_resp *resp;
    redisReply *reply;
    int rc = tarn_resp_connect(&k->at, k->deadline_ns, k->cancel, &resp);
    if (rc)
        return rc;
    rc = tarn_resp_append_strs(resp, "LENDER", PROTOCOL, k->client->secret, NULL);
    if (!rc)
        rc = tarn_resp_read(resp, k->deadline_ns, k->cancel, &reply);
    tarn_resp_free(resp);
    if (rc)
        return rc;
    rc = take_party(reply, &k->at, peer);
    freeReplyObject(reply);
    return rc;
}

static int check_way_back(const struct knock *k, const struct tarn_party *peer, const struct tarn_party *self)
{
    if (k->at.is_unix || !strcmp(peer->host_id, self->host_id) || !is_loopback(self->address))
        return 0;
    return tarn_fail(TARN_E_CONFIG,
                     "connect: %s is on another host, and could not reach this client at %s: set "
                     "tarn_options.listen to an address of this host",
                     peer->address, self->address);
}

/* CONNECT, on the connection that becomes the lifeline. */
static int say_connect(struct tarn_channel *ch, const struct knock *k)
{
    struct tarn_command c = {.n = 0};
    struct tarn_control_conn *conn;
    redisReply *reply;
    int rc = tarn_control_conn_take(ch->node, k->deadline_ns, k->cancel, &conn);
    if (rc)
        return rc;
    tarn_command_str(&c, "CONNECT");
    tarn_command_u64(&c, ch->id);
    tarn_party_tell(&ch->all->self, &c.strings);
    c.n += TARN_PARTY_FIELDS;
    tarn_command_add(&c, k->hello, k->hello_bytes);
    if (k->client->secret)
        tarn_command_str(&c, k->client->secret);
    rc = tarn_control_conn_send(conn, &c, k->deadline_ns, k->cancel);
    tarn_command_free(&c);
    if (!rc)
        rc = tarn_control_conn_reply(conn, k->deadline_ns, k->cancel, &reply);
    if (rc) {
        tarn_control_conn_give(conn);
        return rc;
    }
    pthread_mutex_lock(&ch->all->lock);
    ch->peer_id = (uint64_t)reply->integer;
    pthread_mutex_unlock(&ch->all->lock);
    freeReplyObject(reply);
    ch->lifeline = conn;
    return 0;
}

/* --- the lifeline, on the lender's thread ------------------------------------------------------- */

static void drop_lifeline(struct tarn_channel *ch)
{
    tarn_watch_free(ch->watch);
    ch->watch = NULL;
    if (ch->lifeline)
        tarn_control_conn_drop(ch->lifeline);
    ch->lifeline = NULL;
}

/* Nothing is sent on it any more, so it is readable when it ends. */
static void lifeline_ended(void *arg, int events)
{
    struct tarn_channel *ch = arg;
    (void)events;
    drop_lifeline(ch);
    tarn_channel_broken(ch, "its connection broke: has that process ended?");
}

static int watch(struct tarn_lender *l, void *arg)
{
    struct tarn_channel *ch = arg;
    return tarn_watch_new(l->host.loop, tarn_resp_fd(ch->lifeline->resp), TARN_READABLE, lifeline_ended, ch,
                          &ch->watch);
}

static int unwatch(struct tarn_lender *l, void *arg)
{
    (void)l;
    drop_lifeline(arg);
    return 0;
}

/* --- public ------------------------------------------------------------------------------------- */

static int connect_to(const struct knock *k, struct tarn_channel **ch_p)
{
    struct tarn_lender *l = k->lender;
    struct tarn_party peer;
    struct tarn_channel *ch;
    int rc = ask_who(k, &peer);
    if (!rc)
        rc = check_way_back(k, &peer, &l->channels.self);
    if (!rc)
        rc = tarn_channel_new(&l->channels, &peer, &ch);
    if (rc)
        return rc;
    rc = say_connect(ch, k);
    if (!rc)
        rc = tarn_lender_run(l, watch, ch);
    if (!rc) {
        *ch_p = ch;
        return 0;
    }
    struct tarn_reason why;
    tarn_reason_keep(&why, rc);
    tarn_channel_close(ch);
    return tarn_reason_fail(&why);
}

/* Fills what a call of the interface gives. */
static int knock_of(struct tarn_client *c, const char *address, const void *hello, size_t hello_bytes,
                    struct tarn_channel **ch_p, struct knock *k)
{
    *k = (struct knock){.client = c, .hello = hello, .hello_bytes = hello_bytes};
    int rc = tarn_client_enter(c);
    if (!rc)
        rc = tarn_out_check("connect", ch_p);
    if (!rc && (hello_bytes > TARN_HELLO_MAX || (hello_bytes && !hello)))
        rc = tarn_fail(TARN_E_INVALID, "connect: a hello of %zu bytes at %p: at most %d bytes", hello_bytes,
                       hello, TARN_HELLO_MAX);
    if (!rc)
        rc = parse_address(address, &k->at);
    return rc ? rc : tarn_lender_of(c, &k->lender);
}

int tarn_channel_connect(struct tarn_client *c, const char *address, const void *hello, size_t hello_bytes,
                         uint32_t timeout_ms, struct tarn_channel **ch_p)
{
    struct tarn_cancel own;
    struct knock k;
    int rc = knock_of(c, address, hello, hello_bytes, ch_p, &k);
    if (rc)
        return rc;
    k.cancel = tarn_client_cancel(c, &own);
    k.deadline_ns = tarn_client_deadline(c, timeout_ms);
    return connect_to(&k, ch_p);
}

struct submitted {
    struct knock knock;
    struct tarn_channel **ch_p;
    char hello[TARN_HELLO_MAX];
};

static int run_submitted(void *arg, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    struct submitted *s = arg;
    s->knock.deadline_ns = deadline_ns;
    s->knock.cancel = cancel;
    return connect_to(&s->knock, s->ch_p);
}

int tarn_submit_connect(struct tarn_client *c, const char *address, const void *hello, size_t hello_bytes,
                        uint32_t timeout_ms, uint64_t cookie, struct tarn_channel **ch_p, tarn_op *op_p)
{
    struct knock k;
    int rc = knock_of(c, address, hello, hello_bytes, ch_p, &k);
    if (rc)
        return rc;
    struct submitted *s = malloc(sizeof(*s));
    if (!s)
        return tarn_fail(TARN_E_NO_MEMORY, "connect: out of memory");
    s->knock = k;
    s->ch_p = ch_p;
    if (hello_bytes)
        memcpy(s->hello, hello, hello_bytes);
    s->knock.hello = s->hello;
    const struct tarn_op_task t = {
        .kind = TARN_OP_CONNECT, .timeout_ms = timeout_ms, .cookie = cookie, .run = run_submitted, .arg = s};
    rc = tarn_op_submit(c, &t, op_p);
    if (rc)
        free(s);
    return rc;
}

int tarn_channel_peer(const struct tarn_channel *ch, struct tarn_channel_peer *out)
{
    int rc = tarn_out_check("channel peer", out);
    if (!rc && !ch)
        rc = tarn_fail(TARN_E_INVALID, "channel peer: no channel");
    if (!rc)
        *out = ch->peer;
    return rc;
}

void tarn_channel_close(struct tarn_channel *ch)
{
    if (!ch || tarn_client_enter(ch->all->client))
        return;
    struct tarn_lender *l = ch->all->client->lender;
    pthread_mutex_lock(&ch->all->lock);
    bool open = !ch->end.code && ch->peer_id;
    tarn_channel_end(ch, TARN_E_CLOSED, "this client has closed it");
    pthread_mutex_unlock(&ch->all->lock);
    if (open)
        tarn_channel_hangup(ch);
    tarn_lender_run(l, unwatch, ch);
    pthread_mutex_lock(&l->channels.lock);
    tarn_channel_unref(ch);
    pthread_mutex_unlock(&l->channels.lock);
}
