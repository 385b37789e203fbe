/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests are a ring; these count them, ever, and posted >= there >= begun >= ended:
 *   posted  given to the plugin     there  test() said so
 *   begun   unpacking begun         ended  given back, and told
 * Sends are begun and ended when they are there. The plugin's metadata of the k-th receive are in slot k
 * % 16.
 */
#include "transport/tcpx/tcpx_comm.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "transport/tcpx/tcpx_comm_state.h"

#define ASKED_NS (50 * TARN_NS_PER_MS)

/* --- gear --------------------------------------------------------------------------------------- */

void tarn_tcpx_gear_close(struct tarn_tcpx_gear *g)
{
    for (int i = 0; i <= TARN_TCPX_GPUS; i++) {
        tarn_tcpx_unpack_close(g->unpackers[i]);
        g->unpackers[i] = NULL;
    }
}

int tarn_tcpx_comm_unpacker(struct tarn_tcpx_comm *c)
{
    struct tarn_tcpx_gear *g = c->gear;
    int i = 1 + c->gpu;
    int rc = g->unpackers[i]
                 ? 0
                 : tarn_tcpx_unpack_open(g->way, c->gpu, g->chunk_bytes, TARN_TCPX_SLOTS, &g->unpackers[i]);
    c->turn = g->turns[i];
    c->has_unpacker = rc == 0;
    return rc;
}

/* Closing the unpacker waits for its work, so it then accesses no comm's memory. */
static int unpacker_failed(struct tarn_tcpx_comm *c, int rc)
{
    struct tarn_tcpx_gear *g = c->gear;
    int i = 1 + c->gpu;
    tarn_tcpx_unpack_close(g->unpackers[i]);
    g->unpackers[i] = NULL;
    g->turns[i]++;
    return rc;
}

static struct tarn_tcpx_unpacker *unpacker(struct tarn_tcpx_comm *c)
{
    int i = 1 + c->gpu;
    if (c->gear->turns[i] == c->turn)
        return c->gear->unpackers[i];
    tarn_fail(TARN_E_UNAVAILABLE, "tcpx: GPU %d has failed under another connection: connect again", c->gpu);
    return NULL;
}

int tarn_tcpx_comm_unpack(struct tarn_tcpx_comm *c, const struct tarn_tcpx_fragments *f,
                          const struct tarn_tcpx_bounce *from, const struct tarn_tcpx_into *to,
                          uint64_t *ticket_p)
{
    struct tarn_tcpx_unpacker *u = unpacker(c);
    int rc = u ? tarn_tcpx_unpack_start(u, f, from, to, ticket_p) : TARN_E_UNAVAILABLE;
    bool harmless = !u || rc == 0 || rc == TARN_E_AGAIN || rc == TARN_E_INVALID || rc == TARN_E_NOT_REACHABLE;
    return harmless ? rc : unpacker_failed(c, rc);
}

int tarn_tcpx_comm_unpacked(struct tarn_tcpx_comm *c, uint64_t ticket)
{
    struct tarn_tcpx_unpacker *u = unpacker(c);
    int rc = u ? tarn_tcpx_unpack_poll(u, ticket) : TARN_E_UNAVAILABLE;
    return !u || rc == 0 || rc == TARN_E_AGAIN ? rc : unpacker_failed(c, rc);
}

/* --- failing ------------------------------------------------------------------------------------ */

static int fail(struct tarn_tcpx_comm *c, int rc)
{
    c->state = TARN_TCPX_FAILED;
    return rc;
}

/* Counts only time in which the plugin was tested, so a thread that was not scheduled causes no stall. */
static int check_stalled(struct tarn_tcpx_comm *c)
{
    uint64_t now = tarn_now_ns(), since = now - c->asked_ns;
    c->asked_ns = now;
    c->waited_ns += since < ASKED_NS ? since : ASKED_NS;
    if (c->waited_ns < c->gear->stall_ms * TARN_NS_PER_MS)
        return 0;
    return fail(c,
                tarn_fail(TARN_E_UNAVAILABLE,
                          "tcpx plugin %s: no %s has ended for %u ms, %u are under way: is the network up, "
                          "and the peer alive? the plugin's lines in the log may say more",
                          c->plugin->name, c->sends ? "send" : "receive",
                          (unsigned)(c->waited_ns / TARN_NS_PER_MS), (unsigned)(c->posted - c->ended)));
}

static void note_moved(struct tarn_tcpx_comm *c)
{
    c->asked_ns = tarn_now_ns();
    c->waited_ns = 0;
}

/* --- posting ------------------------------------------------------------------------------------ */

bool tarn_tcpx_comm_room(const struct tarn_tcpx_comm *c)
{
    return c->state == TARN_TCPX_READY && c->posted - c->ended < c->plugin->window;
}

bool tarn_tcpx_comm_busy(const struct tarn_tcpx_comm *c)
{
    return c->posted != c->ended;
}

static struct tarn_tcpx_request *request_at(struct tarn_tcpx_comm *c, uint64_t k)
{
    return &c->ring[k % TARN_TCPX_REQUESTS];
}

/* The plugin does not access its memory any more. */
static void end(struct tarn_tcpx_comm *c, const struct tarn_tcpx_request *r)
{
    tarn_tcpx_mapping_unuse(r->mapping);
    c->ended++;
    c->done(r->owner, r->bytes);
}

static int posted(struct tarn_tcpx_comm *c, struct tarn_tcpx_request *r, int rc)
{
    if (rc)
        return fail(c, rc);
    if (!r->request)
        return TARN_E_AGAIN;
    if (c->posted++ == c->there)
        note_moved(c);
    return 0;
}

int tarn_tcpx_comm_send(struct tarn_tcpx_comm *c, void *data, uint32_t bytes, const struct tarn_tcpx_place *p,
                        void *owner)
{
    struct tarn_tcpx_request *r = request_at(c, c->posted);
    struct tarn_tcpx_place own = {0};
    int rc = p ? 0 : tarn_tcpx_ranges_find_own(c, data, &own.mr);
    if (rc)
        return fail(c, rc);
    p = p ? p : &own;
    *r = (struct tarn_tcpx_request){.owner = owner, .bytes = bytes, .mapping = p->mapping};
    return posted(c, r, tarn_tcpx_isend(c->plugin, c->comm, data, bytes, p->mr, &r->request));
}

/*
 * Where the plugin writes a message: its destination, if it is contiguous in memory that the plugin may
 * access; else the comm's memory.
 */
static void *place_of(struct tarn_tcpx_comm *c, struct tarn_tcpx_request *r, struct tarn_tcpx_place *p)
{
    const struct tarn_tcpx_into *into = &r->into;
    if (c->plain && into->kind != TARN_CUDA_DEVICE && !c->aim) {
        void *at;
        struct tarn_cursor cursor = tarn_cursor_at(into->pieces, into->npieces, into->offset);
        uint64_t run = tarn_cursor_next(&cursor, into->pieces, into->npieces, r->bytes, &at);
        r->in_place = run == r->bytes && tarn_tcpx_ranges_find(c, at, r->bytes, p);
        if (r->in_place)
            return at;
    }
    *p = (struct tarn_tcpx_place){.mr = c->memory_mr};
    return c->memory + (c->plain ? c->posted % TARN_TCPX_REQUESTS * c->gear_chunk : 0);
}

void tarn_tcpx_comm_aim_late(struct tarn_tcpx_comm *c, tarn_tcpx_aim_fn aim)
{
    c->aim = aim;
}

int tarn_tcpx_comm_recv(struct tarn_tcpx_comm *c, uint32_t bytes, const struct tarn_tcpx_into *into,
                        void *owner)
{
    struct tarn_tcpx_request *r = request_at(c, c->posted);
    struct tarn_tcpx_place p;
    *r = (struct tarn_tcpx_request){.owner = owner, .bytes = bytes, .into = *into};
    void *at = place_of(c, r, &p);
    r->mapping = p.mapping;
    int rc = posted(c, r, tarn_tcpx_irecv(c->plugin, c->comm, at, bytes, p.mr, &r->request));
    if (rc)
        tarn_tcpx_mapping_unuse(p.mapping);
    return rc;
}

/* --- receiving ---------------------------------------------------------------------------------- */

static int read_fragments(struct tarn_tcpx_comm *c, const struct tarn_tcpx_request *r,
                          struct tarn_tcpx_fragments *list)
{
    if (!c->plain)
        return tarn_tcpx_fragments_read(list, c->unpack.meta, c->begun, r->bytes, c->bounce_bytes);
    list->n = 0;
    tarn_tcpx_fragments_add(
        list,
        (struct tarn_tcpx_fragment){.src = c->begun % TARN_TCPX_REQUESTS * c->gear_chunk, .bytes = r->bytes});
    return tarn_tcpx_fragments_check(list, r->bytes, c->bounce_bytes, 0);
}

/* AGAIN: the unpacker has no room. */
static int begin_unpacking(struct tarn_tcpx_comm *c)
{
    struct tarn_tcpx_request *r = request_at(c, c->begun);
    int rc = r->in_place ? 0 : read_fragments(c, r, &c->gear->list);
    if (!rc && c->aim && !r->aimed) {
        r->aimed = true;
        r->dropped = !c->aim(r->owner, &r->into, r->bytes);
    }
    if (!rc && !r->in_place && !r->dropped)
        rc = tarn_tcpx_comm_unpack(c, &c->gear->list, &c->bounce, &r->into, &r->ticket);
    if (!rc)
        c->begun++;
    return rc;
}

static int end_unpacking(struct tarn_tcpx_comm *c)
{
    struct tarn_tcpx_request *r = request_at(c, c->ended);
    int rc = r->in_place || r->dropped ? 0 : tarn_tcpx_comm_unpacked(c, r->ticket);
    if (!rc)
        rc = tarn_tcpx_consumed(c->plugin, c->comm, r->request);
    if (!rc)
        end(c, r);
    return rc;
}

/* --- moving on ---------------------------------------------------------------------------------- */

static int test_oldest(struct tarn_tcpx_comm *c)
{
    const struct tarn_tcpx_request *r = request_at(c, c->there);
    int rc = c->sends ? tarn_tcpx_test(c->plugin, r->request)
                      : tarn_tcpx_test_recv(c->plugin, r->request, r->bytes);
    if (rc)
        return rc;
    c->there++;
    note_moved(c);
    if (c->sends) {
        c->begun = c->there;
        end(c, request_at(c, c->ended));
    }
    return 0;
}

/* Does the first kind of step that is possible. AGAIN: none is now. */
static int step(struct tarn_tcpx_comm *c)
{
    int rc = c->ended < c->begun ? end_unpacking(c) : TARN_E_AGAIN;
    if (rc == TARN_E_AGAIN && c->begun < c->there)
        rc = begin_unpacking(c);
    if (rc == TARN_E_AGAIN && c->there < c->posted)
        rc = test_oldest(c);
    return rc;
}

int tarn_tcpx_comm_progress(struct tarn_tcpx_comm *c)
{
    int moved = 0, rc = 0;
    while (rc == 0 && moved < 2 * TARN_TCPX_REQUESTS && tarn_tcpx_comm_busy(c)) {
        rc = step(c);
        moved += rc == 0;
    }
    if (rc && rc != TARN_E_AGAIN)
        return fail(c, rc);
    if (moved || !tarn_tcpx_comm_busy(c))
        return moved > 0;
    return check_stalled(c);
}
