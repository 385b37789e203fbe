/* SPDX-License-Identifier: Apache-2.0 */
#include "client/window/channel_ask.h"

#include "client/control_conn.h"
#include "client/owed_command.h"

void tarn_channel_say(struct tarn_channel *ch, struct tarn_command *c, const char *name)
{
    pthread_mutex_lock(&ch->all->lock);
    uint64_t id = ch->peer_id;
    pthread_mutex_unlock(&ch->all->lock);
    tarn_command_str(c, name);
    tarn_command_u64(c, id);
}

void tarn_channel_owe(struct tarn_channel *ch, struct tarn_command *c)
{
    tarn_owed_command_add(ch->node, c);
}

void tarn_channel_hangup(struct tarn_channel *ch)
{
    struct tarn_command c = {.n = 0};
    tarn_channel_say(ch, &c, "HANGUP");
    tarn_channel_owe(ch, &c);
}

int tarn_channel_broken(struct tarn_channel *ch, const char *cause)
{
    pthread_mutex_lock(&ch->all->lock);
    bool first = !ch->end.code;
    tarn_channel_end(ch, TARN_E_NODE_DOWN, cause);
    pthread_mutex_unlock(&ch->all->lock);
    if (first)
        tarn_channel_hangup(ch);
    return tarn_channel_fail(ch);
}

static int call(struct tarn_peer_node *node, const struct tarn_command *c, uint64_t deadline_ns,
                struct tarn_cancel *cancel)
{
    struct tarn_control_conn *conn;
    redisReply *reply;
    int rc = tarn_control_conn_take(node, deadline_ns, cancel, &conn);
    if (rc)
        return rc;
    rc = tarn_control_conn_send(conn, c, deadline_ns, cancel);
    if (rc) {
        tarn_control_conn_give(conn);
        return rc;
    }
    rc = tarn_control_conn_finish(conn, deadline_ns, cancel, &reply);
    if (!rc)
        freeReplyObject(reply);
    return rc;
}

int tarn_channel_ask(struct tarn_channel *ch, struct tarn_command *c, uint64_t deadline_ns,
                     struct tarn_cancel *cancel)
{
    struct tarn_reason why;
    tarn_reason_keep(&why, call(ch->node, c, deadline_ns, cancel));
    tarn_command_free(c);
    switch (why.code) {
    case TARN_E_NODE_DOWN:
        return tarn_channel_broken(ch, why.text);
    case TARN_E_NOT_FOUND: /* the peer has no such channel */
        return tarn_channel_broken(ch, "the peer has closed it");
    default:
        return tarn_reason_fail(&why);
    }
}
