/* SPDX-License-Identifier: Apache-2.0 */
/* The directory thread's work on displaced copies; docs/consistency.md has the rules. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/error.h"
#include "server/directory/publisher_impl.h"

/* --- recheck sets of other nodes ---------------------------------------------------------------- */

/* copies: an array of struct tarn_location. */
static void add_elsewhere(const struct tarn_publisher *p, struct tarn_buf *copies,
                          const struct tarn_location *displaced, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (strcmp(displaced[i].node, p->o.node))
            tarn_buf_add(copies, &displaced[i], sizeof(displaced[i]));
    }
}

static int tell_nodes(struct tarn_publisher *p, struct tarn_buf *copies)
{
    struct tarn_location *all = (void *)copies->data;
    size_t n = copies->bytes / sizeof(*all);
    int rc = copies->failed ? tarn_fail(TARN_E_NO_MEMORY, "displaced copies: out of memory") : 0;
    if (!rc && n)
        rc = account(p, tarn_directory_recheck_add(p->o.directory, all, n, call_deadline(p)));
    tarn_buf_free(copies);
    return rc;
}

bool displaces_elsewhere(const struct tarn_publisher *p, const struct tarn_publish *item)
{
    for (uint32_t i = 0; i < item->nnamed; i++) {
        if (strcmp(item->displaced[i].node, p->o.node))
            return true;
    }
    return false;
}

/* --- publish ------------------------------------------------------------------------------------ */

/* Published, but not to be believed yet. */
static void unsure(struct tarn_publish *item)
{
    if (item->status || item->mode == TARN_PUBLISH_RESTORE)
        return;
    item->status = TARN_E_AGAIN;
    item->stored = true;
}

void publish_behind(struct tarn_publisher *p, struct tarn_publish *items, size_t n, struct tarn_reason *why)
{
    struct tarn_buf copies = {0};
    bool replaced = false;
    for (size_t i = 0; i < n; i++) {
        if (items[i].status)
            continue;
        add_elsewhere(p, &copies, items[i].displaced, items[i].nnamed);
        replaced |= items[i].mode == TARN_PUBLISH_REPLACE;
    }
    int rc = tell_nodes(p, &copies);
    if (rc)
        tarn_reason_keep(why, TARN_E_AGAIN);
    for (size_t i = 0; rc && i < n; i++) {
        if (displaces_elsewhere(p, &items[i]))
            unsure(&items[i]);
    }
    if (!replaced || !settled_behind(p))
        return;
    tarn_reason_keep(why, TARN_E_AGAIN);
    for (size_t i = 0; i < n; i++) {
        if (items[i].mode == TARN_PUBLISH_REPLACE)
            unsure(&items[i]);
    }
}

/* --- recheck, remove ---------------------------------------------------------------------------- */

/* It is missing now. True: for a heartbeat of this node already, and at each look in between, one a beat at
 * least. */
static bool still_missing(const struct tarn_publisher *p, struct missing_node *m, uint64_t now)
{
    uint64_t heartbeat_ns = p->o.heartbeat_ms * TARN_NS_PER_MS;
    if (now - m->seen_ns > heartbeat_ns / 2 * 3)
        m->since_ns = now;
    m->seen_ns = now;
    return now - m->since_ns >= heartbeat_ns;
}

/* Nodes that are back are no longer missing; when Redis does not tell, nothing is known of any. */
static void look_for_missing(struct tarn_publisher *p)
{
    const char *ids[MISSING_MAX];
    bool listed[MISSING_MAX];
    uint64_t now = tarn_now_ns();
    for (uint32_t i = 0; i < p->nmissing; i++)
        ids[i] = p->missing[i].id;
    if (tarn_directory_listed(p->o.directory, ids, p->nmissing, listed, call_deadline(p)))
        p->nmissing = 0;
    for (uint32_t i = p->nmissing; i-- > 0;) {
        if (listed[i])
            p->missing[i] = p->missing[--p->nmissing];
        else
            still_missing(p, &p->missing[i], now);
    }
}

int work_recheck(struct tarn_publisher *p, struct tarn_request *r)
{
    int rc = account(p, tarn_directory_recheck(p->o.directory, p->o.node, r->freed, r->nfreed, r->found,
                                               &r->n, call_deadline(p)));
    struct tarn_reason why;
    tarn_reason_keep(&why, rc);
    look_for_missing(p);
    return tarn_reason_fail(&why);
}

int work_remove(struct tarn_publisher *p, struct tarn_request *r)
{
    struct tarn_buf copies = {0};
    int rc = settled_before(p);
    if (!rc)
        rc = account(p, tarn_directory_remove(p->o.directory, r->removals, r->n, call_deadline(p)));
    for (size_t i = 0; !rc && i < r->n; i++)
        add_elsewhere(p, &copies, r->removals[i].displaced, r->removals[i].ndisplaced);
    if (!rc)
        rc = tell_nodes(p, &copies);
    return rc ? rc : settled_behind(p);
}

/* --- settled ------------------------------------------------------------------------------------ */

static void forget_missing(struct tarn_publisher *p, const char *id)
{
    for (uint32_t i = 0; i < p->nmissing; i++) {
        if (!strcmp(p->missing[i].id, id))
            p->missing[i--] = p->missing[--p->nmissing];
    }
}

/* The node's entry. A new entry takes the place of that whose node was asked about longest ago. */
static struct missing_node *missing_entry(struct tarn_publisher *p, const char *id, uint64_t now)
{
    struct missing_node *oldest = &p->missing[0];
    for (uint32_t i = 0; i < p->nmissing; i++) {
        if (!strcmp(p->missing[i].id, id))
            return &p->missing[i];
        if (p->missing[i].asked_ns < oldest->asked_ns)
            oldest = &p->missing[i];
    }
    struct missing_node *m = p->nmissing < MISSING_MAX ? &p->missing[p->nmissing++] : oldest;
    *m = (struct missing_node){.since_ns = now, .seen_ns = now};
    snprintf(m->id, sizeof(m->id), "%s", id);
    return m;
}

static bool was_missing(struct tarn_publisher *p, const char *id)
{
    uint64_t now = tarn_now_ns();
    struct missing_node *m = missing_entry(p, id, now);
    m->asked_ns = now;
    return still_missing(p, m, now);
}

/* calm: a record that is missing has expired. */
static bool is_settled(struct tarn_publisher *p, const struct tarn_copy_seen *c, bool calm)
{
    if (!strcmp(c->copy.node, p->o.node))
        return tarn_living_own(&p->living, &c->copy) == TARN_DEAD;
    if (c->node != TARN_NOT_LISTED)
        forget_missing(p, c->copy.node);
    if ((!c->located && !c->displaced) || c->node == TARN_LISTED_ANEW)
        return true;
    /* A location is kept by its node when that comes back. */
    return !c->located && c->node == TARN_NOT_LISTED && was_missing(p, c->copy.node) && calm;
}

/* Asked behind the records of nodes, where one is missing. */
static bool is_calm(struct tarn_publisher *p, const struct tarn_copy_seen *copies, size_t n)
{
    struct tarn_directory_state state;
    for (size_t i = 0; i < n; i++) {
        if (copies[i].node == TARN_NOT_LISTED)
            return !tarn_directory_look(p->o.directory, call_deadline(p), &state) &&
                   tarn_directory_calm(&state, p->o.ttl_ms / 3, p->o.ttl_ms);
    }
    return false;
}

int judge_displaced(struct tarn_publisher *p, struct tarn_copy_seen *copies, size_t n, bool *settled)
{
    struct tarn_withdraw *over = calloc(n, sizeof(*over));
    size_t nover = 0;
    if (!over)
        return tarn_fail(TARN_E_NO_MEMORY, "settled: out of memory");
    int rc = account(p, tarn_directory_look_again(p->o.directory, copies, n, call_deadline(p)));
    bool calm = !rc && is_calm(p, copies, n);
    if (calm) /* a node that came back while that was read is no longer missing */
        rc = account(p, tarn_directory_look_again(p->o.directory, copies, n, call_deadline(p)));
    for (size_t i = 0; !rc && i < n; i++) {
        settled[i] = is_settled(p, &copies[i], calm);
        if (settled[i] && (copies[i].located || copies[i].displaced) && copies[i].node == TARN_LISTED_ANEW)
            over[nover++] = (struct tarn_withdraw){.key = copies[i].key, .location = copies[i].copy};
    }
    if (nover)
        rc = withdraw_items(p, over, nover);
    free(over);
    return rc;
}

int work_settled(struct tarn_publisher *p, struct tarn_request *r)
{
    if (settled_before(p))
        return 0;
    int rc = judge_displaced(p, r->copies, r->n, r->settled);
    if (!rc && settled_behind(p))
        memset(r->settled, 0, r->n * sizeof(*r->settled));
    return rc;
}
