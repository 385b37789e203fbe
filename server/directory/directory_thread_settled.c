/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is the directory settled: does a missing record mean that there is no object? docs/consistency.md, "Losing
 * the directory", has the rules. A directory is settled for good once it is a ttl old and no node publishes
 * its objects again. A node that begins to publish again says so before that, or is too late to do it.
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "server/directory/directory_thread_impl.h"

static int find_restoring(void *arg, const struct tarn_node_record *r)
{
    char *name = arg;
    if (r->restoring)
        memcpy(name, r->id, sizeof(r->id));
    return r->restoring;
}

/* A ttl has passed: is anybody still publishing? */
static bool nobody_restores(struct tarn_directory_thread *dt, struct settledness *s)
{
    char name[TARN_NODE_ID_MAX + 1] = "";
    int rc =
        tarn_directory_nodes(dt->o.directory, tarn_deadline(dt->o.timeout_ms), NULL, find_restoring, name);
    struct tarn_reason failure;
    tarn_reason_keep(&failure, rc);
    if (rc < 0)
        snprintf(s->why, sizeof(s->why), "the list of nodes could not be read: %.400s", failure.text);
    else if (rc)
        snprintf(s->why, sizeof(s->why),
                 "node %s still publishes its objects again after a loss of Redis's data", name);
    return rc == 0;
}

static void judge(struct tarn_directory_thread *dt, const struct tarn_beat *b, struct settledness *s)
{
    const struct tarn_directory_state *d = &b->state;
    memcpy(s->id, d->id, sizeof(s->id));
    if (b->conflict) {
        snprintf(s->why, sizeof(s->why),
                 "this node has --heartbeat-ms %u, the others %llu, and it is cut off from them",
                 dt->o.heartbeat_ms, (unsigned long long)d->heartbeat_ms);
        return;
    }
    if (tarn_directory_aged(d, dt->o.ttl_ms)) {
        s->settled = nobody_restores(dt, s);
        return;
    }
    uint64_t left_ms = d->since_ms + dt->o.ttl_ms - d->now_ms;
    snprintf(s->why, sizeof(s->why), "Redis %s, and nodes may live that have not reported yet",
             d->lost ? "has lost its data" : "had no directory here before");
    s->until_ns = tarn_deadline(left_ms < UINT32_MAX ? (uint32_t)left_ms : UINT32_MAX);
}

void settled_note(struct tarn_directory_thread *dt, const struct tarn_beat *b)
{
    const struct settledness *known = &dt->directory; /* only this thread writes it */
    struct settledness s = {0};
    if (b->taken_epoch || (!b->conflict && known->settled && !strcmp(known->id, b->state.id)))
        return;
    judge(dt, b, &s);
    pthread_mutex_lock(&dt->lock);
    dt->directory = s;
    pthread_mutex_unlock(&dt->lock);
}

struct tarn_reason settled_why(struct tarn_directory_thread *dt)
{
    struct tarn_reason why = {.code = TARN_E_AGAIN};
    pthread_mutex_lock(&dt->lock);
    struct settledness s = dt->directory;
    pthread_mutex_unlock(&dt->lock);
    if (s.settled)
        why.code = 0;
    else if (!s.id[0])
        snprintf(why.text, sizeof(why.text), "this node has not reached Redis yet");
    else if (s.until_ns)
        snprintf(why.text, sizeof(why.text), "%s: for at most %d ms more", s.why, tarn_left_ms(s.until_ns));
    else
        snprintf(why.text, sizeof(why.text), "%s", s.why);
    return why;
}

int settled_before(struct tarn_directory_thread *dt)
{
    struct tarn_reason why = settled_why(dt);
    return why.code ? tarn_fail(why.code, "the directory is not settled: %s", why.text) : 0;
}

int settled_same(struct tarn_directory_thread *dt, const char *id)
{
    struct tarn_directory_state now;
    int rc = tarn_directory_look(dt->o.directory, tarn_deadline(dt->o.timeout_ms), &now);
    struct tarn_reason why;
    if (tarn_reason_keep(&why, rc))
        return tarn_fail(TARN_E_AGAIN, "whether Redis still has its data is not known: %s", why.text);
    if (now.id[0] && !strcmp(now.id, id))
        return 0;
    return tarn_fail(TARN_E_AGAIN,
                     "Redis has just lost its data: for at most %u ms nodes have to report again",
                     dt->o.ttl_ms);
}

int settled_behind(struct tarn_directory_thread *dt)
{
    int rc = settled_before(dt);
    return rc ? rc : settled_same(dt, dt->directory.id);
}
