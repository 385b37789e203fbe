/* SPDX-License-Identifier: Apache-2.0 */
/* The directory thread's work on displaced copies; docs/consistency.md has the rules. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/error.h"
#include "server/directory/directory_thread_impl.h"

/* --- recheck sets of other nodes ---------------------------------------------------------------- */

/* copies: an array of struct tarn_location. */
static void add_elsewhere(const struct tarn_directory_thread *dt, struct tarn_buf *copies,
                          const struct tarn_location *displaced, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (strcmp(displaced[i].node, dt->o.node))
            tarn_buf_add(copies, &displaced[i], sizeof(displaced[i]));
    }
}

static int tell_nodes(struct tarn_directory_thread *dt, struct tarn_buf *copies)
{
    struct tarn_location *all = (void *)copies->data;
    size_t n = copies->bytes / sizeof(*all);
    int rc = copies->failed ? tarn_fail(TARN_E_NO_MEMORY, "displaced copies: out of memory") : 0;
    if (!rc && n)
        rc = account(dt, tarn_directory_recheck_add(dt->o.directory, all, n, call_deadline(dt)));
    tarn_buf_free(copies);
    return rc;
}

bool displaces_elsewhere(const struct tarn_directory_thread *dt, const struct tarn_publish *item)
{
    for (uint32_t i = 0; i < item->nnamed; i++) {
        if (strcmp(item->displaced[i].node, dt->o.node))
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

void publish_behind(struct tarn_directory_thread *dt, struct tarn_publish *items, size_t n,
                    struct tarn_reason *why)
{
    struct tarn_buf copies = {0};
    bool replaced = false;
    for (size_t i = 0; i < n; i++) {
        if (items[i].status)
            continue;
        add_elsewhere(dt, &copies, items[i].displaced, items[i].nnamed);
        replaced |= items[i].mode == TARN_PUBLISH_REPLACE;
    }
    int rc = tell_nodes(dt, &copies);
    if (rc)
        tarn_reason_keep(why, TARN_E_AGAIN);
    for (size_t i = 0; rc && i < n; i++) {
        if (displaces_elsewhere(dt, &items[i]))
            unsure(&items[i]);
    }
    if (!replaced || !settled_behind(dt))
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
static bool still_missing(const struct tarn_directory_thread *dt, struct missing_node *m, uint64_t now)
{
    uint64_t heartbeat_ns = dt->o.heartbeat_ms * TARN_NS_PER_MS;
    if (now - m->seen_ns > heartbeat_ns / 2 * 3)
        m->since_ns = now;
    m->seen_ns = now;
    return now - m->since_ns >= heartbeat_ns;
}

/* Nodes that are back are no longer missing; when Redis does not tell, nothing is known of any. */
static void look_for_missing(struct tarn_directory_thread *dt)
{
    const char *ids[MISSING_MAX];
    bool listed[MISSING_MAX];
    uint64_t now = tarn_now_ns();
    for (uint32_t i = 0; i < dt->nmissing; i++)
        ids[i] = dt->missing[i].id;
    if (tarn_directory_listed(dt->o.directory, ids, dt->nmissing, listed, call_deadline(dt)))
        dt->nmissing = 0;
    for (uint32_t i = dt->nmissing; i-- > 0;) {
        if (listed[i])
            dt->missing[i] = dt->missing[--dt->nmissing];
        else
            still_missing(dt, &dt->missing[i], now);
    }
}

int work_recheck(struct tarn_directory_thread *dt, struct tarn_request *r)
{
    int rc = account(dt, tarn_directory_recheck(dt->o.directory, dt->o.node, r->freed, r->nfreed, r->found,
                                                &r->n, call_deadline(dt)));
    struct tarn_reason why;
    tarn_reason_keep(&why, rc);
    look_for_missing(dt);
    return tarn_reason_fail(&why);
}

int work_remove(struct tarn_directory_thread *dt, struct tarn_request *r)
{
    struct tarn_buf copies = {0};
    int rc = settled_before(dt);
    if (!rc)
        rc = account(dt, tarn_directory_remove(dt->o.directory, r->removals, r->n, call_deadline(dt)));
    for (size_t i = 0; !rc && i < r->n; i++)
        add_elsewhere(dt, &copies, r->removals[i].displaced, r->removals[i].ndisplaced);
    if (!rc)
        rc = tell_nodes(dt, &copies);
    return rc ? rc : settled_behind(dt);
}

/* --- settled ------------------------------------------------------------------------------------ */

static void forget_missing(struct tarn_directory_thread *dt, const char *id)
{
    for (uint32_t i = 0; i < dt->nmissing; i++) {
        if (!strcmp(dt->missing[i].id, id))
            dt->missing[i--] = dt->missing[--dt->nmissing];
    }
}

/* The node's entry. A new entry takes the place of that whose node was asked about longest ago. */
static struct missing_node *missing_entry(struct tarn_directory_thread *dt, const char *id, uint64_t now)
{
    struct missing_node *oldest = &dt->missing[0];
    for (uint32_t i = 0; i < dt->nmissing; i++) {
        if (!strcmp(dt->missing[i].id, id))
            return &dt->missing[i];
        if (dt->missing[i].asked_ns < oldest->asked_ns)
            oldest = &dt->missing[i];
    }
    struct missing_node *m = dt->nmissing < MISSING_MAX ? &dt->missing[dt->nmissing++] : oldest;
    *m = (struct missing_node){.since_ns = now, .seen_ns = now};
    snprintf(m->id, sizeof(m->id), "%s", id);
    return m;
}

static bool was_missing(struct tarn_directory_thread *dt, const char *id)
{
    uint64_t now = tarn_now_ns();
    struct missing_node *m = missing_entry(dt, id, now);
    m->asked_ns = now;
    return still_missing(dt, m, now);
}

/* calm: a record that is missing has expired. */
static bool is_settled(struct tarn_directory_thread *dt, const struct tarn_copy_seen *c, bool calm)
{
    if (!strcmp(c->copy.node, dt->o.node))
        return tarn_living_own(&dt->living, &c->copy) == TARN_DEAD;
    if (c->node != TARN_NOT_LISTED)
        forget_missing(dt, c->copy.node);
    if ((!c->located && !c->displaced) || c->node == TARN_LISTED_ANEW)
        return true;
    /* A location is kept by its node when that comes back. */
    return !c->located && c->node == TARN_NOT_LISTED && was_missing(dt, c->copy.node) && calm;
}

/* Asked behind the records of nodes, where one is missing. */
static bool is_calm(struct tarn_directory_thread *dt, const struct tarn_copy_seen *copies, size_t n)
{
    struct tarn_directory_state state;
    for (size_t i = 0; i < n; i++) {
        if (copies[i].node == TARN_NOT_LISTED)
            return !tarn_directory_look(dt->o.directory, call_deadline(dt), &state) &&
                   tarn_directory_calm(&state, dt->o.ttl_ms / 3, dt->o.ttl_ms);
    }
    return false;
}

int judge_displaced(struct tarn_directory_thread *dt, struct tarn_copy_seen *copies, size_t n, bool *settled)
{
    struct tarn_withdraw *over = calloc(n, sizeof(*over));
    size_t nover = 0;
    if (!over)
        return tarn_fail(TARN_E_NO_MEMORY, "settled: out of memory");
    int rc = account(dt, tarn_directory_look_again(dt->o.directory, copies, n, call_deadline(dt)));
    bool calm = !rc && is_calm(dt, copies, n);
    if (calm) /* a node that came back while that was read is no longer missing */
        rc = account(dt, tarn_directory_look_again(dt->o.directory, copies, n, call_deadline(dt)));
    for (size_t i = 0; !rc && i < n; i++) {
        settled[i] = is_settled(dt, &copies[i], calm);
        if (settled[i] && (copies[i].located || copies[i].displaced) && copies[i].node == TARN_LISTED_ANEW)
            over[nover++] = (struct tarn_withdraw){.key = copies[i].key, .location = copies[i].copy};
    }
    if (nover)
        rc = withdraw_items(dt, over, nover);
    free(over);
    return rc;
}

int work_settled(struct tarn_directory_thread *dt, struct tarn_request *r)
{
    if (settled_before(dt))
        return 0;
    int rc = judge_displaced(dt, r->copies, r->n, r->settled);
    if (!rc && settled_behind(dt))
        memset(r->settled, 0, r->n * sizeof(*r->settled));
    return rc;
}
