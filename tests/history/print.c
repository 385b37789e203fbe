/* SPDX-License-Identifier: Apache-2.0 */
/* Reports of the checker, for people. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <tarn/error.h>

#include "base/clock.h"
#include "tests/history/check.h"

static const char *const findings[HISTORY_FINDINGS] = {
    [HISTORY_STALE] = "stale", [HISTORY_RESURRECTED] = "resurrected", [HISTORY_IN_TURN] = "in turn",
    [HISTORY_EARLY] = "early", [HISTORY_UNKNOWN] = "unknown",         [HISTORY_BYTES] = "wrong bytes",
    [HISTORY_LATE] = "late",
};

static const char *const meanings[HISTORY_FINDINGS] = {
    [HISTORY_STALE] =
        "the put was over before the replace began, and the get began after that had returned 0",
    [HISTORY_RESURRECTED] =
        "the put was over before the remove began, and the get began after that had returned",
    [HISTORY_IN_TURN] = "no order of these writes fits these gets",
    [HISTORY_EARLY] = "the get was over before the put began",
    [HISTORY_UNKNOWN] = "no put wrote what this get returned under its key",
    [HISTORY_BYTES] = "the bytes are not one value's",
    [HISTORY_LATE] = "it ended this late though its process ran",
};

static const char *const kinds[HISTORY_KINDS] = {
    [HISTORY_NONE] = "none",     [HISTORY_PUT] = "put", [HISTORY_REPLACE] = "replace",
    [HISTORY_REMOVE] = "remove", [HISTORY_GET] = "get", [HISTORY_GET_MANY] = "get_many",
    [HISTORY_STALL] = "stall",   [HISTORY_RUN] = "run",
};

static const char *const wrongs[HISTORY_WRONGS] = {
    [HISTORY_RIGHT] = "right",         [HISTORY_TORN] = "torn",       [HISTORY_FOREIGN] = "foreign",
    [HISTORY_MISPLACED] = "misplaced", [HISTORY_GARBLED] = "garbled",
};

const char *history_finding_name(enum history_finding f)
{
    return findings[f];
}

static double ms_since(uint64_t t, uint64_t first)
{
    return (double)(int64_t)(t - first) / 1e6;
}

static void print_op(const struct history_op *op, uint64_t first_ns, FILE *to)
{
    bool ended = atomic_load(&op->end_ns) != 0;
    fprintf(to, "      %11.3f .. ", ms_since(op->start_ns, first_ns));
    if (op->gone_ns == UINT64_MAX)
        fprintf(to, "%11s ms", "?");
    else
        fprintf(to, "%11.3f ms", ms_since(op->gone_ns, first_ns));
    fprintf(to, "  client %-2u key %-3u %-8s %s", op->client, op->key, kinds[op->kind],
            ended ? tarn_error_name(op->status) : "killed");
    if (op->version)
        fprintf(to, " version %" PRIx64, op->version);
    if (op->wrong)
        fprintf(to, " %s", wrongs[op->wrong]);
    fprintf(to, " (deadline %u ms)\n", op->deadline_ms);
}

static int by_start(const void *pa, const void *pb)
{
    const struct history_op *const *a = pa, *const *b = pb;
    return (*a)->start_ns < (*b)->start_ns ? -1 : (*a)->start_ns > (*b)->start_ns;
}

static void print_violation(const struct history_violation *v, uint64_t first_ns, FILE *to)
{
    struct history_violation sorted = *v;
    qsort(sorted.parts, sorted.nparts, sizeof sorted.parts[0], by_start);
    fprintf(to, "    %s: %s\n", findings[v->what], meanings[v->what]);
    for (size_t i = 0; i < sorted.nparts; i++)
        print_op(sorted.parts[i], first_ns, to);
}

static void print_statuses(const struct history_report *r, int kind, FILE *to)
{
    bool any = r->unfinished[kind] > 0;
    for (int s = 0; s < HISTORY_STATUSES; s++)
        any |= r->by_status[kind][s] > 0;
    if (!any)
        return;
    fprintf(to, "  %-9s", kinds[kind]);
    for (int s = 0; s < HISTORY_STATUSES; s++)
        if (r->by_status[kind][s])
            fprintf(to, " %s %" PRIu64, tarn_error_name(-s), r->by_status[kind][s]);
    if (r->unfinished[kind])
        fprintf(to, " killed %" PRIu64, r->unfinished[kind]);
    fprintf(to, "\n");
}

void history_print(const struct history_report *r, FILE *to)
{
    fprintf(to, "operations: %" PRIu64 "\n", r->nops);
    for (int kind = HISTORY_PUT; kind <= HISTORY_GET_MANY; kind++)
        print_statuses(r, kind, to);
    fprintf(to,
            "failed puts seen after a later one: %" PRIu64 ", refused puts seen: %" PRIu64
            ", most beyond a deadline: %.1f ms\n",
            r->late_effects, r->refused_seen, (double)r->latest_ns / 1e6);
    for (int f = 0; f < HISTORY_FINDINGS; f++) {
        fprintf(to, "  %-12s %" PRIu64 "\n", findings[f], r->found[f]);
        for (size_t i = 0; i < r->nshown[f]; i++)
            print_violation(&r->shown[f][i], r->first_ns, to);
    }
}
