/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gets: a job is sent by the way that way.c gives, and what it means when no way is left.
 *
 * A copy whose node fails is not tried again in this call; neither is one that was found stale although the
 * directory still shows it, since its node is just taking it out: when no other copy is left, that is a miss.
 */
#include "client/get_route.h"

#include <string.h>

#include "client/get_attempt.h"
#include "client/get_silent.h"
#include "client/health.h"
#include "client/lease_ask.h"
#include "client/link.h"
#include "client/peer_nodes.h"

#define REVIVALS_MAX 3

/* A copy's node was only set aside a moment ago, and answers: everything is tried again. So it is later,
 * when that is not known before another job's time is up, or it is canceled. */
static bool revived(struct tarn_get_batch *b, struct tarn_get_job *j)
{
    const struct tarn_desc *d = &j->desc;
    uint64_t others = UINT64_MAX;

    if (j->revivals == REVIVALS_MAX)
        return false;
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
                return b->later = b->postponed = true;
            continue;
        }
        j->revivals++;
        tarn_get_try_all(j);
        return true;
    }
    return false;
}

/* Does the directory count the node out by now? The job waits where it has to be asked. */
static bool is_gone(struct tarn_get_job *j, struct tarn_peer_node *node)
{
    switch (tarn_lease_word(node)) {
    case TARN_LEASE_GONE:
        return true;
    case TARN_LEASE_ASK:
        j->stage = TARN_GET_UNLEASED;
        return false;
    default:
        return false;
    }
}

/* What a transport's failure has said of the copy's node: it may be gone, and its other connections have not
 * ended yet. */
static bool node_failed(struct tarn_get_batch *b, struct tarn_get_job *j, struct tarn_peer_node *node)
{
    uint64_t others = b->open > 1 ? tarn_get_others_deadline(b, j) : UINT64_MAX, until = j->get->deadline_ns;

    if (atomic_load(&node->health) != TARN_UP)
        return true;
    if (j->why != TARN_E_UNAVAILABLE || b->answers == node)
        return false;
    if (tarn_link_ask_node(node, others < until ? others : until, b->cancel) == TARN_E_NODE_DOWN)
        tarn_peer_node_aside(node, TARN_GONE, tarn_last_error());
    else
        b->answers = node;
    return atomic_load(&node->health) != TARN_UP;
}

/* No way is left: what does that mean? */
static void give_up(struct tarn_get_batch *b, struct tarn_get_job *j)
{
    const struct tarn_desc *d = &j->desc;
    char who[352], text[sizeof j->text + sizeof who];
    struct tarn_peer_node *down = NULL;

    if (j->refused) {
        tarn_get_job_fail(b, j, j->why, j->text);
        return;
    }
    if (revived(b, j)) /* first: it needs no directory, which may be away */
        return;
    if (!j->asked) { /* the descriptor was an old one; there may be new copies */
        tarn_get_want_again(j);
        return;
    }
    for (uint32_t i = 0; i < d->nlocs; i++)
        if (!(down && atomic_load(&down->health) == TARN_UP) && !tarn_get_known_stale(j, &d->locs[i]) &&
            !is_gone(j, d->locs[i].node))
            down = d->locs[i].node;
    if (j->stage == TARN_GET_UNLEASED)
        return;
    if (!down) {
        tarn_get_job_fail(b, j, TARN_E_NOT_FOUND, "no such key");
        return;
    }
    if (tarn_get_await(b, j, down))
        return;
    bool failed = node_failed(b, j, down), told = j->why == TARN_E_NODE_DOWN || j->why == TARN_E_TIMEOUT;
    if (j->why != 0 && (told || !failed)) {
        tarn_get_job_fail(b, j, j->why, j->text);
        return;
    }
    if (!failed) {
        int code = tarn_link_unreachable(down, false, j->gpu, text, sizeof text);
        tarn_get_job_fail(b, j, code, text);
        return;
    }
    snprintf(text, sizeof text,
             "%s holds the only copy and does not answer: restart it, or put with replicas",
             tarn_peer_node_text(down, who));
    tarn_get_job_fail(b, j, TARN_E_NODE_DOWN, text);
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

/* May the copy that was chosen be read? Else the job waits, or another is to be chosen. */
static bool is_leased(struct tarn_get_job *j, uint64_t now)
{
    struct tarn_peer_node *node = tarn_get_copy(j)->node;

    if (tarn_lease_read(&node->lease, now))
        return true;
    switch (tarn_lease_word(node)) {
    case TARN_LEASE_RUNS:
        return true;
    case TARN_LEASE_GONE: /* and not chosen again */
        return false;
    case TARN_LEASE_REFUSED:
        j->refused = true;
        j->why = TARN_E_DIRECTORY;
        tarn_lease_refusal(node, j->text, sizeof j->text);
        j->tried |= tarn_way_bits_to(j->way.loc);
        return false;
    case TARN_LEASE_ASK:
        j->stage = TARN_GET_UNLEASED;
        return false;
    }
    return false;
}

/* Sends a resolved job on its way, or ends it. */
void tarn_get_route(struct tarn_get_batch *b, struct tarn_get_job *j)
{
    b->later = false;
    while (j->stage == TARN_GET_RESOLVED && !b->later) {
        uint64_t bytes, now = tarn_now_ns();

        if (tarn_get_stopped(j)) {
            tarn_get_job_fail(b, j, TARN_E_CANCELED, "canceled by the caller");
        } else if (now >= j->get->deadline_ns) {
            tarn_get_job_fail(b, j, TARN_E_TIMEOUT,
                              j->why ? j->text : "the deadline has passed: raise timeout_ms");
        } else if (!fits(j, &bytes)) {
            if (!j->asked) {
                tarn_get_want_again(j);
                return;
            }
            j->stage = TARN_GET_FINAL;
            b->open--;
            tarn_get_misfit(j->get, j->index, &j->desc.tensor);
        } else if (choose(b->client, j, now)) {
            if (!is_leased(j, now))
                continue;
            if (j->glanced && !(j->way.side->ops->caps & TARN_CAP_CHECKS)) {
                tarn_get_look(b, j);
                continue;
            }
            if (!b->opening && tarn_flight_opens(&b->flight, j->way.side))
                return;
            tarn_get_launch(b, j, bytes, now);
        } else {
            give_up(b, j);
        }
    }
}
