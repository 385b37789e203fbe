/* SPDX-License-Identifier: Apache-2.0 */
#include "client/health.h"

#include "client/alert.h"
#include "client/client.h"
#include "client/retire.h"

void tarn_peer_node_aside(struct tarn_peer_node *node, enum tarn_health h, const char *cause)
{
    int was = atomic_load(&node->health);

    if (was == TARN_UP)
        atomic_store(&node->suspect, true);
    while (was < (int)h && !atomic_compare_exchange_weak(&node->health, &was, (int)h))
        ;
    if (was >= (int)h)
        return;
    tarn_log(&node->client->log, TARN_LOG_WARN, "client",
             "msg=\"node set aside\" node=%s health=%s cause=\"%s\"", node->key.id,
             h == TARN_GONE ? "gone" : "slow", cause);
    if (h == TARN_GONE)
        tarn_peer_node_retire(node);
    tarn_monitor_ask(node->client);
}

/* Of a node not measured yet: Redis may be the farthest peer known. */
uint64_t tarn_peer_node_patience(const struct tarn_peer_node *node)
{
    uint64_t ns = tarn_patience_ns(&node->patience),
             redis_ns = tarn_directory_rtt_ns(node->client->directory);
    uint64_t farthest = atomic_load(&node->client->farthest_ns);

    if (ns || atomic_load(&node->near))
        return ns ? ns : TARN_PATIENCE_NS;
    return tarn_patience_first(farthest > redis_ns ? farthest : redis_ns);
}

void tarn_peer_node_answered(struct tarn_peer_node *node, uint64_t rtt_ns)
{
    uint64_t farthest = atomic_load(&node->client->farthest_ns);

    tarn_patience_learn(&node->patience, rtt_ns);
    while (farthest < rtt_ns && !atomic_compare_exchange_weak(&node->client->farthest_ns, &farthest, rtt_ns))
        ;
}

void tarn_peer_node_failed(struct tarn_peer_node *node, int rc, const char *cause, uint64_t since_ns)
{
    if (rc == TARN_E_NODE_DOWN)
        tarn_peer_node_aside(node, TARN_GONE, cause);
    else if (rc == TARN_E_TIMEOUT && tarn_now_ns() - since_ns >= tarn_peer_node_patience(node))
        tarn_peer_node_aside(node, TARN_SLOW, cause);
    else if (rc == TARN_E_TIMEOUT)
        tarn_peer_node_doubt(node);
}

void tarn_peer_node_doubt(struct tarn_peer_node *node)
{
    if (atomic_load(&node->health) == TARN_UP && !atomic_exchange(&node->doubted, true))
        tarn_monitor_ask(node->client);
}

void tarn_peer_node_judged(struct tarn_peer_node *node, bool up)
{
    pthread_mutex_lock(&node->lock);
    if (up)
        atomic_store(&node->health, TARN_UP);
    atomic_store(&node->suspect, false);
    pthread_cond_broadcast(&node->changed);
    pthread_mutex_unlock(&node->lock);
}

bool tarn_peer_node_settled(struct tarn_peer_node *node, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    /* The keeper may ask other suspects first. */
    uint64_t longest = tarn_now_ns() + 8 * tarn_peer_node_patience(node);
    if (longest > deadline_ns)
        longest = deadline_ns;

    pthread_mutex_lock(&node->lock);
    while (atomic_load(&node->suspect) && tarn_cancel_cond(cancel, &node->changed, &node->lock, longest))
        ;
    bool up = atomic_load(&node->health) == TARN_UP && !atomic_load(&node->superseded);
    pthread_mutex_unlock(&node->lock);
    return up;
}
