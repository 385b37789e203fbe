/* SPDX-License-Identifier: Apache-2.0 */
#include "client/way.h"

#include "client/client.h"
#include "client/side.h"

/* Does the side reach the pool? */
static bool reaches(const struct tarn_choice *q, uint32_t pool, const struct tarn_side *s, uint64_t now_ns)
{
    const struct tarn_peer_node *node = s->node;

    if (!tarn_side_moves(s, pool, q->gpu) || (!q->write && tarn_peer_node_gone(node)))
        return false;
    if (q->view && !(s->ops->caps & TARN_CAP_VIEW))
        return false;
    if (q->view && atomic_load(&s->shared) && atomic_load(&node->health) != TARN_GONE)
        return true;
    return tarn_side_usable(s, now_ns);
}

bool tarn_way_choose(const struct tarn_client *c, const struct tarn_choice *q, uint64_t now_ns,
                     struct tarn_way *w)
{
    uint32_t first = q->nlocs > 1 ? (uint32_t)(c->session % q->nlocs) : 0;

    w->side = NULL;
    w->more = false;
    for (int t = 0; t < c->ntransports; t++)
        for (uint32_t i = 0; i < q->nlocs; i++) {
            uint32_t k = first + i < q->nlocs ? first + i : first + i - q->nlocs;
            struct tarn_side *s = &q->locs[k].node->sides[t][q->write];
            if ((q->tried & tarn_way_bit_of(k, t)) || !reaches(q, q->locs[k].pool, s, now_ns))
                continue;
            if (w->side && k != w->loc)
                return w->more = true;
            if (!w->side) {
                w->side = s;
                w->loc = k;
            }
            if (q->nlocs == 1)
                return true;
        }
    return w->side != NULL;
}
