/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/container.h"
#include "base/error.h"
#include "client/direct.h"
#include "client/gpu/table_impl.h"
#include "client/resolve.h"

/* --- finding an object -------------------------------------------------------------------------- */

struct find_use {
    struct tarn_direct direct;
    struct tarn_table *table;
    struct tarn_table_found *found;
};

/* The hold of the link, which is new if the table has not used the link before. */
static int hold_of(struct tarn_table *t, struct tarn_open_link *l, struct tarn_peer_node *node,
                   uint32_t *hold_p)
{
    uint32_t i = 0;
    while (i < t->nholds && t->holds[i].link != l)
        i++;
    *hold_p = i;
    if (i < t->nholds)
        return 0;
    struct tarn_table_hold *more = realloc(t->holds, (i + 1) * sizeof(*more));
    if (!more)
        return tarn_fail(TARN_E_NO_MEMORY, "table: out of memory");
    t->holds = more;
    t->holds[t->nholds++] = (struct tarn_table_hold){.link = l, .node = node};
    atomic_fetch_add(&l->views, 1);
    return 0;
}

static int find_at(struct tarn_direct *d, struct tarn_open_link *l, const struct tarn_desc *desc,
                   const struct tarn_loc *loc)
{
    const struct find_use *u = TARN_CONTAINER_OF(d, struct find_use, direct);
    struct tarn_table_found *f = u->found;
    f->range = (struct tarn_range){loc->pool, loc->slot, loc->gen, loc->offset, desc->tensor.bytes};
    int rc = l->ops->address(l->link, u->table->device, &f->range, &f->address);
    if (rc)
        return rc;
    pthread_mutex_lock(&u->table->lock);
    rc = hold_of(u->table, l, loc->node, &f->hold);
    pthread_mutex_unlock(&u->table->lock);
    return rc;
}

void tarn_table_find(struct tarn_table *t, const struct tarn_desc *desc, uint64_t deadline_ns,
                     struct tarn_cancel *cancel, struct tarn_table_found *f)
{
    struct find_use use = {{find_at}, t, f};
    struct tarn_reason why;
    if (desc->tensor.bytes > UINT32_MAX) {
        f->status = tarn_fail(TARN_E_TOO_LARGE, "table: the object has %llu bytes: kernels read at most %u",
                              (unsigned long long)desc->tensor.bytes, UINT32_MAX);
        return;
    }
    f->status = tarn_direct_use(t->client, desc, deadline_ns, cancel, &use.direct, &why);
    if (f->status == TARN_E_NOT_REACHABLE && !tarn_desc_alive(desc))
        f->status = tarn_desc_gone(desc) ? TARN_E_NOT_FOUND : TARN_E_NODE_DOWN;
    if (f->status)
        tarn_fail(f->status, "table: %s", why.code ? why.text : tarn_error_name(f->status));
}

/* --- pages -------------------------------------------------------------------------------------- */

void tarn_table_page_set(struct tarn_table *t, uint32_t page, const struct tarn_table_found *f)
{
    struct tarn_table_page *p = &t->pages[page];
    if (p->status == 0)
        t->holds[p->hold].pages--;
    p->status = f->status;
    p->stamp = p->stamp == INT32_MAX ? 1 : p->stamp + 1;
    memset(p->halves, 0, sizeof(p->halves));
    if (f->status) {
        p->halves[0].b = (uint32_t)-f->status;
        return;
    }
    p->hold = f->hold;
    p->pool = f->range.pool;
    p->slot = f->range.slot;
    p->halves[0] = (struct tarn_half){(uintptr_t)f->address.at, f->range.bytes};
    p->halves[1] = (struct tarn_half){(uintptr_t)f->address.gen_at, (uint32_t)f->range.gen};
    t->holds[p->hold].pages++;
}

int tarn_table_kill(struct tarn_table *t, uint32_t hold, int status)
{
    const struct tarn_table_found dead = {.status = status};
    int rc = 0;
    for (uint32_t first = 0, n; !rc && first < t->npages; first += n ? n : 1) {
        for (n = 0; first + n < t->npages; n++) {
            const struct tarn_table_page *p = &t->pages[first + n];
            if (p->status || p->hold != hold)
                break;
            tarn_table_page_set(t, first + n, &dead);
        }
        rc = n ? tarn_table_memory_write(t, first, n) : 0;
    }
    return rc;
}
