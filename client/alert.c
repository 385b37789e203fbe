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

bool tarn_monitor_watch(struct tarn_remote *r, struct tarn_call *call)
{
    struct tarn_monitor *m = &r->client->monitor;

    pthread_mutex_lock(&m->lock);
    bool take = m->watching && !m->stop && !r->watch;
    if (take) {
        r->watch = call;
        m->watches++;
    }
    pthread_mutex_unlock(&m->lock);
    if (take)
        eventfd_write(m->wake_fd, 1);
    return take;
}

void tarn_monitor_owe(struct tarn_client *c, struct tarn_call *call)
{
    struct tarn_monitor *m = &c->monitor;

    pthread_mutex_lock(&m->lock);
    bool take = m->keeping && !m->stop;
    if (take) {
        call->next = m->owing;
        m->owing = call;
        m->asked = true;
        pthread_cond_signal(&m->wake);
    }
    pthread_mutex_unlock(&m->lock);
    if (!take)
        tarn_call_drop(call);
}
