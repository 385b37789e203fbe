/* SPDX-License-Identifier: Apache-2.0 */
#include "server/directory/presence.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "server/directory/recheck.h"
#include "server/directory/scrub.h"
#include "server/store/keep.h"

#define AT "presence"
#define PAGE 8

bool tarn_presence_here(const struct tarn_node *n)
{
    return n->presence.state == TARN_HERE && !n->presence.conflict;
}

bool tarn_presence_scrubs(const struct tarn_node *n)
{
    const struct tarn_presence *p = &n->presence;
    return p->begun || (p->state == TARN_HERE && !p->restoring);
}

const char *tarn_presence_name(const struct tarn_node *n)
{
    const struct tarn_presence *p = &n->presence;
    if (p->conflict)
        return "conflict";
    if (p->state == TARN_HERE)
        return p->restoring ? "restoring" : "here";
    if (p->state == TARN_RECHECKING)
        return "rechecking";
    return p->state == TARN_COMPARING ? "comparing" : "waiting";
}

static uint32_t heartbeat_ms(const struct tarn_node *n)
{
    return (uint32_t)n->config->heartbeat_ms;
}

/* --- changes of state --------------------------------------------------------------------------- */

/* All objects go; their locations are withdrawn behind it. */
static void free_all(struct tarn_node *n)
{
    struct tarn_stored page[PAGE];
    uint64_t cursor = 0;
    for (size_t found; (found = tarn_store_list(n->store, &cursor, page, PAGE));) {
        for (size_t i = 0; i < found; i++) {
            struct tarn_key key = {page[i].key, page[i].key_bytes};
            n->presence.freed += tarn_store_remove(n->store, &key, TARN_LEFT_EVICTED);
        }
    }
}

static void compare(struct tarn_node *n, uint64_t now_ms)
{
    struct tarn_presence *p = &n->presence;
    p->state = TARN_COMPARING;
    p->restoring = p->begun = p->listed = false;
    p->listed_ms = 0;
    p->make_until_ms = now_ms + n->ttl_ms;
    p->given_up++;
    tarn_scrub_stop(n->scrub);
}

/* What this node holds may have been replaced or removed, and nobody can tell any more. */
static void late(struct tarn_node *n, uint64_t now_ms, const char *why)
{
    uint64_t before = n->presence.freed;
    free_all(n);
    compare(n, now_ms);
    tarn_log(&n->log, TARN_LOG_WARN, AT, "msg=\"all objects freed\" objects=%" PRIu64 " cause=\"%s\"",
             n->presence.freed - before, why);
}

static void restore(struct tarn_node *n, const struct tarn_directory_state *s)
{
    struct tarn_presence *p = &n->presence;
    p->restoring = true;
    p->begun = false;
    p->make_until_ms = s->since_ms + n->ttl_ms;
    tarn_log(&n->log, TARN_LOG_WARN, AT, "msg=\"redis has lost its data\" remedy=\"publishing all again\"");
}

static void wait_for_the_others(struct tarn_node *n, const struct tarn_directory_state *s)
{
    struct tarn_presence *p = &n->presence;
    p->state = TARN_WAITING;
    p->restoring = true;
    p->begun = false;
    p->away_ms = p->last_ms;
    p->make_until_ms = s->since_ms + n->ttl_ms;
    tarn_log(&n->log, TARN_LOG_WARN, AT,
             "msg=\"redis has lost its data while this node was cut off from it\" "
             "remedy=\"waiting whether other nodes were, too\"");
}

/* --- what a beat has found ---------------------------------------------------------------------- */

/* Since the last good beat, by whichever clock saw more of it: ours stands still while a machine is
 * suspended. */
static uint64_t away_ms(const struct tarn_presence *p, uint64_t now_ms, uint64_t sent_ns)
{
    uint64_t ours = (sent_ns - p->last_ns) / TARN_NS_PER_MS;
    uint64_t redis = now_ms > p->last_ms ? now_ms - p->last_ms : 0;
    return ours > redis ? ours : redis;
}

static void directory_lost(struct tarn_node *n, const struct tarn_directory_state *s, uint64_t sent_ns)
{
    struct tarn_presence *p = &n->presence;
    bool same_run = !strcmp(p->run, s->run);
    memcpy(p->known, s->id, sizeof(p->known));
    memcpy(p->run, s->run, sizeof(p->run));
    if (p->state != TARN_HERE)
        late(n, s->now_ms, "redis lost its data before this node had compared what it holds");
    else if (p->restoring)
        late(n, s->now_ms, "redis lost its data again before this node had published what it holds");
    else if (tarn_directory_aged(s, n->ttl_ms))
        late(n, s->now_ms,
             "redis lost its data while this node was cut off, and others believe what is missing");
    else if (away_ms(p, s->now_ms, sent_ns) < n->ttl_ms)
        restore(n, s);
    else if (same_run)
        late(n, s->now_ms, "redis ran on while this node was cut off from it, and lost its data then");
    else
        wait_for_the_others(n, s);
}

/* Nobody can have been given up: no node beat from before this one's record expired until just now. */
static bool everybody_was_silent(const struct tarn_node *n, const struct tarn_directory_state *s)
{
    return s->silent_ms < n->presence.last_ms + n->ttl_ms &&
           s->now_ms < s->resumed_ms + 2ull * heartbeat_ms(n);
}

/* It has not expired, so the directory was lost, perhaps between this beat's two round trips: the next one
 * tells. */
static bool gone_early(struct tarn_node *n, const struct tarn_directory_state *s, uint64_t sent_ns)
{
    struct tarn_presence *p = &n->presence;
    bool early = p->state == TARN_HERE && !p->missed && away_ms(p, s->now_ms, sent_ns) < n->ttl_ms;
    p->missed = true;
    return early;
}

static void record_gone(struct tarn_node *n, const struct tarn_directory_state *s, uint64_t sent_ns)
{
    struct tarn_presence *p = &n->presence;
    if (gone_early(n, s, sent_ns))
        return;
    if (p->restoring) {
        late(n, s->now_ms, "this node was given up before it had published what it holds");
    } else if (p->state == TARN_HERE && everybody_was_silent(n, s)) {
        p->state = TARN_RECHECKING;
        p->listed_ms = 0;
        p->make_until_ms = s->resumed_ms + 2ull * heartbeat_ms(n);
    } else {
        compare(n, s->now_ms);
        tarn_log(&n->log, TARN_LOG_WARN, AT,
                 "msg=\"this node was given up: its record had expired\" "
                 "remedy=\"comparing all it holds with the directory\"");
    }
}

/* --- the record is there ------------------------------------------------------------------------ */

static bool restored(struct tarn_node *n)
{
    struct tarn_presence *p = &n->presence;
    if (!p->restoring)
        return false;
    if (!p->begun) {
        p->begun = true;
        tarn_scrub_restore_all(n->scrub);
        return false;
    }
    p->restoring = tarn_scrub_restores(n->scrub);
    return !p->restoring;
}

/* True: it is ready, once a beat has found the record still there. */
static bool compared(struct tarn_node *n, const struct tarn_directory_state *s)
{
    struct tarn_presence *p = &n->presence;
    if (!p->listed_ms) { /* that beat has made it, later than s->now_ms */
        p->listed_ms = p->listed ? s->now_ms : 0;
        p->listed = true;
        return !p->listed_ms;
    }
    if (p->begun) {
        if (tarn_scrub_compares(n->scrub))
            return false;
        p->state = TARN_HERE;
        p->begun = false;
        tarn_log(&n->log, TARN_LOG_INFO, AT, "msg=\"this node is back\"");
        return true;
    }
    if (s->now_ms >= p->listed_ms + heartbeat_ms(n) && !n->unsettled) {
        p->begun = true;
        tarn_scrub_check_all(n->scrub);
    }
    return false;
}

/* True: what was displaced before the record was there again is freed. Nothing else can have been. A commit
 * under way would bring to life what the recheck set has to leave. */
static bool rechecked(struct tarn_node *n, const struct tarn_directory_state *s)
{
    struct tarn_presence *p = &n->presence;
    if (!p->listed_ms && n->unsettled)
        return false;
    if (!p->listed_ms) {
        p->listed_ms = s->now_ms;
        p->rounds = tarn_recheck_anew(n->recheck);
    } else if (tarn_recheck_rounds(n->recheck) >= p->rounds) {
        p->state = TARN_HERE;
    }
    return p->state == TARN_HERE;
}

static bool waited(struct tarn_node *n, const struct tarn_directory_state *s)
{
    struct tarn_presence *p = &n->presence;
    if (!tarn_directory_aged(s, n->ttl_ms))
        return false;
    if (2 * s->lived_ms >= 2 * p->away_ms + 3ull * heartbeat_ms(n))
        late(n, s->now_ms, "this node was cut off from redis before it lost its data, others were not");
    else if (s->told < p->nodes)
        late(n, s->now_ms,
             "redis lost its data while this node was cut off, and not every node is left to say that "
             "it was cut off, too");
    else
        p->state = TARN_HERE;
    return true;
}

static bool record_there(struct tarn_node *n, const struct tarn_directory_state *s, uint64_t sent_ns)
{
    struct tarn_presence *p = &n->presence;
    p->make_until_ms = 0;
    p->missed = false;
    if (p->state == TARN_COMPARING)
        return compared(n, s);
    if (p->state == TARN_RECHECKING)
        return rechecked(n, s);
    if (p->state == TARN_WAITING)
        return waited(n, s);
    p->last_ms = s->now_ms;
    p->last_ns = sent_ns;
    if (tarn_directory_aged(s, n->ttl_ms) || s->nodes > p->nodes) /* after a loss not all are listed yet */
        p->nodes = s->nodes;
    return restored(n);
}

/* --- outside ------------------------------------------------------------------------------------ */

const char *tarn_node_state_name(const struct tarn_node *n)
{
    if (n->state != TARN_NODE_READY)
        return "draining";
    return tarn_presence_here(n) ? "ready" : "returning";
}

static const char *state_name(const struct tarn_node *n)
{
    return tarn_presence_here(n) ? tarn_node_state_name(n) : "returning";
}

void tarn_presence_fill(struct tarn_node *n, struct tarn_beat *b)
{
    const struct tarn_presence *p = &n->presence;
    snprintf(n->record.state, sizeof(n->record.state), "%s", state_name(n));
    n->record.restoring = p->restoring;
    n->record.refuses = !strcmp(n->config->when_cut_off, "refuse");
    *b = (struct tarn_beat){
        .node = &n->record,
        .heartbeat_ms = heartbeat_ms(n),
        .ttl_ms = n->ttl_ms,
        .own_redis = n->redis != NULL,
        .last_ms = p->beat_ms,
        .make_until_ms = p->make_until_ms,
    };
    memcpy(b->known, p->known, sizeof(b->known));
}

/* --- the state directory ------------------------------------------------------------------------ */

_Static_assert(sizeof(struct tarn_presence) <= TARN_KEEP_PRESENCE, "a presence fits");

static void keep(const struct tarn_node *n)
{
    if (n->keep)
        tarn_keep_set_presence(n->keep, &n->presence, sizeof(n->presence));
}

/* What it was about to do begins anew. */
bool tarn_presence_take_over(struct tarn_node *n)
{
    struct tarn_presence *p = &n->presence;
    if (!tarn_keep_presence(n->keep, p, sizeof(*p)))
        return false;
    p->claimed = (struct tarn_directory_state){0};
    p->begun = p->listed = p->missed = p->conflict = p->evicts = false;
    p->listed_ms = p->rounds = p->given_up = p->freed = 0;
    return true;
}

void tarn_presence_begin(struct tarn_node *n, const struct tarn_beat *b)
{
    struct tarn_presence *p = &n->presence;
    memcpy(p->known, b->state.id, sizeof(p->known));
    memcpy(p->run, b->state.run, sizeof(p->run));
    p->claimed = b->state;
    p->make_until_ms = 0;
    p->last_ms = p->beat_ms = b->state.now_ms;
    p->nodes = b->state.nodes + 1;
    p->last_ns = tarn_now_ns();
    keep(n);
}

bool tarn_presence_rechecked(const struct tarn_node *n)
{
    return n->presence.state == TARN_RECHECKING;
}

static void warn_of_eviction(struct tarn_node *n, const struct tarn_beat *b)
{
    if (b->evicts && !n->presence.evicts)
        tarn_log(&n->log, TARN_LOG_WARN, AT,
                 "msg=\"redis may drop records of copies that readers still have\" maxmemory-policy=%s "
                 "remedy=\"set maxmemory-policy noeviction\"",
                 b->policy);
    n->presence.evicts = b->evicts;
}

void tarn_presence_conflict(struct tarn_node *n, const char *cause)
{
    struct tarn_presence *p = &n->presence;
    if (!p->conflict)
        tarn_log(&n->log, TARN_LOG_WARN, AT,
                 "msg=\"this node is cut off: its heartbeat is refused\" cause=\"%s\"", cause);
    p->conflict = true;
    p->begun = false;
    tarn_scrub_stop(n->scrub);
}

static void conflict_is_over(struct tarn_node *n)
{
    if (n->presence.conflict)
        tarn_log(&n->log, TARN_LOG_INFO, AT, "msg=\"no node has another heartbeat any more\"");
    n->presence.conflict = false;
}

static bool beaten(struct tarn_node *n, const struct tarn_beat *b, uint64_t sent_ns)
{
    warn_of_eviction(n, b);
    conflict_is_over(n);
    if (n->state == TARN_NODE_WITHDRAWING)
        return false;
    if (b->other)
        directory_lost(n, &b->state, sent_ns);
    else if (b->gone)
        record_gone(n, &b->state, sent_ns);
    n->presence.beat_ms = b->state.now_ms;
    return b->other || b->gone || record_there(n, &b->state, sent_ns);
}

bool tarn_presence_beaten(struct tarn_node *n, const struct tarn_beat *b, uint64_t sent_ns)
{
    bool again = beaten(n, b, sent_ns);
    keep(n); /* before the next beat says it */
    return again;
}
