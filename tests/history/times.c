/* SPDX-License-Identifier: Apache-2.0 */
/* Finds operations that ended after their deadlines although their process was running. */
#include <stdlib.h>

#include "base/clock.h"
#include "tests/history/key.h"

struct stall {
    uint64_t from_ns, to_ns;
};

/* Stalls of a client, including those of the host. Sorted by begin, without overlaps. */
struct client_stalls {
    struct stall *at;
    size_t n;
};

static int by_begin(const void *pa, const void *pb)
{
    const struct stall *a = pa, *b = pb;
    return a->from_ns < b->from_ns ? -1 : a->from_ns > b->from_ns;
}

static void merge(struct client_stalls *s)
{
    size_t n = 0;
    if (s->n)
        qsort(s->at, s->n, sizeof *s->at, by_begin);
    for (size_t i = 0; i < s->n; i++) {
        if (n && s->at[i].from_ns <= s->at[n - 1].to_ns) {
            if (s->at[i].to_ns > s->at[n - 1].to_ns)
                s->at[n - 1].to_ns = s->at[i].to_ns;
        } else {
            s->at[n++] = s->at[i];
        }
    }
    s->n = n;
}

static bool collect(const struct history *h, uint16_t client, struct client_stalls *s)
{
    size_t room = 0;
    *s = (struct client_stalls){0};
    for (size_t i = 0; i < h->n; i++) {
        const struct history_op *op = &h->ops[i];
        if (op->kind != HISTORY_STALL || (op->client != client && op->client != HISTORY_ALL_CLIENTS))
            continue;
        if (s->n == room) {
            room = 2 * room + 64;
            struct stall *at = realloc(s->at, room * sizeof *at);
            if (!at)
                return false;
            s->at = at;
        }
        s->at[s->n++] = (struct stall){op->start_ns, op->gone_ns};
    }
    merge(s);
    return true;
}

static uint64_t within(const struct client_stalls *s, uint64_t from_ns, uint64_t to_ns)
{
    uint64_t total = 0;
    size_t low = 0, high = s->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (s->at[middle].to_ns <= from_ns)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < s->n && s->at[low].from_ns < to_ns; low++) {
        uint64_t from = s->at[low].from_ns > from_ns ? s->at[low].from_ns : from_ns;
        uint64_t to = s->at[low].to_ns < to_ns ? s->at[low].to_ns : to_ns;
        total += to - from;
    }
    return total;
}

/* Nanoseconds beyond the deadline. A killed operation counts up to the time at which its process was gone. */
static uint64_t beyond(const struct history_op *op, const struct client_stalls *s)
{
    uint64_t allowed = op->deadline_ms * TARN_NS_PER_MS;
    if (op->gone_ns == UINT64_MAX || op->gone_ns - op->start_ns <= allowed)
        return 0;
    uint64_t stalled = within(s, op->start_ns, op->gone_ns);
    allowed += stalled > op->waited_ns ? stalled : op->waited_ns;
    return op->gone_ns - op->start_ns <= allowed ? 0 : op->gone_ns - op->start_ns - allowed;
}

static void check_client(const struct history *h, uint16_t client, const struct client_stalls *s,
                         struct history_report *r)
{
    for (size_t i = 0; i < h->n; i++) {
        const struct history_op *op = &h->ops[i];
        if (op->client != client || op->kind < HISTORY_PUT || op->kind > HISTORY_GET_MANY)
            continue;
        uint64_t late = beyond(op, s);
        r->latest_ns = late > r->latest_ns ? late : r->latest_ns;
        if (late > HISTORY_LATE_MS * TARN_NS_PER_MS)
            history_found(r, HISTORY_LATE, &op, 1);
    }
}

bool history_check_times(const struct history *h, struct history_report *r)
{
    bool *seen = calloc(HISTORY_ALL_CLIENTS + 1, sizeof *seen);
    bool ok = seen != NULL;
    for (size_t i = 0; ok && i < h->n; i++) {
        uint16_t client = h->ops[i].client;
        struct client_stalls s;
        if (seen[client] || client == HISTORY_ALL_CLIENTS)
            continue;
        seen[client] = true;
        ok = collect(h, client, &s);
        if (ok)
            check_client(h, client, &s, r);
        free(s.at);
    }
    free(seen);
    return ok;
}
