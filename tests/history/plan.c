/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses the faults and their times. At most three overlap: with more, nothing would work at all.
 *
 * Faults do not overlap where docs/consistency.md allows old values:
 * - A client that gets no answer from Redis continues to read (--when-cut-off=serve). If a node is cut off
 *   from Redis too, that client and that node are an island. If Redis itself is away, this holds for all
 *   clients. Runs with --refuse include these faults.
 * - A node is cut off alone while Redis loses its data and the nodes with newer values die. So losses and
 *   deaths count as longer than they are.
 */
#include <string.h>

#include "tests/history/soak/soak.h"

enum {
    CALM_MS = 1500, /* without faults at the start and at the end */
    GAP_MAX_MS = 1200,
    TRIES = 50,
    TOGETHER = 3,
};

static const struct {
    const char *text;
    uint32_t weight;
} kinds[SOAK_FAULT_KINDS] = {
#define KIND(name_, text_, weight_) {text_, weight_},
    SOAK_FAULTS(KIND)
#undef KIND
};

const char *soak_fault_name(enum soak_fault_kind k)
{
    return kinds[k].text;
}

static uint64_t dice(uint64_t *state, uint64_t sides)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (z ^ (z >> 31)) % sides;
}

static bool is_named(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = list; (at = strstr(at, name)); at += n)
        if ((at == list || at[-1] == ',') && (at[n] == ',' || at[n] == '\0'))
            return true;
    return false;
}

bool soak_is_gpu(const char *transport)
{
    return strcmp(transport, "cuda_ipc") == 0;
}

bool soak_is_local(const char *transport)
{
    return strcmp(transport, "shm") == 0 || soak_is_gpu(transport);
}

static uint32_t weight_of(const struct soak_options *o, int kind)
{
    if (kind >= SOAK_CLIENT_NODE_CUT && soak_is_local(o->transport))
        return 0;
    return o->only && !is_named(o->only, kinds[kind].text) ? 0 : kinds[kind].weight;
}

static enum soak_fault_kind choose_kind(const struct soak_options *o, uint64_t *state)
{
    uint32_t total = 0;
    for (int k = 0; k < SOAK_FAULT_KINDS; k++)
        total += weight_of(o, k);
    uint32_t at = (uint32_t)dice(state, total ? total : 1);
    for (int k = 0; k < SOAK_FAULT_KINDS; k++) {
        if (at < weight_of(o, k))
            return (enum soak_fault_kind)k;
        at -= weight_of(o, k);
    }
    return SOAK_NODE_STOP;
}

/* How long a node's record lives. */
static uint32_t ttl_ms(const struct soak_options *o)
{
    return 3 * o->heartbeat_ms;
}

/* At least half of the faults end before the node's record expires. */
static uint32_t choose_length(const struct soak_options *o, uint64_t *state)
{
    uint32_t longest = dice(state, 2) ? ttl_ms(o) : 4 * ttl_ms(o);
    return 50 + (uint32_t)dice(state, longest);
}

static bool is_loss(const struct soak_fault *f)
{
    return f->kind >= SOAK_REDIS_KILL && f->kind <= SOAK_REDIS_OLD;
}

static struct soak_fault choose(const struct soak_options *o, uint64_t *state, uint32_t from_ms)
{
    struct soak_fault f = {.kind = choose_kind(o, state), .from_ms = from_ms};
    f.to_ms = from_ms + choose_length(o, state);
    f.client = (uint32_t)dice(state, SOAK_CLIENTS);
    f.node = (uint32_t)dice(state, SOAK_NODES);
    f.amount = 10 + (uint32_t)dice(state, 190);
    if (f.kind == SOAK_NODE_REDIS_LOSS || f.kind == SOAK_CLIENT_REDIS_LOSS || f.kind == SOAK_CLIENT_NODE_LOSS)
        f.amount = 2 + f.amount % 20;
    return f;
}

static bool is_of_redis(const struct soak_fault *f)
{
    return f->kind >= SOAK_REDIS_KILL && f->kind <= SOAK_REDIS_FULL;
}

/* Redis is away for all clients and nodes. */
static bool takes_redis_away(const struct soak_fault *f)
{
    return f->kind == SOAK_REDIS_KILL || f->kind == SOAK_REDIS_OLD || f->kind == SOAK_REDIS_STOP ||
           f->kind == SOAK_REDIS_PAUSE;
}

static bool parts_client_and_redis(const struct soak_fault *f)
{
    return f->kind >= SOAK_CLIENT_REDIS_CUT && f->kind <= SOAK_CLIENT_REDIS_LOSS;
}

static bool parts_node_and_redis(const struct soak_fault *f)
{
    return f->kind <= SOAK_NODE_RESTART ||
           (f->kind >= SOAK_NODE_REDIS_CUT && f->kind <= SOAK_NODE_REDIS_LOSS);
}

static bool is_of_node(const struct soak_fault *f)
{
    return parts_node_and_redis(f);
}

static bool is_of_client(const struct soak_fault *f)
{
    return f->kind == SOAK_CLIENT_STOP || f->kind == SOAK_CLIENT_KILL || parts_client_and_redis(f);
}

static bool is_of_link(const struct soak_fault *f)
{
    return f->kind >= SOAK_CLIENT_NODE_CUT;
}

static bool are_same(const struct soak_fault *a, const struct soak_fault *b)
{
    return (is_of_redis(a) && is_of_redis(b)) || (is_of_node(a) && is_of_node(b) && a->node == b->node) ||
           (is_of_client(a) && is_of_client(b) && a->client == b->client) ||
           (is_of_link(a) && is_of_link(b) && a->client == b->client && a->node == b->node);
}

static bool overlap(const struct soak_fault *a, const struct soak_fault *b, uint32_t margin_ms)
{
    return a->from_ms < b->to_ms + margin_ms && b->from_ms < a->to_ms + margin_ms;
}

static bool make_island(const struct soak_options *o, const struct soak_fault *a, const struct soak_fault *b)
{
    bool a_client = parts_client_and_redis(a) || takes_redis_away(a);
    bool b_client = parts_client_and_redis(b) || takes_redis_away(b);
    return overlap(a, b, 2 * ttl_ms(o)) &&
           ((a_client && parts_node_and_redis(b)) || (b_client && parts_node_and_redis(a)));
}

static struct soak_fault widened(const struct soak_options *o, struct soak_fault f)
{
    if (is_loss(&f))
        f.to_ms += 3 * ttl_ms(o);
    if (f.kind == SOAK_NODE_KILL || f.kind == SOAK_NODE_RESTART)
        f.to_ms += ttl_ms(o);
    return f;
}

static bool fits(const struct soak_options *o, const struct soak_fault *faults, size_t n,
                 const struct soak_fault *f)
{
    struct soak_fault wide = widened(o, *f);
    int beside = 1;
    for (size_t i = 0; i < n; i++) {
        struct soak_fault other = widened(o, faults[i]);
        if (!o->refuses && make_island(o, &wide, &other))
            return false;
        if (!overlap(&wide, &other, 0))
            continue;
        if (are_same(&wide, &other) || ++beside > TOGETHER)
            return false;
    }
    return true;
}

size_t soak_plan(const struct soak_options *o, struct soak_fault *faults)
{
    uint64_t state = o->seed;
    uint32_t end_ms = o->seconds * 1000 > 2 * CALM_MS ? o->seconds * 1000 - CALM_MS : 0;
    size_t n = 0;
    for (uint32_t at = CALM_MS; at < end_ms && n < SOAK_FAULTS_MAX;
         at += (uint32_t)dice(&state, GAP_MAX_MS)) {
        for (int i = 0; i < TRIES; i++) {
            struct soak_fault f = choose(o, &state, at);
            if (f.to_ms > end_ms || !fits(o, faults, n, &f))
                continue;
            faults[n++] = f;
            break;
        }
    }
    return n;
}
