/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA, node half: pools registered with every rail, and the queue pairs of the clients' links. */
#include "transport/rdma.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/buf.h"
#include "base/error.h"
#include "transport/rdma_memory.h"

#define SLICE_BYTES (3584ull << 20) /* below the 4 GiB that some devices end at */
#define AT "rdma"

struct served_pool {
    uint32_t nslices;
    struct tarn_region **read, **write; /* of the arena, slice by slice */
    struct tarn_region *gen, *touch;
};

/* One link of a client. */
struct joined {
    struct joined *prev, *next;
    uint64_t session, id;
    struct ibv_qp *qp[TARN_RAILS_MAX];
};

struct tarn_server {
    const struct tarn_logger *log;
    const struct tarn_pool_memory *pools;
    uint32_t npools;
    struct tarn_rails rails;
    struct ibv_cq *cq[TARN_RAILS_MAX]; /* nothing ever completes there: a queue pair must have one */
    struct served_pool *served;
    struct joined *links;
    uint64_t next_id;
};

/* --- registration ------------------------------------------------------------------------------- */

static int register_slices(struct tarn_server *s, uint32_t pool, int access, struct tarn_region **slices)
{
    const struct tarn_pool_memory *p = &s->pools[pool];
    int rc = 0;
    for (uint32_t i = 0; !rc && i < s->served[pool].nslices; i++) {
        uint64_t from = i * SLICE_BYTES, left = p->bytes - from;
        rc = tarn_region_new(&s->rails, (char *)p->base + from, left < SLICE_BYTES ? left : SLICE_BYTES,
                             access, &slices[i]);
    }
    return rc;
}

static int register_pool(struct tarn_server *s, uint32_t i)
{
    const struct tarn_pool_memory *p = &s->pools[i];
    struct served_pool *served = &s->served[i];
    served->nslices = (uint32_t)((p->bytes + SLICE_BYTES - 1) / SLICE_BYTES);
    served->read = calloc(served->nslices, sizeof(struct tarn_region *));
    served->write = calloc(served->nslices, sizeof(struct tarn_region *));
    if (!served->read || !served->write)
        return tarn_fail(TARN_E_NO_MEMORY, "rdma: out of memory");
    int rc = register_slices(s, i, IBV_ACCESS_REMOTE_READ, served->read);
    if (!rc)
        rc = register_slices(s, i, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
                             served->write);
    if (!rc)
        rc = tarn_region_new(&s->rails, (void *)(uintptr_t)p->gen, p->nslots * sizeof *p->gen,
                             IBV_ACCESS_REMOTE_READ, &served->gen);
    return rc ? rc
              : tarn_region_new(&s->rails, (void *)(uintptr_t)p->touch, p->nslots * sizeof *p->touch,
                                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, &served->touch);
}

static void unregister_pool(struct served_pool *served)
{
    for (uint32_t i = 0; i < served->nslices; i++) {
        tarn_region_free(served->read ? served->read[i] : NULL);
        tarn_region_free(served->write ? served->write[i] : NULL);
    }
    tarn_region_free(served->gen);
    tarn_region_free(served->touch);
    free(served->read);
    free(served->write);
}

/* --- serve, stop -------------------------------------------------------------------------------- */

static int serve_all(struct tarn_server *s)
{
    int rc = 0;
    for (uint32_t i = 0; i < s->rails.n; i++) {
        s->cq[i] = ibv_create_cq(s->rails.rail[i].context, 1, NULL, NULL, 0);
        if (!s->cq[i])
            return tarn_fail(TARN_E_UNAVAILABLE, "rdma %s: no completion queue: %m", s->rails.rail[i].name);
    }
    for (uint32_t i = 0; !rc && i < s->npools; i++)
        rc = register_pool(s, i);
    return rc;
}

int tarn_rdma_serve(const struct tarn_serve *serve, struct tarn_server **s_p)
{
    struct tarn_server *s = calloc(1, sizeof *s);
    if (!s || !(s->served = calloc(serve->npools, sizeof *s->served))) {
        free(s);
        return tarn_fail(TARN_E_NO_MEMORY, "rdma: out of memory");
    }
    s->log = serve->log;
    s->pools = serve->pools;
    s->npools = serve->npools;
    s->next_id = 1;
    int rc = tarn_rails_open(serve->rdma_devices, &s->rails);
    if (!rc)
        rc = serve_all(s);
    if (rc) {
        tarn_rdma_stop(s);
        return rc;
    }
    *s_p = s;
    return 0;
}

static void unjoin(struct tarn_server *s, struct joined *j)
{
    for (int i = 0; i < TARN_RAILS_MAX; i++)
        if (j->qp[i])
            ibv_destroy_qp(j->qp[i]);
    DL_DELETE(s->links, j);
    free(j);
}

void tarn_rdma_stop(struct tarn_server *s)
{
    while (s->links)
        unjoin(s, s->links);
    for (uint32_t i = 0; i < s->npools; i++)
        unregister_pool(&s->served[i]);
    for (uint32_t i = 0; i < s->rails.n; i++)
        if (s->cq[i])
            ibv_destroy_cq(s->cq[i]);
    tarn_rails_close(&s->rails);
    free(s->served);
    free(s);
}

/* The rails a reader may look for: "v1 mlx5_0:1 mlx5_1:1". */
void tarn_rdma_describe(const struct tarn_server *s, uint32_t pool, char *text, size_t text_bytes)
{
    size_t n = (size_t)snprintf(text, text_bytes, "v1");
    (void)pool;
    for (uint32_t i = 0; i < s->rails.n && n < text_bytes; i++)
        n += (size_t)snprintf(text + n, text_bytes - n, " %s", s->rails.rail[i].name);
}

/* --- ATTACH ------------------------------------------------------------------------------------- */

struct offer {
    uint32_t n;
    struct tarn_endpoint ends[TARN_RAILS_MAX];
};

static int malformed(const char *text)
{
    return tarn_fail(TARN_E_PROTOCOL, "ATTACH rdma: malformed offer \"%.60s\"", text);
}

static int parse_offer(const char *text, struct offer *o)
{
    const char *at = text;
    *o = (struct offer){0};
    if (strncmp(at, "v1", 2) || (at[2] && at[2] != ' '))
        return tarn_fail(TARN_E_VERSION,
                         "ATTACH rdma: offer \"%.20s\" where v1 was expected: run the same "
                         "version of tarn on both sides",
                         at);
    for (at += 2; *at;) {
        at += strspn(at, " ");
        size_t bytes = strcspn(at, " ");
        if (bytes == 0 || o->n == TARN_RAILS_MAX)
            return malformed(text);
        int rc = tarn_endpoint_parse(at, bytes, &o->ends[o->n++]);
        if (rc)
            return rc;
        at += bytes;
    }
    return o->n ? 0 : malformed(text);
}

/* A queue pair for one end of the client's; *rail_p is which rail it is on. */
static int join(struct tarn_server *s, const struct tarn_endpoint *end, uint32_t prefer, struct ibv_qp **qp_p,
                struct tarn_endpoint *own, uint32_t *rail_p)
{
    const struct tarn_rail *rail = tarn_rail_reaching(&s->rails, end, prefer);
    if (!rail)
        return tarn_fail(TARN_E_NOT_REACHABLE,
                         "ATTACH rdma: none of the node's %u rails reaches the client's", s->rails.n);
    *rail_p = (uint32_t)(rail - s->rails.rail);
    struct tarn_qp_options o = {.cq = s->cq[*rail_p], .max_wr = 1, .max_sge = 1};
    int rc = tarn_qp_new(rail, &o, qp_p, own);
    if (rc)
        return rc;
    rc = tarn_qp_join(rail, *qp_p, own, end);
    if (rc) {
        ibv_destroy_qp(*qp_p);
        *qp_p = NULL;
    }
    return rc;
}

static void add_pool(const struct tarn_server *s, uint32_t i, bool write, const int *rails, uint32_t n,
                     struct tarn_buf *out)
{
    const struct tarn_pool_memory *p = &s->pools[i];
    const struct served_pool *served = &s->served[i];
    struct tarn_region **slices = write ? served->write : served->read;
    tarn_buf_printf(out, " %u %" PRIu64 " %u %llu %" PRIxPTR " %" PRIxPTR " %" PRIxPTR, i, p->bytes,
                    p->nslots, SLICE_BYTES, (uintptr_t)p->base, (uintptr_t)p->gen, (uintptr_t)p->touch);
    for (uint32_t k = 0; k < n; k++) {
        if (rails[k] < 0)
            continue;
        tarn_buf_printf(out, " %x %x", served->gen->mr[rails[k]]->rkey, served->touch->mr[rails[k]]->rkey);
        for (uint32_t j = 0; j < served->nslices; j++)
            tarn_buf_printf(out, " %x", slices[j]->mr[rails[k]]->rkey);
    }
}

/* rails[k]: the node's rail of the client's k-th end, -1: none. */
static int answer(const struct tarn_server *s, const struct joined *j, const struct tarn_endpoint *own,
                  const int *rails, uint32_t n, struct tarn_attach *a)
{
    struct tarn_buf out = {0};
    tarn_buf_printf(&out, "v1 %" PRIx64 " %u", j->id, n);
    for (uint32_t k = 0; k < n; k++) {
        char end[TARN_ENDPOINT_TEXT] = "-";
        if (rails[k] >= 0)
            tarn_endpoint_format(&own[k], end);
        tarn_buf_printf(&out, " %s", end);
    }
    tarn_buf_printf(&out, " %u", s->npools);
    for (uint32_t i = 0; i < s->npools; i++)
        add_pool(s, i, a->write, rails, n, &out);
    bool fits = !out.failed && out.bytes < sizeof a->text;
    if (fits)
        memcpy(a->text, out.data, out.bytes + 1);
    tarn_buf_free(&out);
    return fits ? 0
                : tarn_fail(TARN_E_UNSUPPORTED,
                            "ATTACH rdma: the keys of %u pools on %u rails do not fit an "
                            "answer of %zu bytes: use fewer rails or smaller pools",
                            s->npools, n, sizeof a->text);
}

int tarn_rdma_attach(struct tarn_server *s, struct tarn_attach *a)
{
    struct offer o;
    struct tarn_endpoint own[TARN_RAILS_MAX];
    int rails[TARN_RAILS_MAX], rc = parse_offer(a->offer, &o);
    uint32_t joined = 0;
    if (rc)
        return rc;
    struct joined *j = calloc(1, sizeof *j);
    if (!j)
        return tarn_fail(TARN_E_NO_MEMORY, "ATTACH rdma: out of memory");
    j->session = a->session;
    j->id = s->next_id++;
    DL_APPEND(s->links, j);
    for (uint32_t k = 0; k < o.n; k++) {
        uint32_t rail = 0;
        rails[k] = -1;
        if (join(s, &o.ends[k], k, &j->qp[k], &own[k], &rail))
            continue;
        rails[k] = (int)rail;
        joined++;
    }
    if (joined)
        rc = answer(s, j, own, rails, o.n, a);
    if (rc || !joined) {
        unjoin(s, j);
        return rc ? rc : TARN_E_NOT_REACHABLE;
    }
    return 0;
}

void tarn_rdma_detach_link(struct tarn_server *s, uint64_t session, uint64_t link)
{
    struct joined *j, *next;
    DL_FOREACH_SAFE(s->links, j, next)
    if (j->session == session && j->id == link)
        unjoin(s, j);
}

void tarn_rdma_detach(struct tarn_server *s, uint64_t session)
{
    struct joined *j, *next;
    DL_FOREACH_SAFE(s->links, j, next)
    if (j->session == session)
        unjoin(s, j);
}
