/* SPDX-License-Identifier: Apache-2.0 */
/* What all that the directory thread does has in common: calls to Redis, and the account of them. */
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "server/directory/publisher_impl.h"

#define AT "directory"

uint64_t call_deadline(const struct tarn_publisher *p)
{
    return tarn_deadline(p->o.timeout_ms);
}

int account(struct tarn_publisher *p, int rc)
{
    pthread_mutex_lock(&p->lock);
    bool was_away = p->stats.away;
    p->stats.calls++;
    p->stats.away = rc != 0;
    p->stats.silent = rc && !tarn_directory_answers(p->o.directory);
    if (rc) {
        p->stats.failed_calls++;
        snprintf(p->stats.error, sizeof(p->stats.error), "%s", tarn_last_error());
    }
    pthread_mutex_unlock(&p->lock);
    if (rc && !was_away)
        tarn_log(p->o.log, TARN_LOG_WARN, AT, "msg=\"redis does not do its part\" cause=\"%s\"",
                 tarn_last_error());
    if (!rc && was_away)
        tarn_log(p->o.log, TARN_LOG_INFO, AT, "msg=\"redis is back\"");
    return rc;
}

void request_failed(struct tarn_request *r, int rc)
{
    r->status = rc;
    snprintf(r->error, sizeof(r->error), "%s", tarn_last_error());
}

int work_withdraw_items(struct tarn_publisher *p, struct tarn_withdraw *w, size_t n)
{
    return account(p, tarn_directory_withdraw(p->o.directory, w, n, call_deadline(p)));
}
