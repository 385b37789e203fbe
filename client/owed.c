/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owed replies: of connections whose caller went away before the answer came (deadline, cancel). The keeper
 * reads the answer, gives back what is granted in it, and the connection is good again.
 */
#include "client/owed.h"

#include <poll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/resp/resp.h"
#include "client/call.h"
#include "client/client.h"
#include "client/retire.h"
#include "client/words.h"

#define OWED_MAX_NS (60 * TARN_NS_PER_S)

static void give_grants_back(struct tarn_call *call, const redisReply *reply)
{
    struct tarn_words a;

    if (tarn_words_init(&a, 1 + 3 * (int)reply->elements, reply->elements * 48) != 0)
        return;
    tarn_words_str(&a, "ABORT");
    for (size_t i = 0; i < reply->elements; i++) {
        const redisReply *e = reply->element[i];
        if (e->type != REDIS_REPLY_ARRAY || e->elements != 4 || !e->element[3]->str)
            continue;
        tarn_words_u64(&a, (uint64_t)e->element[0]->integer);
        tarn_words_u64(&a, (uint64_t)e->element[2]->integer);
        tarn_words_str(&a, e->element[3]->str);
    }
    if (a.n > 1)
        tarn_words_send(&a, call, tarn_deadline(100));
    tarn_words_free(&a);
}

/* True when the connection is to be looked at again. */
static bool owed_look(struct tarn_call *call)
{
    struct pollfd fd = {tarn_resp_fd(call->resp), POLLIN, 0};
    bool grants = call->grants;
    redisReply *reply = NULL;
    int fds[TARN_RESP_FDS_MAX];

    if (!call->refused && poll(&fd, 1, 0) == 0) { /* a refused HELLO's answer may have come with the other */
        if (tarn_now_ns() - call->since_ns < OWED_MAX_NS)
            return true;
        tarn_call_drop(call);
        return false;
    }
    int rc = tarn_call_reply(call, tarn_deadline(100), NULL, &reply);
    /* A late ATTACH's: left there they would pass for the next one's. */
    for (int n = tarn_resp_take_fds(call->resp, fds, TARN_RESP_FDS_MAX); n > 0; n--)
        close(fds[n - 1]);
    if (rc == 0 && grants)
        give_grants_back(call, reply);
    if (reply)
        freeReplyObject(reply);
    if (call->owed)
        return true;
    if (rc == TARN_E_NODE_DOWN || rc == TARN_E_PROTOCOL || rc == TARN_E_TIMEOUT)
        tarn_call_drop(call);
    else
        tarn_call_give(call);
    return false;
}

bool tarn_monitor_owed(struct tarn_monitor *m)
{
    pthread_mutex_lock(&m->lock);
    struct tarn_call *calls = m->owing;
    m->owing = NULL;
    pthread_mutex_unlock(&m->lock);

    bool more = false;
    while (calls) {
        struct tarn_call *call = calls;
        calls = call->next;
        if (!owed_look(call))
            continue;
        pthread_mutex_lock(&m->lock);
        call->next = m->owing;
        m->owing = call;
        pthread_mutex_unlock(&m->lock);
        more = true;
    }
    return more;
}

void tarn_monitor_owed_end(struct tarn_monitor *m)
{
    while (m->owing) {
        struct tarn_call *call = m->owing;
        m->owing = call->next;
        tarn_call_drop(call);
    }
}
