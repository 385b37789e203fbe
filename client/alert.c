/* SPDX-License-Identifier: Apache-2.0 */
/* What others leave to the monitor's threads: it is noted, and they are woken. */
#include "client/alert.h"

#include <sys/eventfd.h>

#include "client/client.h"
#include "client/retire.h"

void tarn_monitor_ask(struct tarn_client *c)
{
    struct tarn_monitor *m = &c->monitor;

    pthread_mutex_lock(&m->lock);
    m->asked = true;
    if (m->keeping)
        pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
}

void tarn_monitor_alarm(struct tarn_client *c)
{
    struct tarn_monitor *m = &c->monitor;

    pthread_mutex_lock(&m->lock);
    m->alarmed = true;
    pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
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
