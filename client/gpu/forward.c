/* SPDX-License-Identifier: Apache-2.0 */
#include <sched.h>
#include <stdlib.h>
#include <utlist.h>

#include "base/error.h"
#include "client/check.h"
#include "client/client.h"
#include "client/gpu/forward_impl.h"
#include "client/gpu/forwards.h"
#include "client/gpu/near.h"
#include "client/window/lender.h"

/* --- what was given ----------------------------------------------------------------------------- */

static int check_sizes(const struct tarn_forward_options *o)
{
    if (o->bytes == 0)
        return tarn_fail(TARN_E_INVALID, "forward: bytes 0: a part has at least 1");
    if (o->slots == 0 || o->slots > TARN_FORWARD_PARTS_MAX)
        return tarn_fail(TARN_E_INVALID, "forward: slots %u: 1 to %u", o->slots, TARN_FORWARD_PARTS_MAX);
    if (o->parts == 0 || o->parts > TARN_FORWARD_PARTS_MAX)
        return tarn_fail(TARN_E_INVALID, "forward: parts %u: 1 to %u", o->parts, TARN_FORWARD_PARTS_MAX);
    return 0;
}

static int check_lease(const struct tarn_client *c, const struct tarn_forward_options *o)
{
    const struct tarn_lease *l = o->lease;
    const uint64_t needed = (uint64_t)o->slots * o->bytes;
    if (!l || l->window->lender->client != c)
        return tarn_fail(TARN_E_INVALID, "forward: the lease is NULL, or of another client");
    if (!l->write)
        return tarn_fail(TARN_E_INVALID,
                         "forward: peers may only read lease %u: lease it with TARN_LEASE_WRITE", l->slot);
    if (l->runs.n != 1 || tarn_piece_span(&l->runs.piece[0]) != l->runs.bytes)
        return tarn_fail(TARN_E_INVALID, "forward: lease %u has several runs: lease one for it", l->slot);
    if (l->runs.bytes < needed)
        return tarn_fail(TARN_E_INVALID,
                         "forward: lease %u has %llu bytes, and %u slots of %u bytes need %llu", l->slot,
                         (unsigned long long)l->runs.bytes, o->slots, o->bytes, (unsigned long long)needed);
    return 0;
}

static int check_final(const struct tarn_forward_options *o)
{
    const uintptr_t to = (uintptr_t)o->to, landing = (uintptr_t)o->lease->runs.piece[0].addr;
    const uint64_t bytes = (uint64_t)o->parts * o->bytes;
    if (!to || to + bytes < to)
        return tarn_fail(TARN_E_INVALID, "forward: to %p: %llu bytes: no memory is there", o->to,
                         (unsigned long long)bytes);
    if (to < landing + (uint64_t)o->slots * o->bytes && landing < to + bytes)
        return tarn_fail(TARN_E_INVALID,
                         "forward: to %p: lies in the landing place, or that in it: give other memory",
                         o->to);
    return 0;
}

static int check_options(const struct tarn_client *c, const struct tarn_forward_options *o)
{
    int rc = tarn_flags_check("forward", o->flags, 0);
    if (!rc)
        rc = check_sizes(o);
    if (!rc)
        rc = check_lease(c, o);
    return rc ? rc : check_final(o);
}

/* --- making ------------------------------------------------------------------------------------- */

static int no_memory(void)
{
    return tarn_fail(TARN_E_NO_MEMORY, "forward: out of memory: free some, or make fewer slots and parts");
}

static struct tarn_forward *alloc(struct tarn_client *c, const struct tarn_forward_options *o)
{
    struct tarn_forward *f = calloc(1, sizeof(*f));
    if (!f)
        return NULL;
    f->client = c;
    f->lease = o->lease;
    f->bytes = o->bytes;
    f->slots = o->slots;
    f->parts = o->parts;
    f->landing = (struct tarn_forward_place){
        .name = "landing place", .at = o->lease->runs.piece[0].addr, .bytes = (uint64_t)o->slots * o->bytes};
    f->final = (struct tarn_forward_place){
        .name = "final place", .at = o->to, .bytes = (uint64_t)o->parts * o->bytes};
    f->slot_batch = calloc(f->slots, sizeof(f->slot_batch[0]));
    f->part_batch = calloc(f->parts, sizeof(f->part_batch[0]));
    if (f->slot_batch && f->part_batch)
        return f;
    free(f->slot_batch);
    free(f->part_batch);
    free(f);
    return NULL;
}

static int make(struct tarn_forward *f)
{
    cpu_set_t before;
    bool moved = f->device >= 0 && tarn_near_go(f->device, &before);
    int rc = tarn_forward_memory_new(f);
    if (!rc)
        rc = tarn_forward_thread_start(f);
    if (moved)
        sched_setaffinity(0, sizeof(before), &before);
    return rc;
}

static struct tarn_lent *lent_of(const struct tarn_forward *f)
{
    return &f->lease->window->lender->lent;
}

static int begin(struct tarn_forward *f)
{
    int rc = tarn_forward_memory_look(f);
    if (!rc)
        rc = tarn_lent_forward_begin(lent_of(f), f->lease);
    f->owns = rc == 0;
    return rc ? rc : make(f);
}

/* --- ending ------------------------------------------------------------------------------------- */

static void stop(struct tarn_forward *f)
{
    if (!f->started)
        return;
    tarn_forward_end(f, TARN_E_CANCELED);
    atomic_store(&f->cancel.on, true);
    pthread_join(f->thread, NULL);
    f->started = false;
}

static void forward_free(struct tarn_forward *f)
{
    stop(f);
    if (f->owns)
        tarn_lent_forward_end(lent_of(f), f->lease);
    tarn_forward_memory_free(f);
    free(f->slot_batch);
    free(f->part_batch);
    free(f);
}

/* --- calls -------------------------------------------------------------------------------------- */

int tarn_forward_new(struct tarn_client *c, const struct tarn_forward_options *given,
                     struct tarn_forward **f_p)
{
    struct tarn_forward_options o;
    struct tarn_reason why;
    int rc = tarn_client_enter(c);
    if (!rc)
        rc = tarn_out_check("forward", f_p);
    if (!rc)
        rc = tarn_options_copy(&o, sizeof(o), given);
    if (!rc)
        rc = check_options(c, &o);
    if (rc)
        return rc;
    struct tarn_forward *f = alloc(c, &o);
    if (!f)
        return no_memory();
    if (tarn_reason_keep(&why, begin(f))) {
        forward_free(f);
        return tarn_reason_fail(&why);
    }
    pthread_mutex_lock(&c->forwards_lock);
    DL_APPEND(c->forwards, f);
    pthread_mutex_unlock(&c->forwards_lock);
    *f_p = f;
    return 0;
}

int tarn_forward_arrivals(const struct tarn_forward *f, struct tarn_arrivals *a)
{
    if (!f || !a)
        return tarn_fail(TARN_E_INVALID,
                         "forward: NULL: pass what tarn_forward_new() made, and room for the answer");
    *a = (struct tarn_arrivals){.counts = f->counts->parts,
                                .total = &f->counts->total,
                                .state = &f->counts->state,
                                .parts = f->parts};
    return 0;
}

void tarn_forward_abort(struct tarn_forward *f)
{
    if (f && tarn_client_enter(f->client) == 0)
        stop(f);
}

void tarn_forward_free(struct tarn_forward *f)
{
    if (!f || tarn_client_enter(f->client) != 0)
        return;
    pthread_mutex_lock(&f->client->forwards_lock);
    DL_DELETE(f->client->forwards, f);
    pthread_mutex_unlock(&f->client->forwards_lock);
    forward_free(f);
}

void tarn_forwards_close(struct tarn_client *c)
{
    while (c->forwards)
        tarn_forward_free(c->forwards);
}
