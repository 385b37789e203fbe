/* SPDX-License-Identifier: Apache-2.0 */
#include "client/alert.h"

#include <sys/eventfd.h>

#include "client/client.h"
#include "client/retire.h"

static void wake_keeper(struct tarn_monitor *m, bool *why)
{
    pthread_mutex_lock(&m->lock);
    *why = true;
    if (m->keeping)
        pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
}

void tarn_monitor_ask(struct tarn_client *c)
{
    wake_keeper(&c->monitor, &c->monitor.asked);
}

void tarn_monitor_alarm(struct tarn_client *c)
{
    wake_keeper(&c->monitor, &c->monitor.alarmed);
}

bool tarn_monitor_watch(struct tarn_peer_node *node, struct tarn_control_conn *conn)
{
    struct tarn_monitor *m = &node->client->monitor;

    pthread_mutex_lock(&m->lock);
    bool take = m->watching && !m->stop && !node->watch;
    if (take) {
        node->watch = conn;
        m->watches++;
    }
    pthread_mutex_unlock(&m->lock);
    if (take)
        eventfd_write(m->wake_fd, 1);
    return take;
}

void tarn_monitor_owe(struct tarn_client *c, struct tarn_control_conn *conn)
{
    struct tarn_monitor *m = &c->monitor;

    pthread_mutex_lock(&m->lock);
    bool take = m->keeping && !m->stop;
    if (take) {
        conn->next = m->owing;
        m->owing = conn;
        m->asked = true;
        pthread_cond_signal(&m->wake);
    }
    pthread_mutex_unlock(&m->lock);
    if (!take)
        tarn_control_conn_drop(conn);
}
