/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpu/ring.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/error.h"
#include "transport/cuda/cuda.h"

/* What the two sides write is on lines of its own, of the GPU's size. */
#define LINE 128

struct shared {
    _Alignas(LINE) uint64_t done;
    _Alignas(LINE) uint32_t state;
    _Alignas(LINE) uint64_t tail;
    _Alignas(LINE) struct tarn_half slots[];
};

struct tarn_ring_consumer {
    struct tarn_ring shared; /* as producers see it */
    uint64_t head;           /* number of the next command */
    uint64_t done;           /* as published */
    _Atomic uint32_t state;  /* as published */
    uint32_t under_way;      /* of those in [done, head) */
    uint32_t rows, ranges;   /* limits of indexes */
    struct shared *memory;
    size_t bytes; /* of memory */
    bool pinned;
    uint64_t completed[]; /* a bit for each slot: completed, and not yet counted by done */
};

/* --- opcodes ------------------------------------------------------------------------------------ */

enum names { NOTHING, ROW, RANGE };

static const struct op {
    const char *name; /* NULL: no such opcode */
    enum names index;
    bool moves; /* has address, offset and bytes */
    bool tells; /* has a notification */
} ops[TARN_RING_OPS] = {
    [TARN_RING_GET] = {"GET", ROW, true, false},
    [TARN_RING_WRITE] = {"WRITE", RANGE, true, true},
    [TARN_RING_REFRESH] = {"REFRESH", ROW, false, false},
    [TARN_RING_QUIET] = {"QUIET", NOTHING, false, false},
};

/* --- life --------------------------------------------------------------------------------------- */

static size_t shared_bytes(uint32_t size)
{
    return sizeof(struct shared) + size * (2 * sizeof(struct tarn_half) + sizeof(uint64_t));
}

/* A child of fork() must not make the parent's pages copies, which the GPU would not see: so it is shared. */
static int map_shared(struct tarn_ring_consumer *r, uint32_t size)
{
    r->bytes = shared_bytes(size);
    struct shared *s =
        mmap(NULL, r->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (s == MAP_FAILED)
        return tarn_fail(TARN_E_NO_MEMORY, "ring of %u commands: %zu bytes of shared memory: %m: free some",
                         size, r->bytes);
    r->memory = s;
    r->shared = (struct tarn_ring){.slots = s->slots,
                                   .statuses = (uint64_t *)(void *)(s->slots + 2 * size),
                                   .done = &s->done,
                                   .state = &s->state,
                                   .tail = &s->tail,
                                   .size = size};
    return 0;
}

int tarn_ring_new(const struct tarn_ring_options *o, struct tarn_ring_consumer **r_p)
{
    if (o->size < 2 || o->size > TARN_RING_SIZE_MAX || (o->size & (o->size - 1)) != 0)
        return tarn_fail(TARN_E_INVALID, "ring: %u commands: give a power of two, 2 to %d", o->size,
                         TARN_RING_SIZE_MAX);
    size_t words = (o->size + 63) / 64;
    struct tarn_ring_consumer *r = calloc(1, sizeof *r + words * sizeof r->completed[0]);
    if (!r)
        return tarn_fail(TARN_E_NO_MEMORY, "ring of %u commands: out of memory: free some", o->size);
    r->rows = o->rows;
    r->ranges = o->ranges;
    int rc = map_shared(r, o->size);
    if (rc != 0)
        goto free_consumer;
    if (o->pinned)
        rc = tarn_cuda_pin(r->memory, r->bytes, true);
    if (rc != 0)
        goto unmap;
    r->pinned = o->pinned;
    *r_p = r;
    return 0;

unmap:
    munmap(r->memory, r->bytes);
free_consumer:
    free(r);
    return rc;
}

void tarn_ring_free(struct tarn_ring_consumer *r)
{
    if (!r)
        return;
    if (r->pinned)
        tarn_cuda_unpin(r->memory);
    munmap(r->memory, r->bytes);
    free(r);
}

const struct tarn_ring *tarn_ring_shared(const struct tarn_ring_consumer *r)
{
    return &r->shared;
}

/* --- state -------------------------------------------------------------------------------------- */

/* The first reason stays. */
static void end_ring(struct tarn_ring_consumer *r, int code)
{
    uint32_t works = 0;
    if (atomic_compare_exchange_strong(&r->state, &works, (uint32_t)code))
        tarn_dev_store32(&r->memory->state, (uint32_t)code);
}

void tarn_ring_abort(struct tarn_ring_consumer *r)
{
    end_ring(r, TARN_E_CANCELED);
}

static int check_state(const struct tarn_ring_consumer *r)
{
    int state = (int)r->state;
    if (state == 0)
        return 0;
    return tarn_fail(state, "ring: %s: make another",
                     state == TARN_E_CANCELED ? "it was aborted" : "a kernel wrote what is no command there");
}

/* --- take --------------------------------------------------------------------------------------- */

static int broken(struct tarn_ring_consumer *r, const struct tarn_half half[2])
{
    end_ring(r, TARN_E_PROTOCOL);
    return tarn_fail(TARN_E_PROTOCOL,
                     "ring: command %llu: stamps %#x and %#x in its slot, not %#x: write to the ring only by "
                     "tarn_dev_ring_push(), one thread at a time",
                     (unsigned long long)r->head, (uint32_t)(half[0].b >> 32), (uint32_t)(half[1].b >> 32),
                     tarn_ring_stamp(r->head));
}

/* Whether a half with this b may lie in the slot while the next command does not: it is of the round before.
 */
static bool is_older(const struct tarn_ring_consumer *r, uint64_t b)
{
    uint64_t n = r->head, size = r->shared.size, stamp = b >> 32;
    return stamp == 0 || (n >= size && stamp == tarn_ring_stamp(n - size));
}

/*
 * Copies the next command's halves. One look at each b, so a producer that never rests is not waited for.
 * AGAIN: one is not there.
 */
static int look(struct tarn_ring_consumer *r, struct tarn_half half[2])
{
    uint64_t stamp = tarn_ring_stamp(r->head);
    const struct tarn_half *at = &r->shared.slots[2 * (r->head & (r->shared.size - 1))];

    for (int i = 0; i < 2; i++) {
        half[i].b = tarn_dev_load64(&at[i].b);
        half[i].a = tarn_dev_load64(&at[i].a);
    }
    bool first = half[0].b >> 32 == stamp, second = half[1].b >> 32 == stamp;
    if (first && second)
        return 0;
    if ((first || is_older(r, half[0].b)) && (second || is_older(r, half[1].b)))
        return TARN_E_AGAIN;
    return broken(r, half);
}

static struct tarn_ring_command decode(const struct tarn_half half[2])
{
    return (struct tarn_ring_command){.op = (uint32_t)half[1].b >> 24,
                                      .bytes = (uint32_t)half[1].b & TARN_RING_BYTES_MAX,
                                      .address = half[0].a,
                                      .index = (uint32_t)half[0].b,
                                      .offset = (uint32_t)half[1].a,
                                      .notify = (uint32_t)(half[1].a >> 32)};
}

static int check_index(const struct tarn_ring_consumer *r, uint64_t n, const struct tarn_ring_command *c)
{
    const struct op *op = &ops[c->op];
    uint32_t limit = op->index == ROW ? r->rows : op->index == RANGE ? r->ranges : 1;

    if (c->index < limit)
        return 0;
    return tarn_fail(TARN_E_INVALID, "ring: command %llu: %s names number %u: there are %u",
                     (unsigned long long)n, op->name, c->index, limit);
}

static int check_move(uint64_t n, const struct tarn_ring_command *c)
{
    const struct op *op = &ops[c->op];
    uint64_t end;

    if (c->notify != 0 && !op->tells)
        return tarn_fail(TARN_E_INVALID, "ring: command %llu: %s has a notification: only WRITE has one",
                         (unsigned long long)n, op->name);
    if (!op->moves && (c->bytes || c->address || c->offset))
        return tarn_fail(TARN_E_INVALID, "ring: command %llu: %s moves nothing: give no address and bytes",
                         (unsigned long long)n, op->name);
    if (op->moves && c->bytes == 0)
        return tarn_fail(TARN_E_INVALID, "ring: command %llu: %s of 0 bytes: give at least 1",
                         (unsigned long long)n, op->name);
    if (op->moves && (c->address == 0 || __builtin_add_overflow(c->address, c->bytes, &end)))
        return tarn_fail(TARN_E_INVALID, "ring: command %llu: %s of %u bytes at %#llx: no memory is there",
                         (unsigned long long)n, op->name, c->bytes, (unsigned long long)c->address);
    return 0;
}

static int check_command(const struct tarn_ring_consumer *r, uint64_t n, const struct tarn_ring_command *c)
{
    if (!ops[c->op].name)
        return tarn_fail(TARN_E_INVALID, "ring: command %llu: opcode %u: there is no such command",
                         (unsigned long long)n, c->op);
    int rc = check_index(r, n, c);
    return rc ? rc : check_move(n, c);
}

int tarn_ring_take(struct tarn_ring_consumer *r, struct tarn_ring_command *c, uint64_t *number_p)
{
    struct tarn_half half[2];
    int rc = check_state(r);

    if (rc != 0)
        return rc;
    if (r->head - r->done == r->shared.size)
        return TARN_E_AGAIN; /* whatever a producer wrote there, it had no room */
    rc = look(r, half);
    if (rc != 0)
        return rc;
    uint64_t number = r->head++;
    r->under_way++;
    *number_p = number;
    *c = decode(half);
    rc = check_command(r, number, c);
    if (rc != 0)
        tarn_ring_complete(r, number, rc);
    return rc;
}

/* --- complete ----------------------------------------------------------------------------------- */

static uint64_t *completed_word(struct tarn_ring_consumer *r, uint64_t number, uint64_t *bit)
{
    uint32_t slot = (uint32_t)number & (r->shared.size - 1);
    *bit = 1ull << slot % 64;
    return &r->completed[slot / 64];
}

/* Counts the command `done`, and those behind it that had completed before it. */
static void count(struct tarn_ring_consumer *r)
{
    uint64_t bit, *word;

    while (++r->done < r->head && (*(word = completed_word(r, r->done, &bit)) & bit))
        *word &= ~bit;
    tarn_dev_store64(&r->memory->done, r->done);
}

int tarn_ring_complete(struct tarn_ring_consumer *r, uint64_t number, int status)
{
    uint64_t bit, *word = completed_word(r, number, &bit);

    if (number < r->done || number >= r->head || (*word & bit))
        return tarn_fail(TARN_E_INVALID, "ring: command %llu is not under way: complete what was taken, once",
                         (unsigned long long)number);
    r->under_way--;
    tarn_dev_store64(&r->shared.statuses[number & (r->shared.size - 1)],
                     (uint64_t)tarn_ring_stamp(number) << 32 | (uint32_t)status);
    if (number == r->done)
        count(r);
    else
        *word |= bit;
    return 0;
}

uint64_t tarn_ring_done(const struct tarn_ring_consumer *r)
{
    return r->done;
}

uint32_t tarn_ring_under_way(const struct tarn_ring_consumer *r)
{
    return r->under_way;
}
