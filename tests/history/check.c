/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does a history obey the rule? See check.h.
 *
 * Each key takes two passes. The first checks each get alone. It is wrong if the put of its value was over
 * before a displacing operation began, and that operation ended before the get began. The second pass looks
 * for an order of all writes that fits the remaining gets (order.c).
 */
#include "tests/history/check.h"

#include <stdlib.h>
#include <string.h>

#include <tarn/error.h>

#include "base/clock.h"
#include "tests/history/key.h"

static int by_key_and_start(const void *pa, const void *pb)
{
    const struct history_op *a = pa, *b = pb;
    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    return a->start_ns < b->start_ns ? -1 : a->start_ns > b->start_ns;
}

static bool is_put(const struct history_op *op)
{
    return op->kind == HISTORY_PUT || op->kind == HISTORY_REPLACE;
}

static bool is_get(const struct history_op *op)
{
    return op->kind == HISTORY_GET || op->kind == HISTORY_GET_MANY;
}

static bool is_operation(const struct history_op *op)
{
    return is_put(op) || is_get(op) || op->kind == HISTORY_REMOVE;
}

static bool has_ended(const struct history_op *op)
{
    return atomic_load(&op->end_ns) != 0;
}

static bool succeeded(const struct history_op *op)
{
    return has_ended(op) && op->status == 0;
}

static bool displaces(const struct history_op *op)
{
    if (op->kind == HISTORY_REMOVE)
        return has_ended(op) && (op->status == 0 || op->status == TARN_E_NOT_FOUND);
    return op->kind == HISTORY_REPLACE && succeeded(op);
}

/* Is a finding of this kind shown for the key already? One is enough. */
static bool is_shown(const struct history_report *r, enum history_finding what, const struct history_op *part)
{
    for (size_t i = 0; i < r->nshown[what]; i++)
        if (part && r->shown[what][i].nparts && r->shown[what][i].parts[0]->key == part->key)
            return true;
    return false;
}

void history_found(struct history_report *r, enum history_finding what, const struct history_op *const *parts,
                   size_t nparts)
{
    struct history_violation *v = &r->shown[what][r->nshown[what]];
    r->found[what]++;
    if (r->nshown[what] == HISTORY_SHOWN_MAX || is_shown(r, what, nparts ? parts[0] : NULL))
        return;
    r->nshown[what]++;
    v->what = what;
    for (size_t i = 0; i < nparts && v->nparts < HISTORY_PARTS_MAX; i++)
        if (parts[i])
            v->parts[v->nparts++] = parts[i];
}

/* --- one key ------------------------------------------------------------------------------------ */

static int by_version(const void *pa, const void *pb)
{
    const struct history_write *a = pa, *b = pb;
    return a->op->version < b->op->version ? -1 : a->op->version > b->op->version;
}

static int by_end(const void *pa, const void *pb)
{
    const struct history_write *const *a = pa, *const *b = pb;
    return (*a)->over_ns < (*b)->over_ns ? -1 : (*a)->over_ns > (*b)->over_ns;
}

/* Removes have version 0 and come first. */
static struct history_write *find_put(const struct history_key *k, uint64_t version)
{
    struct history_op op = {.version = version};
    struct history_write want = {.op = &op};
    return version ? bsearch(&want, k->writes, k->nwrites, sizeof want, by_version) : NULL;
}

static void collect_writes(struct history_key *k)
{
    for (size_t i = 0; i < k->nops; i++) {
        const struct history_op *op = &k->ops[i];
        if (is_put(op) || displaces(op))
            k->writes[k->nwrites++] = (struct history_write){
                .op = op, .displaces = displaces(op), .over_ns = op->gone_ns, .is_in_order = succeeded(op)};
    }
    qsort(k->writes, k->nwrites, sizeof *k->writes, by_version);
}

static void see_put(struct history_report *r, const struct history_op *get, struct history_write *put)
{
    const struct history_op *parts[] = {put ? put->op : NULL, get};
    if (!put) {
        history_found(r, HISTORY_UNKNOWN, parts, 2);
        return;
    }
    if (put->op->start_ns >= get->gone_ns) {
        history_found(r, HISTORY_EARLY, (const struct history_op *[]){get, put->op}, 2);
        return;
    }
    r->refused_seen += put->op->status == TARN_E_EXISTS && has_ended(put->op);
    if (!put->seen || get->gone_ns < put->seen->gone_ns)
        put->seen = get;
}

/* Finds the puts whose values were seen, and the first get of each. */
static void see_puts(struct history_key *k, struct history_report *r)
{
    for (size_t i = 0; i < k->nops; i++) {
        const struct history_op *op = &k->ops[i];
        if (is_get(op) && succeeded(op) && op->wrong == HISTORY_RIGHT)
            see_put(r, op, find_put(k, op->version));
    }
    for (size_t i = 0; i < k->nwrites; i++) {
        struct history_write *w = &k->writes[i];
        w->is_in_order |= w->displaces || w->seen;
        if (succeeded(w->op) || w->displaces)
            continue;
        uint64_t seen_ns = w->seen ? w->seen->gone_ns : UINT64_MAX;
        w->over_ns = seen_ns > w->over_ns ? seen_ns : w->over_ns;
    }
}

/* Sorts the displacing writes by end. `latest` of write i: the one of the first i + 1 that began last. */
static void sort_displacing(struct history_key *k)
{
    for (size_t i = 0; i < k->nwrites; i++)
        if (k->writes[i].displaces)
            k->displacing[k->ndisplacing++] = &k->writes[i];
    qsort(k->displacing, k->ndisplacing, sizeof *k->displacing, by_end);
    for (size_t i = 0; i < k->ndisplacing; i++) {
        struct history_write *w = k->displacing[i], *before = i ? k->displacing[i - 1]->latest : w;
        w->latest = before->op->start_ns > w->op->start_ns ? before : w;
    }
}

/* Of the displacing writes that were over before t, the one that began last. NULL: none. */
static const struct history_write *displaced_before(const struct history_key *k, uint64_t t)
{
    size_t low = 0, high = k->ndisplacing;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (k->displacing[middle]->over_ns < t)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? k->displacing[low - 1]->latest : NULL;
}

static void check_get(struct history_key *k, struct history_report *r, const struct history_op *get,
                      struct history_write *put)
{
    const struct history_write *by = displaced_before(k, get->start_ns);
    if (!by)
        return;
    if (by->op->start_ns > put->over_ns) {
        bool was_seen = !succeeded(put->op);
        const struct history_op *parts[] = {put->op, was_seen ? put->seen : NULL, by->op, get};
        history_found(r, by->op->kind == HISTORY_REMOVE ? HISTORY_RESURRECTED : HISTORY_STALE, parts, 4);
        return;
    }
    if (!succeeded(put->op) && by->op->start_ns > put->op->gone_ns)
        r->late_effects++;
    if (put->over_ns < get->start_ns && (!put->last || put->last->start_ns < get->start_ns))
        put->last = get;
}

static void check_gets(struct history_key *k, struct history_report *r)
{
    for (size_t i = 0; i < k->nops; i++) {
        const struct history_op *op = &k->ops[i];
        struct history_write *put;
        if (!is_get(op) || !succeeded(op) || op->wrong != HISTORY_RIGHT)
            continue;
        put = find_put(k, op->version);
        if (put && put->op->start_ns < op->gone_ns)
            check_get(k, r, op, put);
    }
}

static bool check_key(const struct history_op *ops, size_t n, struct history_report *r)
{
    struct history_key k = {.ops = ops, .nops = n};
    bool ok = true;
    k.writes = calloc(n + 1, sizeof *k.writes);
    k.displacing = calloc(n + 1, sizeof *k.displacing);
    if (k.writes && k.displacing) {
        collect_writes(&k);
        see_puts(&k, r);
        sort_displacing(&k);
        check_gets(&k, r);
        ok = history_check_order(&k, r);
    } else {
        ok = false;
    }
    free(k.writes);
    free(k.displacing);
    return ok;
}

/* --- all operations ----------------------------------------------------------------------------- */

static void count(const struct history_op *op, struct history_report *r)
{
    int32_t status = -op->status;
    if (!is_operation(op))
        return;
    if (!r->nops++ || op->start_ns < r->first_ns)
        r->first_ns = op->start_ns;
    if (!has_ended(op))
        r->unfinished[op->kind]++;
    else if (status >= 0 && status < HISTORY_STATUSES)
        r->by_status[op->kind][status]++;
    if (op->wrong == HISTORY_RIGHT || !succeeded(op))
        return;
    r->wrong[op->wrong]++;
    history_found(r, HISTORY_BYTES, &op, 1);
}

static bool check_keys(const struct history *h, struct history_report *r)
{
    for (size_t at = 0, end; at < h->n; at = end) {
        for (end = at; end < h->n && h->ops[end].key == h->ops[at].key;)
            end++;
        if (!check_key(&h->ops[at], end - at, r))
            return false;
    }
    return true;
}

bool history_check(struct history *h, struct history_report *r)
{
    *r = (struct history_report){0};
    qsort(h->ops, h->n, sizeof *h->ops, by_key_and_start);
    for (size_t i = 0; i < h->n; i++)
        count(&h->ops[i], r);
    return check_keys(h, r) && history_check_times(h, r);
}

bool history_is_legal(const struct history_report *r)
{
    for (int i = 0; i < HISTORY_FINDINGS; i++)
        if (r->found[i])
            return false;
    return true;
}
