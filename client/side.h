/* SPDX-License-Identifier: Apache-2.0 */
/* What a side can do just now. Nothing here takes a lock; link.c decides again under the lock. */
#ifndef TARN_CLIENT_SIDE_H
#define TARN_CLIENT_SIDE_H

#include "client/peer_node.h"

/* Does the side's transport move memory of that kind (tarn_pieces_gpu()) to or from the pool? */
static inline bool tarn_side_moves(const struct tarn_side *s, uint32_t pool, uint32_t gpu)
{
    if (gpu && !(s->ops->caps & TARN_CAP_GPU))
        return false;
    return pool < TARN_WINDOWS_MAX &&
           atomic_load_explicit(&s->node->pool_transports[pool], memory_order_relaxed) >> s->transport & 1;
}

/* The last attempt failed, and the time for the next has not come, or another thread is at it. */
static inline bool tarn_side_rests(const struct tarn_side *s, uint64_t now_ns)
{
    switch (atomic_load(&s->state)) {
    case TARN_SIDE_UNREACHABLE:
        return now_ns < atomic_load(&s->retry_ns);
    case TARN_SIDE_OPENING:
        return atomic_load(&s->code) != 0 && !s->last;
    default:
        return false;
    }
}

/* Is it unreachable, but waited for, since no other transport comes after it? */
static inline bool tarn_side_awaited(const struct tarn_side *s)
{
    return atomic_load(&s->state) == TARN_SIDE_UNREACHABLE && atomic_load(&s->code) == TARN_E_NOT_REACHABLE &&
           s->last && (s->ops->caps & TARN_CAP_RETURNS);
}

/* May it be tried now? */
static inline bool tarn_side_usable(const struct tarn_side *s, uint64_t now_ns)
{
    int health = atomic_load(&s->node->health);

    if (health == TARN_GONE || atomic_load(&s->node->superseded))
        return false;
    if (health == TARN_SLOW) /* mapped memory can be read without the node */
        return atomic_load(&s->state) == TARN_SIDE_SHARED && !s->write;
    return !tarn_side_rests(s, now_ns) || atomic_load(&s->nidle) > 0 || tarn_side_awaited(s);
}

/* Enters the shared link; NULL: there is none. */
static inline struct tarn_open_link *tarn_side_enter(struct tarn_side *s, uint32_t stripe)
{
    atomic_fetch_add(&s->busy[stripe].n, 1);
    struct tarn_open_link *l = atomic_load(&s->shared);
    if (!l)
        atomic_fetch_sub(&s->busy[stripe].n, 1);
    return l;
}

static inline void tarn_side_leave(struct tarn_side *s, uint32_t stripe)
{
    atomic_fetch_sub_explicit(&s->busy[stripe].n, 1, memory_order_release);
}

#endif
