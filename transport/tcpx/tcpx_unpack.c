/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job goes through these phases; the host's halves are done at once, so a job skips what the GPU has no
 * part in:
 *   DOWN   fragments to staging memory
 *   UP     fragments, or staging memory, to the destination
 *   MARK   behind all that was given
 * Only the youngest job can be in one, since copies are carried out in the order in which they are given:
 * while a queue has no room for all of its copies no other job begins.
 */
#include "transport/tcpx/tcpx_unpack.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/text.h"

#define BATCH 4096 /* copies in one call; the capacity of a launch */
#define DEVICES 64 /* devices remembered as reachable */

enum phase { IDLE, DOWN, UP, MARK };

struct job {
    uint64_t mark;                    /* 0: the queue has no part in it */
    bool scatter;                     /* poll copies from staging memory */
    struct tarn_tcpx_fragment staged; /* the whole message, in staging memory */
    struct tarn_tcpx_into into;
};

struct tarn_tcpx_unpacker {
    enum tarn_tcpx_way way;
    int device;
    struct tarn_cuda_queue *queue;
    uint64_t reached; /* bit set of devices */
    uint32_t chunk_bytes, depth;
    uint8_t *staging; /* depth chunks; NULL: not needed so far */
    uint64_t started, ended;
    struct job jobs[TARN_TCPX_SLOTS]; /* of ticket t: jobs[t % depth] */
    /* of the youngest job: */
    enum phase phase;
    bool each;                /* one call for each copy */
    struct tarn_tcpx_cut cut; /* what is not in the batch yet */
    struct tarn_piece stage;  /* its staging memory */
    uint32_t batch_at, nbatch;
    struct tarn_cuda_piece batch[BATCH];
    struct tarn_tcpx_fragment rest[TARN_TCPX_FRAGMENTS]; /* the part of a list that start() could not give */
};

/* --- open, close -------------------------------------------------------------------------------- */

int tarn_tcpx_unpack_open(enum tarn_tcpx_way way, int device, uint32_t chunk_bytes, uint32_t depth,
                          struct tarn_tcpx_unpacker **u_p)
{
    if (depth == 0 || depth > TARN_TCPX_SLOTS || chunk_bytes == 0 || chunk_bytes > TARN_TCPX_MESSAGE_MAX)
        return tarn_fail(TARN_E_INVALID,
                         "tcpx: %u messages of %u bytes to unpack at once: 1 to %d of 1 to %u can be", depth,
                         chunk_bytes, TARN_TCPX_SLOTS, TARN_TCPX_MESSAGE_MAX);
    struct tarn_tcpx_unpacker *u = calloc(1, sizeof(*u));
    if (!u)
        return tarn_fail(TARN_E_NO_MEMORY, "tcpx: out of memory");
    int rc = device < 0 ? 0 : tarn_cuda_queue_open(device, &u->queue);
    if (rc) {
        free(u);
        return rc;
    }
    u->way = way;
    u->device = device;
    u->chunk_bytes = chunk_bytes;
    u->depth = depth;
    *u_p = u;
    return 0;
}

static size_t staging_bytes(const struct tarn_tcpx_unpacker *u)
{
    return (size_t)u->depth * u->chunk_bytes;
}

static int staging_open(struct tarn_tcpx_unpacker *u)
{
    if (u->staging)
        return 0;
    void *at = mmap(NULL, staging_bytes(u), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return tarn_fail(TARN_E_NO_MEMORY, "tcpx: %zu bytes of staging memory: %m", staging_bytes(u));
    int rc = tarn_cuda_pin(at, staging_bytes(u), true);
    if (rc) {
        munmap(at, staging_bytes(u));
        return rc;
    }
    u->staging = at;
    return 0;
}

void tarn_tcpx_unpack_close(struct tarn_tcpx_unpacker *u)
{
    if (!u)
        return;
    tarn_cuda_queue_close(u->queue);
    if (u->staging) {
        tarn_cuda_unpin(u->staging);
        munmap(u->staging, staging_bytes(u));
    }
    free(u);
}

/* --- what is reached ---------------------------------------------------------------------------- */

static bool by_cpu(enum tarn_cuda_kind kind)
{
    return kind != TARN_CUDA_DEVICE;
}

static bool by_gpu(enum tarn_cuda_kind kind)
{
    return kind != TARN_CUDA_HOST;
}

static int check_reached(struct tarn_tcpx_unpacker *u, enum tarn_cuda_kind kind, int device)
{
    if (kind != TARN_CUDA_DEVICE)
        return 0;
    if (!u->queue || device < 0 || device >= DEVICES)
        return tarn_fail(TARN_E_INVALID,
                         "tcpx: memory of device %d by a queue of device %d: open one with a device", device,
                         u->device);
    if (device != u->device && !(u->reached & 1ull << device)) {
        if (!tarn_cuda_reaches(u->device, device))
            return tarn_fail(TARN_E_NOT_REACHABLE,
                             "tcpx: device %d does not reach memory of device %d: use the NIC of that device",
                             u->device, device);
        u->reached |= 1ull << device;
    }
    return 0;
}

static int check(struct tarn_tcpx_unpacker *u, const struct tarn_tcpx_fragments *f,
                 const struct tarn_tcpx_bounce *bounce, const struct tarn_tcpx_into *into)
{
    if (f->bytes > u->chunk_bytes || into->offset > into->bytes || f->bytes > into->bytes - into->offset)
        return tarn_fail(TARN_E_INVALID,
                         "tcpx: a message of %llu bytes for offset %llu of %llu: messages have %u at most",
                         (unsigned long long)f->bytes, (unsigned long long)into->offset,
                         (unsigned long long)into->bytes, u->chunk_bytes);
    if (f->linear_bytes && !bounce->linear)
        return tarn_fail(TARN_E_INVALID,
                         "tcpx: a message with linear fragments, and no buffer that they are in");
    int rc = check_reached(u, bounce->kind, bounce->device);
    return rc ? rc : check_reached(u, into->kind, into->device);
}

/* --- copies ------------------------------------------------------------------------------------- */

static uint8_t *staging_at(const struct tarn_tcpx_unpacker *u, uint64_t ticket)
{
    return u->staging + (size_t)(ticket % u->depth) * u->chunk_bytes;
}

static struct job *job_at(struct tarn_tcpx_unpacker *u, uint64_t ticket)
{
    return &u->jobs[ticket % u->depth];
}

/* From bounce memory to pieces. */
static struct tarn_tcpx_cut cut_of(const struct tarn_tcpx_fragments *f, const struct tarn_tcpx_bounce *bounce,
                                   const struct tarn_piece *pieces, uint32_t npieces, uint64_t offset)
{
    return (struct tarn_tcpx_cut){.at = f->at,
                                  .n = f->n,
                                  .pool = bounce->pool,
                                  .linear = bounce->linear,
                                  .pieces = pieces,
                                  .npieces = npieces,
                                  .cursor = tarn_cursor_at(pieces, npieces, offset)};
}

/* From staging memory to where the job's message belongs. */
static struct tarn_tcpx_cut cut_of_staged(struct tarn_tcpx_unpacker *u, uint64_t ticket)
{
    const struct job *j = job_at(u, ticket);
    const struct tarn_tcpx_into *into = &j->into;
    return (struct tarn_tcpx_cut){.at = &j->staged,
                                  .n = j->staged.bytes > 0,
                                  .pool = staging_at(u, ticket),
                                  .pieces = into->pieces,
                                  .npieces = into->npieces,
                                  .cursor = tarn_cursor_at(into->pieces, into->npieces, into->offset)};
}

static void copy_by_cpu(struct tarn_tcpx_cut cut)
{
    struct tarn_cuda_piece some[64];
    for (size_t n; (n = tarn_tcpx_cut_next(&cut, some, 64)) > 0;)
        for (size_t i = 0; i < n; i++)
            memcpy(some[i].to, some[i].from, some[i].bytes);
}

/* --- giving ------------------------------------------------------------------------------------- */

/* Gives the batch: in one call, or one call for each copy to use the copy engines. */
static int give_batch(struct tarn_tcpx_unpacker *u)
{
    while (u->batch_at < u->nbatch) {
        size_t n = u->each ? 1 : u->nbatch - u->batch_at, taken;
        int rc = tarn_cuda_copy(u->queue, u->batch + u->batch_at, n, &taken);
        u->batch_at += (uint32_t)taken;
        if (rc)
            return rc;
        if (taken < n)
            return TARN_E_AGAIN;
    }
    return 0;
}

static int give_cut(struct tarn_tcpx_unpacker *u)
{
    int rc = give_batch(u);
    while (!rc) {
        u->batch_at = 0;
        u->nbatch = (uint32_t)tarn_tcpx_cut_next(&u->cut, u->batch, BATCH);
        if (!u->nbatch)
            break;
        rc = give_batch(u);
    }
    return rc;
}

/* Enters the youngest job's next phase once all of this one is given. */
static int step(struct tarn_tcpx_unpacker *u)
{
    struct job *j = job_at(u, u->started);
    int rc = u->phase == MARK ? tarn_cuda_mark(u->queue, &j->mark) : give_cut(u);
    if (rc)
        return rc;
    if (u->phase == DOWN && !j->scatter) {
        u->cut = cut_of_staged(u, u->started);
        u->phase = UP;
    } else {
        u->phase = u->phase == MARK ? IDLE : MARK;
    }
    return 0;
}

/* Takes the youngest job as far as possible now. AGAIN: not all the way. */
static int go_on(struct tarn_tcpx_unpacker *u)
{
    int rc = 0;
    while (!rc && u->phase != IDLE)
        rc = step(u);
    return rc;
}

/* --- start -------------------------------------------------------------------------------------- */

static bool is_staged(const struct tarn_tcpx_unpacker *u, const struct tarn_tcpx_bounce *bounce,
                      const struct tarn_tcpx_into *into)
{
    return !by_gpu(bounce->kind) || !by_gpu(into->kind) ||
           (u->way == TARN_TCPX_WAY_HOST && !by_cpu(into->kind));
}

/* The CPU copies each half whose both ends are host memory. */
static void begin_staged(struct tarn_tcpx_unpacker *u, struct job *j, const struct tarn_tcpx_fragments *f,
                         const struct tarn_tcpx_bounce *bounce)
{
    u->stage = (struct tarn_piece){staging_at(u, u->started), u->chunk_bytes, 0, 1};
    j->staged = (struct tarn_tcpx_fragment){0, 0, (uint32_t)f->bytes, false};
    j->scatter = by_cpu(j->into.kind);
    u->cut = cut_of(f, bounce, &u->stage, 1, 0);
    u->phase = DOWN;
    if (by_cpu(bounce->kind)) {
        copy_by_cpu(u->cut);
        u->cut = cut_of_staged(u, u->started);
        u->phase = UP;
    }
}

/* Keeps the part that start() could not give, since the list belongs to the caller. */
static int keep_rest(struct tarn_tcpx_unpacker *u)
{
    memcpy(u->rest, u->cut.at, u->cut.n * sizeof(u->rest[0]));
    u->cut.at = u->rest;
    return 0;
}

int tarn_tcpx_unpack_start(struct tarn_tcpx_unpacker *u, const struct tarn_tcpx_fragments *f,
                           const struct tarn_tcpx_bounce *bounce, const struct tarn_tcpx_into *into,
                           uint64_t *ticket_p)
{
    bool cpu = by_cpu(bounce->kind) && by_cpu(into->kind), staged = !cpu && is_staged(u, bounce, into);
    int rc = u->started - u->ended == u->depth ? TARN_E_AGAIN : go_on(u);
    if (!rc)
        rc = check(u, f, bounce, into);
    if (!rc && staged)
        rc = staging_open(u);
    if (rc)
        return rc;
    struct job *j = job_at(u, ++u->started);
    *j = (struct job){.into = *into};
    *ticket_p = u->started;
    u->each = u->way != TARN_TCPX_WAY_KERNEL;
    if (staged) {
        begin_staged(u, j, f, bounce);
    } else {
        u->cut = cut_of(f, bounce, into->pieces, into->npieces, into->offset);
        u->phase = UP;
    }
    if (cpu) {
        copy_by_cpu(u->cut);
        u->phase = IDLE;
    }
    rc = go_on(u);
    return rc == TARN_E_AGAIN ? keep_rest(u) : rc;
}

/* --- poll --------------------------------------------------------------------------------------- */

int tarn_tcpx_unpack_poll(struct tarn_tcpx_unpacker *u, uint64_t ticket)
{
    int rc = go_on(u);
    if (rc && rc != TARN_E_AGAIN)
        return rc;
    while (u->ended < ticket && u->ended < u->started) {
        struct job *j = job_at(u, u->ended + 1);
        if (u->ended + 1 == u->started && u->phase != IDLE)
            return TARN_E_AGAIN;
        rc = j->mark ? tarn_cuda_poll(u->queue, j->mark) : 0;
        if (rc)
            return rc;
        if (j->scatter)
            copy_by_cpu(cut_of_staged(u, u->ended + 1));
        u->ended++;
    }
    return ticket <= u->ended ? 0 : TARN_E_AGAIN;
}
