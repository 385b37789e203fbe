/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errands: DETACHes and ABORTs that their node did not answer. What they give back would otherwise stay
 * writable, or reserved, for as long as this client lives, so the keeper goes on until the node has answered
 * or its incarnation is over. Saying any of them twice does no harm. A node hears them in the order in which
 * they came up, and nothing of theirs overtakes them: it must not free a reservation before it has cut off,
 * at DETACH, who could still write under it.
 */
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

    if (!e) { /* the node finds displaced copies by itself, and reservations when the session ends */
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

/* True when it is done with. Only asks nodes that are up: the keeper must not wait for its own word. */
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
    /* An error, too, is the node's answer; but BUSY is HELLO's, the command itself was not even sent. */
    return rc != TARN_E_NODE_DOWN && rc != TARN_E_TIMEOUT && rc != TARN_E_BUSY;
}

/* One of this node has failed before in this round. */
static bool held_up(const struct tarn_owed_command *failed, const struct tarn_peer_node *node)
{
    for (; failed; failed = failed->next)
        if (failed->node == node)
            return true;
    return false;
}

bool tarn_owed_commands_run(struct tarn_monitor *m)
{
    struct tarn_owed_command *failed = NULL;
    bool more = false;

    pthread_mutex_lock(&m->lock);
    struct tarn_owed_command *all = m->owed_commands;
    m->owed_commands = NULL;
    pthread_mutex_unlock(&m->lock);
    while (all) {
        struct tarn_owed_command *e = all;
        all = e->next;
        e->next = NULL;
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
    while (m->owed_commands) {
        struct tarn_owed_command *e = m->owed_commands;
        m->owed_commands = e->next;
        owed_command_free(e);
    }
}
