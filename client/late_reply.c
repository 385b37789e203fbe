/* SPDX-License-Identifier: Apache-2.0 */
#include "client/late_reply.h"

#include <poll.h>
#include <unistd.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/resp/resp.h"
#include "client/client.h"
#include "client/control_conn.h"
#include "client/owed_command.h"
#include "client/retire.h"

#define LATE_MAX_NS (60 * TARN_NS_PER_S)

/* By another connection: STORE's reply may be outstanding on this one, and would be waited for. */
static void give_grants_back(struct tarn_peer_node *node, const redisReply *reply)
{
    struct tarn_command c = {.n = 0};

    tarn_command_str(&c, "ABORT");
    for (size_t i = 0; i < reply->elements; i++) {
        const redisReply *e = reply->element[i];
        if (e->type != REDIS_REPLY_ARRAY || e->elements != 4 || !e->element[3]->str)
            continue;
        tarn_command_u64(&c, (uint64_t)e->element[0]->integer);
        tarn_command_u64(&c, (uint64_t)e->element[2]->integer);
        tarn_command_add(&c, e->element[3]->str, e->element[3]->len);
    }
    if (c.n > 1)
        tarn_owed_command_add(node, &c);
    else
        tarn_command_free(&c);
}

/* True: the connection must be looked at again. */
static bool is_late(struct tarn_control_conn *conn)
{
    struct pollfd fd = {tarn_resp_fd(conn->resp), POLLIN, 0};
    bool grants = conn->grants;
    redisReply *reply = NULL;
    int fds[TARN_RESP_FDS_MAX], rc = 0;

    bool more = poll(&fd, 1, 0) != 0;
    if (more || conn->refused || conn->behind) /* it may have been received with the reply before it */
        rc = tarn_control_conn_reply(conn, tarn_deadline(more ? 100 : 0), NULL, &reply);
    /* Descriptors of a late ATTACH would pass for the next one's. */
    for (int n = tarn_resp_take_fds(conn->resp, fds, TARN_RESP_FDS_MAX); n > 0; n--)
        close(fds[n - 1]);
    if (reply && grants)
        give_grants_back(conn->node, reply);
    if (reply)
        freeReplyObject(reply);
    if (conn->replies_due && tarn_now_ns() - conn->since_ns < LATE_MAX_NS)
        return true;
    if (conn->replies_due || rc == TARN_E_NODE_DOWN || rc == TARN_E_PROTOCOL)
        tarn_control_conn_drop(conn);
    else
        tarn_control_conn_give(conn);
    return false;
}

bool tarn_late_replies_read(struct tarn_monitor *m)
{
    struct tarn_control_conn *conn, *next, *late = NULL;

    pthread_mutex_lock(&m->lock);
    struct tarn_control_conn *owing = m->owing;
    m->owing = NULL;
    pthread_mutex_unlock(&m->lock);
    LL_FOREACH_SAFE(owing, conn, next)
    if (is_late(conn))
        LL_PREPEND(late, conn);
    pthread_mutex_lock(&m->lock);
    LL_CONCAT(m->owing, late);
    pthread_mutex_unlock(&m->lock);
    return late != NULL;
}

void tarn_late_replies_end(struct tarn_monitor *m)
{
    struct tarn_control_conn *conn, *next;

    LL_FOREACH_SAFE(m->owing, conn, next)
    tarn_control_conn_drop(conn);
}
