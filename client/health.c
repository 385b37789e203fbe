/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Health: UP -> SLOW (silent for longer than its patience) or GONE (connection broke) at the first failure, wherever
 * it is seen; the node is then *suspect* until the keeper (monitor.c) has asked it, which it does at once.
 * Only the keeper makes it UP again. Calls that have no other copy or node to turn to wait for that word;
 * all others go elsewhere. So a hiccup costs a round trip, a failure costs one bounded delay once, and no
 * get or put ever tries a node that is known to be in trouble.
 *
 * That a caller's deadline was shorter than the patience says nothing of the node, but nor is it nothing: the
 * node is *doubted*, and stays UP while the keeper asks it. Its silence then counts, not the caller's.
 */
#include "client/health.h"

#include "base/thread.h"
#include "client/alert.h"
#include "client/client.h"
#include "client/retire.h"

void tarn_remote_aside(struct tarn_remote *r, enum tarn_health h, const char *why)
{
    int was = atomic_load(&r->health);

    if (was == TARN_UP)
        atomic_store(&r->suspect, true);
    while (was < (int)h && !atomic_compare_exchange_weak(&r->health, &was, (int)h))
        ;
    if (was >= (int)h)
        return;
    tarn_log(&r->client->log, TARN_LOG_WARN, "client",
             "msg=\"node set aside\" node=%s health=%s cause=\"%s\"", r->key.id,
             h == TARN_GONE ? "gone" : "slow", why);
    if (h == TARN_GONE)
        tarn_remote_retire(r);
    tarn_monitor_ask(r->client);
}

/* Redis is one of those that may be far. */
uint64_t tarn_remote_patience(const struct tarn_remote *r)
{
    uint64_t ns = tarn_patience_ns(&r->patience), redis_ns = tarn_directory_rtt_ns(r->client->directory);
    uint64_t farthest = atomic_load(&r->client->farthest_ns);

    if (ns || atomic_load(&r->near))
        return ns ? ns : TARN_PATIENCE_NS;
    return tarn_patience_first(farthest > redis_ns ? farthest : redis_ns);
}

void tarn_remote_answered(struct tarn_remote *r, uint64_t rtt_ns)
{
    uint64_t farthest = atomic_load(&r->client->farthest_ns);

    tarn_patience_learn(&r->patience, rtt_ns);
    while (farthest < rtt_ns && !atomic_compare_exchange_weak(&r->client->farthest_ns, &farthest, rtt_ns))
        ;
}

void tarn_remote_silent(struct tarn_remote *r, uint64_t since_ns)
{
    if (tarn_now_ns() - since_ns >= tarn_remote_patience(r))
        tarn_remote_aside(r, TARN_SLOW, tarn_last_error());
    else
        tarn_remote_doubt(r);
}

void tarn_remote_doubt(struct tarn_remote *r)
{
    if (atomic_load(&r->health) == TARN_UP && !atomic_exchange(&r->doubted, true))
        tarn_monitor_ask(r->client);
}

void tarn_remote_judged(struct tarn_remote *r, bool up)
{
    pthread_mutex_lock(&r->lock);
    if (up)
        atomic_store(&r->health, TARN_UP);
    atomic_store(&r->suspect, false);
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

bool tarn_remote_settled(struct tarn_remote *r, uint64_t deadline_ns, const struct tarn_stop *stop)
{
    uint64_t now = tarn_now_ns(), longest = now + 8 * tarn_remote_patience(r); /* other suspects may be before it */
    if (longest > deadline_ns)
        longest = deadline_ns;

    pthread_mutex_lock(&r->lock);
    while (atomic_load(&r->suspect) && now < longest && !(stop && tarn_stopped(stop))) {
        uint64_t slice = now + TARN_WAIT_SLICE_MS * TARN_NS_PER_MS;
        tarn_cond_wait(&r->changed, &r->lock, slice < longest ? slice : longest);
        now = tarn_now_ns();
    }
    bool up = atomic_load(&r->health) == TARN_UP && !atomic_load(&r->superseded);
    pthread_mutex_unlock(&r->lock);
    return up;
}
