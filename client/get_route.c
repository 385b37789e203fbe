/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gets: sends a job by the way that way.c chooses, and decides what it means when no way is left.
 *
 * A copy whose node has failed is not tried again in this call. Neither is one that was found stale although
 * the directory still shows it: its node is just taking it out. When no other copy is left, that is a miss.
 *
 * When the last copy's node is silent, the descriptor may be an old one, and the object lies elsewhere by
 * now. So after the node's patience the directory is asked. If it knows no other copy, the get waits for this
 * one.
 */
#include "client/get_route.h"

#include <string.h>

#include "client/get_attempt.h"
#include "client/health.h"
#include "client/link.h"
#include "client/peer_nodes.h"
#include "client/read_lease_ask.h"

#define REVIVALS_MAX 3
#define SLICE_NS (100 * TARN_NS_PER_MS)      /* then the node's lease is looked at again */
#define SHORT_SLICE_NS (10 * TARN_NS_PER_MS) /* while other jobs are open: their transfers go on between */

/* MOVED: a copy's node was set aside a moment ago, but answers, so all ways may be tried again. LATER: that
 * was not known before another job's deadline or cancel. */
static enum tarn_get_move revive(struct tarn_get_batch *b, struct tarn_get_job *j)
{
    const struct tarn_desc *d = &j->desc;
    uint64_t others = UINT64_MAX;

    if (j->revivals == REVIVALS_MAX)
        return TARN_GET_UNMOVED;
    if (b->open > 1)
        others = tarn_get_others_deadline(b, j);
    for (uint32_t i = 0; i < d->nlocs; i++) {
        struct tarn_peer_node *node = d->locs[i].node;
        bool failed_here = (~j->tried & tarn_way_bits_to(i)) == 0 || atomic_load(&node->suspect);
        if (tarn_get_known_stale(j, &d->locs[i]) || tarn_peer_node_gone(node) || !failed_here)
            continue;
        if (!tarn_peer_node_settled(node, others < j->get->deadline_ns ? others : j->get->deadline_ns,
                                    b->cancel)) {
            if (atomic_load(&node->suspect) && (tarn_now_ns() >= others || tarn_canceled(b->cancel)))
                return TARN_GET_LATER;
            continue;
        }
        j->revivals++;
        tarn_get_try_all(j);
        return TARN_GET_MOVED;
    }
    return TARN_GET_UNMOVED;
}

/* Has the directory given up the node? UNLEASED: it must be asked first. */
static bool is_gone(struct tarn_get_job *j, struct tarn_peer_node *node)
{
    switch (tarn_read_lease_word(node)) {
    case TARN_READ_LEASE_GONE:
        return true;
    case TARN_READ_LEASE_ASK:
        j->stage = TARN_GET_UNLEASED;
        return false;
    default:
        return false;
    }
}

/* Has the copy's node failed? After a transport's failure it may be gone although its connections have not
 * ended yet, so it is asked. */
static bool node_failed(struct tarn_get_batch *b, struct tarn_get_job *j, struct tarn_peer_node *node)
{
    uint64_t others = b->open > 1 ? tarn_get_others_deadline(b, j) : UINT64_MAX, until = j->get->deadline_ns;

    if (atomic_load(&node->health) != TARN_UP)
        return true;
    if (tarn_get_why(j)->code != TARN_E_UNAVAILABLE || b->answers == node)
        return false;
    int rc = tarn_link_ask_node(node, others < until ? others : until, b->cancel);
    if (rc == TARN_E_NODE_DOWN)
        tarn_peer_node_failed(node, rc, tarn_last_error(), 0);
    else
        b->answers = node;
    return atomic_load(&node->health) != TARN_UP;
}

/* Waits until the node's health changes. */
static void wait_slow(struct tarn_peer_node *node, uint64_t until_ns, struct tarn_cancel *cancel)
{
    pthread_mutex_lock(&node->lock);
    while (atomic_load(&node->health) == TARN_SLOW &&
           tarn_cancel_cond(cancel, &node->changed, &node->lock, until_ns))
        ;
    pthread_mutex_unlock(&node->lock);
}

/* The directory knows no other copy, and the node fell silent in this call: waits until it answers again, as
 * long as the deadline and its record allow. UNMOVED: it is not waited for. */
static enum tarn_get_move await_answer(struct tarn_get_batch *b, struct tarn_get_job *j,
                                       struct tarn_peer_node *node)
{
    uint64_t now = tarn_now_ns(), until = now + (b->open > 1 ? SHORT_SLICE_NS : SLICE_NS);

    if (!j->silent || atomic_load(&node->health) != TARN_SLOW || now >= j->get->deadline_ns)
        return TARN_GET_UNMOVED;
    wait_slow(node, until < j->get->deadline_ns ? until : j->get->deadline_ns, b->cancel);
    if (atomic_load(&node->health) == TARN_UP)
        tarn_get_try_all(j);
    return b->open > 1 ? TARN_GET_LATER : TARN_GET_MOVED;
}

/* Why the copy on that node cannot be read. */
static int no_way(struct tarn_get_batch *b, struct tarn_get_job *j, struct tarn_peer_node *down)
{
    bool failed = node_failed(b, j, down);
    const struct tarn_reason *why = tarn_get_why(j);
    bool told = why->code == TARN_E_NODE_DOWN || why->code == TARN_E_TIMEOUT;
    char who[TARN_NODE_TEXT];

    if (why->code != 0 && (told || !failed))
        return tarn_reason_fail(why);
    if (!failed)
        return tarn_link_unreachable(down, false, j->gpu);
    return tarn_fail(TARN_E_NODE_DOWN,
                     "%s holds the only copy and does not answer: restart it, or put with replicas",
                     tarn_peer_node_text(down, who));
}

/* No way is left. MOVED or LATER. */
static enum tarn_get_move give_up(struct tarn_get_batch *b, struct tarn_get_job *j)
{
    const struct tarn_desc *d = &j->desc;
    struct tarn_peer_node *down = NULL;
    enum tarn_get_move move;

    if (j->refused) {
        tarn_get_job_fail(b, j, tarn_reason_fail(tarn_get_why(j)));
        return TARN_GET_MOVED;
    }
    if ((move = revive(b, j)) != TARN_GET_UNMOVED) /* first: it needs no directory */
        return move;
    if (!j->asked) { /* the descriptor may be an old one */
        tarn_get_want_again(j);
        return TARN_GET_MOVED;
    }
    for (uint32_t i = 0; i < d->nlocs; i++)
        if (!(down && atomic_load(&down->health) == TARN_UP) && !tarn_get_known_stale(j, &d->locs[i]) &&
            !is_gone(j, d->locs[i].node))
            down = d->locs[i].node;
    if (j->stage == TARN_GET_UNLEASED)
        return TARN_GET_MOVED;
    if (!down) {
        tarn_get_job_miss(b, j);
        return TARN_GET_MOVED;
    }
    if ((move = await_answer(b, j, down)) != TARN_GET_UNMOVED)
        return move;
    tarn_get_job_fail(b, j, no_way(b, j, down));
    return TARN_GET_MOVED;
}

/* Do the pieces fit, as far as is known? */
static bool fits(const struct tarn_get_job *j, uint64_t *bytes_p)
{
    *bytes_p = j->desc.tensor.bytes;
    return j->glanced || tarn_get_fits(j->get, j->index, &j->desc.tensor, bytes_p);
}

static bool choose(const struct tarn_client *c, struct tarn_get_job *j, uint64_t now)
{
    const struct tarn_choice q = {
        .locs = j->desc.locs, .nlocs = j->desc.nlocs, .gpu = j->gpu, .tried = j->tried};

    return tarn_way_choose(c, &q, now, &j->way);
}

/* May the chosen copy be read? Else the job is UNLEASED, or another way must be chosen. */
static bool is_leased(const struct tarn_get_batch *b, struct tarn_get_job *j, uint64_t now)
{
    struct tarn_peer_node *node = tarn_get_copy(j)->node;

    if (tarn_read_lease_read(&node->lease, now))
        return true;
    switch (tarn_read_lease_word(node)) {
    case TARN_READ_LEASE_RUNS:
        return true;
    case TARN_READ_LEASE_GONE: /* it will not be chosen again */
        return false;
    case TARN_READ_LEASE_REFUSED:
        j->refused = true;
        tarn_reason_keep(&tarn_get_past(b, j)->why, tarn_read_lease_refusal(node));
        j->tried |= tarn_way_bits_to(j->way.loc);
        return false;
    case TARN_READ_LEASE_ASK:
        j->stage = TARN_GET_UNLEASED;
        return false;
    }
    return false;
}

static bool wants_pieces(const struct tarn_get_job *j)
{
    return !j->made && tarn_layout_wants_pieces(tarn_get_item(j)->layout, j->way.side->ops->caps);
}

void tarn_get_route(struct tarn_get_batch *b, struct tarn_get_job *j, bool opening, uint64_t now_ns)
{
    enum tarn_get_move move = TARN_GET_MOVED;
    uint64_t bytes;

    for (bool again = false; j->stage == TARN_GET_RESOLVED && move != TARN_GET_LATER; again = true) {
        if (again)
            now_ns = tarn_now_ns();
        if (tarn_get_canceled(j)) {
            tarn_get_job_fail(b, j, tarn_cancel_fail());
        } else if (now_ns >= j->get->deadline_ns) {
            tarn_get_job_fail(b, j,
                              tarn_fail(TARN_E_TIMEOUT, "%s",
                                        tarn_get_why(j)->code ? tarn_get_why(j)->text
                                                              : "the deadline has passed: raise timeout_ms"));
        } else if (!fits(j, &bytes)) {
            if (!j->asked) {
                tarn_get_want_again(j);
                return;
            }
            tarn_get_job_end(b, j);
            tarn_get_misfit(j->get, j->index, &j->desc.tensor);
        } else if (choose(b->client, j, now_ns)) {
            if (!is_leased(b, j, now_ns))
                continue;
            if (j->glanced && !(j->way.side->ops->caps & TARN_CAP_CHECKS)) {
                tarn_get_look(b, j);
                continue;
            }
            if (wants_pieces(j)) {
                tarn_get_make_pieces(b, j);
                continue;
            }
            if (!opening && tarn_flight_opens(&b->flight, j->way.side))
                return;
            move = tarn_get_launch(b, j, bytes);
        } else {
            move = give_up(b, j);
        }
    }
    b->postponed |= move == TARN_GET_LATER;
}
