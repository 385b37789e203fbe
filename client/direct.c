/* SPDX-License-Identifier: Apache-2.0 */
#include "client/direct.h"

#include "base/clock.h"
#include "client/client.h"
#include "client/link.h"
#include "client/read_lease_ask.h"
#include "client/side.h"
#include "client/way.h"

/* Makes the side's shared link. BUSY: not in time, but perhaps later. */
static int connect_side(struct tarn_side *s, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    struct tarn_open_link *link = NULL;
    bool fresh;

    if (atomic_load(&s->shared))
        return 0;
    int rc = tarn_link_take(s, deadline_ns, UINT64_MAX, cancel, &link, &fresh);
    if (link)
        tarn_link_lend(link);
    return rc;
}

/* Why transports that serve the pool give no views of it, unless they are only elsewhere. */
static void note_why(const struct tarn_desc *d, struct tarn_reason *why)
{
    for (uint32_t k = 0; k < d->nlocs && why->code == 0; k++) {
        struct tarn_peer_node *node = d->locs[k].node;
        if (atomic_load(&node->health) != TARN_GONE && tarn_read_lease_runs(&node->lease, tarn_coarse_ns()) &&
            tarn_reason_keep(why, tarn_link_unreachable(node, false, 0)) == TARN_E_NOT_REACHABLE)
            why->code = 0;
    }
}

/* May the node be read from? now_ns: coarse. deadline_ns 0: without asking. why: when it refuses. */
static enum tarn_read_lease_word leased(struct tarn_peer_node *node, uint64_t now_ns, uint64_t deadline_ns,
                                        struct tarn_cancel *cancel, struct tarn_reason *why)
{
    enum tarn_read_lease_word word = TARN_READ_LEASE_RUNS;

    if (tarn_read_lease_read(&node->lease, now_ns))
        return word;
    while ((word = tarn_read_lease_word(node)) == TARN_READ_LEASE_ASK && tarn_now_ns() < deadline_ns &&
           !tarn_canceled(cancel))
        tarn_read_lease_wait(node->client, deadline_ns, cancel);
    if (word == TARN_READ_LEASE_REFUSED)
        tarn_reason_keep(why, tarn_read_lease_refusal(node));
    else if (word == TARN_READ_LEASE_ASK && deadline_ns != 0)
        tarn_reason_keep(why, tarn_fail(TARN_E_TIMEOUT, "the deadline has passed before Redis has answered: "
                                                        "raise timeout_ms"));
    return word;
}

/* Through the side's shared link; INPROGRESS when it has none that offers views. */
static int use_way(struct tarn_direct *d, const struct tarn_desc *desc, const struct tarn_way *w)
{
    const struct tarn_loc *loc = &desc->locs[w->loc];
    uint32_t stripe = loc->slot % TARN_STRIPES;
    struct tarn_open_link *l = tarn_side_enter(w->side, stripe);
    int rc = TARN_INPROGRESS;

    if (!l)
        return rc;
    if (l->ops->caps & TARN_CAP_VIEW)
        rc = d->use(d, l, desc, loc);
    tarn_side_leave(w->side, stripe);
    return rc;
}

int tarn_direct_use(struct tarn_client *c, const struct tarn_desc *desc, uint64_t deadline_ns,
                    struct tarn_cancel *cancel, struct tarn_direct *d, struct tarn_reason *why)
{
    struct tarn_choice q = {.locs = desc->locs, .nlocs = desc->nlocs, .view = true};
    int worst = TARN_E_NOT_REACHABLE;
    struct tarn_way w;

    why->code = 0;
    for (uint64_t now = tarn_coarse_ns(); tarn_way_choose(c, &q, now, &w); now = tarn_coarse_ns()) {
        enum tarn_read_lease_word word = leased(desc->locs[w.loc].node, now, deadline_ns, cancel, why);
        if (word != TARN_READ_LEASE_RUNS) {
            worst = word == TARN_READ_LEASE_REFUSED ? TARN_E_DIRECTORY
                    : word == TARN_READ_LEASE_ASK   ? TARN_E_TIMEOUT
                                                    : worst;
            q.tried |= tarn_way_bits_to(w.loc);
            continue;
        }
        q.tried |= tarn_way_bit(&w);
        int rc = deadline_ns != 0 ? connect_side(w.side, deadline_ns, cancel) : 0;
        if (rc != TARN_E_BUSY)
            rc = use_way(d, desc, &w);
        while (rc == TARN_E_BUSY && tarn_now_ns() < deadline_ns && !tarn_cancel_ask(cancel))
            rc = use_way(d, desc, &w);
        if (rc == 0)
            return 0;
        if (rc == TARN_E_STALE || rc == TARN_E_AGAIN) {
            worst = rc;
            q.tried |= tarn_way_bits_to(w.loc); /* other transports would say the same */
        } else if (rc != TARN_INPROGRESS) {
            worst = rc == TARN_E_BUSY ? TARN_E_TIMEOUT : worst;
            tarn_reason_keep(why, rc);
        }
    }
    if (deadline_ns != 0)
        note_why(desc, why);
    return worst;
}
