/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/error.h"
#include "client/client.h"
#include "client/gpu/proxies.h"
#include "client/gpu/proxy_impl.h"
#include "client/gpu/table_impl.h"
#include "client/way.h"

/* --- memory ------------------------------------------------------------------------------------- */

const struct tarn_proxy_memory *tarn_proxy_memory_of(const struct tarn_proxy *p,
                                                     const struct tarn_ring_command *c)
{
    for (uint32_t i = 0; i < p->nranges; i++) {
        const struct tarn_proxy_memory *m = &p->ranges[i];
        if (c->address >= m->begin && c->address < m->end && c->bytes <= m->end - c->address)
            return m;
    }
    tarn_fail(TARN_E_INVALID, "proxy: %u bytes at %#llx are in none of its %u ranges: give it this memory",
              c->bytes, (unsigned long long)c->address, p->nranges);
    return NULL;
}

/* --- the table ---------------------------------------------------------------------------------- */

static int no_table(void)
{
    return tarn_fail(TARN_E_INVALID, "proxy: its table was freed: free the proxy before the table");
}

/* Copies the page's key. */
static int key_of(struct tarn_proxy *p, uint32_t page, uint8_t room[TARN_KEY_MAX], struct tarn_key *key)
{
    pthread_mutex_lock(&p->pages_lock);
    int rc = p->table ? tarn_table_key(p->table, page, room, key) : no_table();
    pthread_mutex_unlock(&p->pages_lock);
    return rc;
}

int tarn_proxy_refresh(struct tarn_proxy *p, uint32_t page, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    pthread_mutex_lock(&p->pages_lock);
    struct tarn_table *t = p->table;
    p->users += t != NULL;
    pthread_mutex_unlock(&p->pages_lock);
    if (!t)
        return no_table();
    int rc = tarn_table_look_again(t, page, deadline_ns, cancel);
    pthread_mutex_lock(&p->pages_lock);
    if (--p->users == 0)
        pthread_cond_broadcast(&p->unused);
    pthread_mutex_unlock(&p->pages_lock);
    return rc;
}

static void leave(struct tarn_proxy *p, const struct tarn_table *t)
{
    pthread_mutex_lock(&p->pages_lock);
    if (p->table == t) {
        p->table = NULL;
        while (p->users > 0)
            pthread_cond_wait(&p->unused, &p->pages_lock);
    }
    pthread_mutex_unlock(&p->pages_lock);
}

void tarn_proxies_leave(struct tarn_client *c, const struct tarn_table *t)
{
    pthread_mutex_lock(&c->proxies_lock);
    for (struct tarn_proxy *p = c->proxies; p; p = p->next)
        leave(p, t);
    pthread_mutex_unlock(&c->proxies_lock);
}

/* --- gets --------------------------------------------------------------------------------------- */

int tarn_proxy_get_make(struct tarn_proxy *p, const struct tarn_ring_command *c, struct tarn_proxy_get *g,
                        uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    const struct tarn_get_options o = {.flags = TARN_GET_RANGE};
    const struct tarn_proxy_memory *m = tarn_proxy_memory_of(p, c);
    if (!m)
        return TARN_E_INVALID;
    g->piece = (struct tarn_piece){.addr = (void *)(uintptr_t)c->address, .bytes = c->bytes};
    g->item = (struct tarn_item){.pieces = &g->piece, .npieces = 1, .offset = c->offset};
    int rc = key_of(p, c->index, g->key, &g->item.key);
    if (rc)
        return rc;
    tarn_get_prepare(&g->get, p->client, &g->item, 1, &o);
    g->get.seen.ranges[0] = (struct tarn_seen_range){m->begin, m->end, m->gpu};
    g->get.seen.n = 1;
    g->get.deadline_ns = deadline_ns;
    g->get.cancel = cancel;
    return 0;
}

const struct tarn_peer_node *tarn_proxy_get_node(const struct tarn_proxy_get *g)
{
    const struct tarn_get_memo *memo = &g->get.memo;
    const struct tarn_choice q = {.locs = memo->desc.locs, .nlocs = memo->desc.nlocs, .gpu = memo->gpu};
    struct tarn_way way;
    if (memo->found != 0 || !tarn_way_choose(g->get.client, &q, tarn_now_ns(), &way))
        return NULL;
    return memo->desc.locs[way.loc].node;
}
