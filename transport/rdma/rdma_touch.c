/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA, client half: times of last use. */
#include "transport/rdma/rdma_link.h"

#include "base/clock.h"

#define AGAIN_TICKS (TARN_NS_PER_S / TARN_TICK_NS)
#define LATE_TICKS (AGAIN_TICKS / 10)  /* notes are not kept longer */
#define FINISH_NS (2 * TARN_NS_PER_MS) /* limit on the delay of closing by a silent node */

/* WRITEs in flight send the new value, too. */
static void set_ticks(struct tarn_touches *t, uint32_t tick)
{
    for (uint32_t i = 0; t->ticks[0] != tick && i < TARN_TICKS; i++)
        t->ticks[TARN_TICKS - 1 - i] = tick; /* index 0 last: its value vouches for all */
}

/* False: no room. */
static bool append(struct tarn_touches *t, uint32_t pool, uint32_t slot)
{
    struct tarn_slots *last = t->n ? &t->noted[t->n - 1] : NULL;
    bool near = last && last->pool == pool && last->n < TARN_TICKS;
    if (near && slot == last->slot + last->n) {
        last->n++;
    } else if (near && slot + 1 == last->slot) {
        last->slot--;
        last->n++;
    } else {
        if (t->n == TARN_TOUCHES)
            return false;
        t->noted[t->n++] = (struct tarn_slots){pool, slot, 1};
    }
    return true;
}

/* Posts the notes, or keeps them for the next time. */
static void post(struct tarn_rdma_link *l)
{
    for (uint32_t k = 0; l->touches.n > 0 && k < l->nlanes; k++)
        if (l->lanes[k].joined) {
            if (tarn_rdma_lane_touch(&l->lanes[k], l->touches.noted, l->touches.n))
                l->touches.n = 0;
            return;
        }
}

void tarn_touch_note(struct tarn_rdma_link *l, uint32_t pool, uint32_t slot)
{
    struct tarn_touches *t = &l->touches;
    uint64_t hash = ((uint64_t)pool << 32 | slot) * 0x9e3779b97f4a7c15u;
    struct tarn_touched *last = &t->touched[hash >> 32 & (TARN_TOUCHED - 1)];
    uint32_t tick = tarn_tick_now(l->tick_base_ns);
    if (last->pool == pool && last->slot == slot && tick < last->again)
        return;
    if (!append(t, pool, slot)) {
        post(l);
        if (!append(t, pool, slot))
            return; /* no room: a slot in frequent use is noted again, and others do not matter */
    }
    if (t->n == 1 && t->noted[0].n == 1)
        t->since = tick;
    set_ticks(t, tick);
    *last = (struct tarn_touched){pool, slot, tick + AGAIN_TICKS};
}

void tarn_touch_tend(struct tarn_rdma_link *l)
{
    if (l->touches.n > 0 && tarn_tick_now(l->tick_base_ns) - l->touches.since >= LATE_TICKS)
        post(l);
}

void tarn_touch_finish(struct tarn_rdma_link *l)
{
    uint64_t until = tarn_now_ns() + FINISH_NS;
    post(l);
    for (uint32_t k = 0; k < l->nlanes; k++) {
        struct tarn_rdma_lane *n = &l->lanes[k];
        while (n->joined && n->room < n->depth && tarn_rdma_lane_poll(n) >= 0 && tarn_now_ns() < until)
            ;
    }
}
