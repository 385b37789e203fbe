/* SPDX-License-Identifier: Apache-2.0 */
#include "client/owed_command.h"

#include <stdlib.h>
#include <utlist.h>

#include "client/alert.h"
#include "client/client.h"
#include "client/control_conn.h"
#include "client/health.h"

#define STEPS 3 /* connect, HELLO, the command itself */

struct tarn_owed_command {
    struct tarn_owed_command *next;
    struct tarn_peer_node *node;
    struct tarn_command command;
};

static void owed_command_free(struct tarn_owed_command *e)
{
    atomic_fetch_sub(&e->node->owed_commands, 1);
    tarn_command_free(&e->command);
    free(e);
}

void tarn_owed_command_add(struct tarn_peer_node *node, struct tarn_command *c)
{
    struct tarn_owed_command *e = malloc(sizeof *e);

    if (!e) { /* the node releases it when the session ends */
        tarn_command_free(c);
        return;
    }
    *e = (struct tarn_owed_command){.node = node, .command = *c};
    struct tarn_monitor *m = &node->client->monitor;
    atomic_fetch_add(&node->owed_commands, 1);
    pthread_mutex_lock(&m->lock);
    LL_APPEND(m->owed_commands, e);
    pthread_mutex_unlock(&m->lock);
    tarn_monitor_ask(node->client);
}

/* True: it is settled. Sends only to nodes that are up: the keeper must not wait for its own word on a node.
 */
static bool owed_command_run(struct tarn_owed_command *e)
{
    struct tarn_peer_node *node = e->node;
    redisReply *reply;

    if (atomic_load(&node->superseded) ||
        (atomic_load(&node->health) == TARN_GONE && !atomic_load(&node->listed)))
        return true;
    if (atomic_load(&node->health) != TARN_UP)
        return false;
    int rc = tarn_control_conn_call(node, &e->command, tarn_now_ns() + STEPS * tarn_peer_node_patience(node),
                                    NULL, &reply);
    if (rc == 0)
        freeReplyObject(reply);
    /* Any other error is the node's answer. BUSY is HELLO's, and SYSTEM is ours: the command was not sent. */
    return rc != TARN_E_NODE_DOWN && rc != TARN_E_TIMEOUT && rc != TARN_E_BUSY && rc != TARN_E_SYSTEM;
}

/* Has another command of this node failed in this round? */
static bool held_up(const struct tarn_owed_command *failed, const struct tarn_peer_node *node)
{
    for (; failed; failed = failed->next)
        if (failed->node == node)
            return true;
    return false;
}

bool tarn_owed_commands_run(struct tarn_monitor *m)
{
    struct tarn_owed_command *e, *next, *failed = NULL;
    bool more = false;

    pthread_mutex_lock(&m->lock);
    struct tarn_owed_command *all = m->owed_commands;
    m->owed_commands = NULL;
    pthread_mutex_unlock(&m->lock);
    LL_FOREACH_SAFE(all, e, next)
    {
        if (!held_up(failed, e->node) && owed_command_run(e)) {
            owed_command_free(e);
            continue;
        }
        more |= atomic_load(&e->node->health) == TARN_UP; /* else it waits for the node */
        LL_APPEND(failed, e);
    }
    pthread_mutex_lock(&m->lock);
    LL_CONCAT(failed, m->owed_commands);
    m->owed_commands = failed;
    pthread_mutex_unlock(&m->lock);
    return more;
}

void tarn_owed_commands_end(struct tarn_monitor *m)
{
    struct tarn_owed_command *e, *next;

    LL_FOREACH_SAFE(m->owed_commands, e, next)
    owed_command_free(e);
}
