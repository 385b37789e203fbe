/* SPDX-License-Identifier: Apache-2.0 */
#include "server/directory/liveness.h"

#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"

static int take_node(void *arg, const struct tarn_node_record *r)
{
    struct tarn_living *v = arg;
    struct tarn_living_node node = {.epoch = (uint32_t)r->epoch};
    memcpy(node.id, r->id, sizeof(r->id));
    tarn_buf_add(&v->nodes, &node, sizeof(node));
    return v->nodes.failed ? tarn_fail(TARN_E_NO_MEMORY, "list of nodes: out of memory") : 0;
}

static bool ask(struct tarn_living *v, uint64_t deadline_ns)
{
    uint64_t now = tarn_now_ns();
    v->nodes.bytes = 0;
    v->nodes.failed = false;
    v->asked_ns = 0;
    struct tarn_directory_state s;
    if (tarn_directory_look(v->directory, deadline_ns, &s))
        return false;
    v->listed_ms = s.now_ms;
    if (tarn_directory_nodes(v->directory, deadline_ns, NULL, take_node, v) ||
        tarn_directory_look(v->directory, deadline_ns, &s))
        return false;
    v->calm = tarn_directory_calm(&s, v->heartbeat_ms, v->ttl_ms);
    v->asked_ns = now;
    return true;
}

static const struct tarn_living_node *find(const struct tarn_living *v, const char *id)
{
    const struct tarn_living_node *nodes = (const void *)v->nodes.data;
    for (size_t i = 0; i < v->nodes.bytes / sizeof(*nodes); i++) {
        if (!strcmp(nodes[i].id, id))
            return &nodes[i];
    }
    return NULL;
}

enum tarn_liveness tarn_living_own(const struct tarn_living *v, const struct tarn_location *l)
{
    for (uint32_t i = 0; i < v->npools; i++) {
        const struct tarn_pool_memory *pool = &v->pools[i];
        if (strcmp(pool->name, l->pool) || l->slot >= pool->nslots)
            continue;
        return atomic_load(&pool->gen[l->slot]) == l->gen ? TARN_ALIVE : TARN_DEAD;
    }
    return TARN_DEAD;
}

enum tarn_liveness tarn_living_check(struct tarn_living *v, const struct tarn_location *l, uint64_t seen_ns,
                                     uint64_t deadline_ns)
{
    if (!strcmp(l->node, v->self))
        return tarn_living_own(v, l);
    const struct tarn_living_node *node = find(v, l->node);
    if (node && node->epoch == (uint32_t)(l->gen >> 32) && tarn_now_ns() - v->asked_ns < v->fresh_ns)
        return TARN_ALIVE;
    if (v->asked_ns <= seen_ns && !ask(v, deadline_ns))
        return TARN_UNCERTAIN;
    node = find(v, l->node);
    if (!node)
        return v->calm ? TARN_DEAD : TARN_UNCERTAIN;
    return node->epoch == (uint32_t)(l->gen >> 32) ? TARN_ALIVE : TARN_DEAD;
}

enum tarn_liveness tarn_living_record(struct tarn_living *v, const struct tarn_record *r, uint64_t seen_ns,
                                      uint64_t deadline_ns)
{
    enum tarn_liveness all = TARN_DEAD;
    for (uint32_t i = 0; i < r->nlocations; i++) {
        enum tarn_liveness one = tarn_living_check(v, &r->locations[i], seen_ns, deadline_ns);
        if (one == TARN_ALIVE)
            return TARN_ALIVE;
        if (one == TARN_UNCERTAIN)
            all = TARN_UNCERTAIN;
    }
    return all;
}

void tarn_living_free(struct tarn_living *v)
{
    tarn_buf_free(&v->nodes);
}
