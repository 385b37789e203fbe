/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/host/start.h"

#include "base/error.h"
#include "transport/host/commands.h"

int tarn_host_serve(struct tarn_host *h, const struct tarn_serve *serve, const char *wanted, bool strict)
{
    const struct tarn_node_half_ops *ops[TARN_TRANSPORTS_MAX];
    int found = tarn_node_half_select(wanted, h->log, ops, TARN_TRANSPORTS_MAX);
    if (found < 0)
        return found;
    for (int i = 0; i < found; i++) {
        struct tarn_node_half *half;
        int rc = ops[i]->serve(serve, &half);
        if (rc && !strict) {
            tarn_log(h->log, TARN_LOG_WARN, "host",
                     "msg=\"a transport is not offered\" transport=%s cause=\"%s\"", ops[i]->name,
                     tarn_last_error());
            continue;
        }
        if (rc)
            return rc;
        h->transports[h->ntransports++] = (struct tarn_host_transport){ops[i], half};
    }
    return 0;
}

static void drop_session(const struct tarn_session *s)
{
    tarn_control_drop(s->all->host->control, s);
}

int tarn_host_listen(struct tarn_host *h, struct tarn_addr *listen, const struct tarn_addr *unix_addr)
{
    int rc = tarn_sessions_new(h, drop_session, &h->sessions);
    return rc ? rc : tarn_control_start(h, listen, unix_addr, &h->control);
}

void tarn_host_end(struct tarn_host *h)
{
    tarn_control_stop(h->control);
    tarn_sessions_free(h->sessions);
    for (uint32_t i = 0; i < h->ntransports; i++)
        h->transports[i].ops->stop(h->transports[i].half);
    tarn_attaching_free(h);
}
