/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gets whose last copy's node is silent. The descriptor may be an old one: what it names was replaced, and
 * the new version lies elsewhere. So after the node's patience the directory is asked. When it knows no other
 * copy the get waits for this one, as long as its deadline and the node's record allow: the keeper finds out
 * when it answers again.
 */
#include "client/get_silent.h"

#define SLICE_NS (100 * TARN_NS_PER_MS)      /* then the node's lease is looked at again */
#define SHORT_SLICE_NS (10 * TARN_NS_PER_MS) /* while other jobs are open: their transfers go on between */

/* On the same host the node is not waited for, only its GPU is. */
bool tarn_get_may_ask(const struct tarn_get_job *j)
{
    return !j->asked && !(j->way.side->ops->caps & TARN_CAP_SAME_HOST);
}

/* Until its health changes. */
static void wait_slow(struct tarn_peer_node *node, uint64_t until_ns, struct tarn_cancel *cancel)
{
    pthread_mutex_lock(&node->lock);
    while (atomic_load(&node->health) == TARN_SLOW &&
           tarn_cancel_cond(cancel, &node->changed, &node->lock, until_ns))
        ;
    pthread_mutex_unlock(&node->lock);
}

bool tarn_get_await(struct tarn_get_batch *b, struct tarn_get_job *j, struct tarn_peer_node *node)
{
    uint64_t now = tarn_now_ns(), until = now + (b->open > 1 ? SHORT_SLICE_NS : SLICE_NS);

    if (!j->silent || atomic_load(&node->health) != TARN_SLOW || now >= j->get->deadline_ns)
        return false;
    wait_slow(node, until < j->get->deadline_ns ? until : j->get->deadline_ns, b->cancel);
    if (atomic_load(&node->health) == TARN_UP)
        tarn_get_try_all(j);
    if (b->open > 1)
        b->later = b->postponed = true;
    return true;
}
