/* SPDX-License-Identifier: Apache-2.0 */
#include "client/way.h"

#include "client/client.h"
#include "client/side.h"

/* Does the side reach the copy? */
static bool reaches(const struct tarn_choice *q, const struct tarn_loc *l, const struct tarn_side *s,
                    uint64_t now_ns)
{
    if (!tarn_side_moves(s, l->pool, q->gpu) || (!q->write && tarn_peer_node_gone(l->node)))
        return false;
    if (q->view && !(s->ops->caps & TARN_CAP_VIEW))
        return false;
    if (q->view && atomic_load(&s->shared) && atomic_load(&l->node->health) != TARN_GONE)
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
            struct tarn_way way = {.side = s, .loc = k};
            if ((q->tried & tarn_way_bit(&way)) || !reaches(q, &q->locs[k], s, now_ns))
                continue;
            if (w->side && k != w->loc) {
                w->more = true;
                return true;
            }
            if (!w->side)
                *w = way;
            if (q->nlocs == 1)
                return true;
        }
    return w->side != NULL;
}
