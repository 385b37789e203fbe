/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcp/tcp_stage.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"

#define LINE 256u
enum { BATCH = 256 };

/* --- copiers ------------------------------------------------------------------------------------ */

int tarn_copiers_open(struct tarn_copiers *c, int device)
{
    if (device >= TARN_STAGE_DEVICES)
        return tarn_fail(TARN_E_NOT_REACHABLE, "tcp: device %d: only the first %d are used", device,
                         TARN_STAGE_DEVICES);
    struct tarn_copier *of = &c->of[device];
    if (of->queue)
        return 0;
    if (of->failure.code == TARN_E_UNAVAILABLE)
        return tarn_fail(TARN_E_UNAVAILABLE, "tcp: device %d failed and is of no more use to this process",
                         device);
    int rc = tarn_cuda_queue_open(device, &of->queue);
    return rc ? tarn_reason_keep(&of->failure, rc) : 0;
}

void tarn_copiers_close(struct tarn_copiers *c)
{
    for (int i = 0; i < TARN_STAGE_DEVICES; i++) {
        tarn_cuda_queue_close(c->of[i].queue);
        c->of[i].queue = NULL;
    }
}

/* Closing waits, for longer than this thread should: it is the only way to know that nothing more is copied.
 */
static void copier_fail(struct tarn_copier *of, int rc)
{
    tarn_reason_keep(&of->failure, rc);
    tarn_cuda_queue_close(of->queue);
    of->queue = NULL;
    of->turn++;
}

/* --- the ring ----------------------------------------------------------------------------------- */

int tarn_stage_new(struct tarn_stage **s_p)
{
    struct tarn_stage *s = calloc(1, sizeof(*s));
    void *ring = s ? mmap(NULL, TARN_STAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                   : MAP_FAILED;
    if (ring == MAP_FAILED) {
        free(s);
        return tarn_fail(TARN_E_NO_MEMORY, "tcp: out of memory");
    }
    int rc = tarn_cuda_pin(ring, TARN_STAGE_BYTES, true);
    if (rc) {
        munmap(ring, TARN_STAGE_BYTES);
        free(s);
        return rc;
    }
    s->ring = ring;
    *s_p = s;
    return 0;
}

void tarn_stage_free(struct tarn_stage *s)
{
    if (!s)
        return;
    tarn_cuda_unpin(s->ring);
    munmap(s->ring, TARN_STAGE_BYTES);
    free(s);
}

void tarn_stage_clear(struct tarn_stage *s)
{
    s->head = s->tail = s->sent = 0;
    s->first = s->count = s->passed = s->marked = 0;
}

struct tarn_stage_part *tarn_stage_part_at(struct tarn_stage *s, uint32_t i)
{
    return &s->parts[(s->first + i) % TARN_STAGE_PARTS];
}

uint64_t tarn_stage_room(const struct tarn_stage *s, uint8_t **memory_p)
{
    uint64_t at = s->head % TARN_STAGE_BYTES, free_bytes = TARN_STAGE_BYTES - (s->head - s->tail);
    uint64_t room = TARN_STAGE_BYTES - at < free_bytes ? TARN_STAGE_BYTES - at : free_bytes;
    *memory_p = s->ring + at;
    if (s->count == TARN_STAGE_PARTS)
        return 0;
    return room < TARN_STAGE_PART ? room : TARN_STAGE_PART;
}

struct tarn_stage_part *tarn_stage_add(struct tarn_stage *s, const struct tarn_copiers *c, int device,
                                       uint64_t bytes)
{
    struct tarn_stage_part *p = tarn_stage_part_at(s, s->count++);
    *p = (struct tarn_stage_part){
        .memory = s->ring + s->head % TARN_STAGE_BYTES,
        .bytes = bytes,
        .device = (uint32_t)device,
        .turn = c->of[device].turn - (c->of[device].queue == NULL),
    };
    s->head += bytes;
    p->end = s->head;
    return p;
}

void tarn_stage_zero(struct tarn_stage_part *p)
{
    memset(p->memory, 0, p->bytes);
    p->given = p->bytes;
}

struct tarn_stage_part *tarn_stage_grow(struct tarn_stage *s, uint64_t bytes)
{
    struct tarn_stage_part *p = s->count > s->marked ? tarn_stage_part_at(s, s->count - 1) : NULL;
    if (!p || p->last || p->given || p->bytes + bytes > TARN_STAGE_PART ||
        p->memory + p->bytes != s->ring + s->head % TARN_STAGE_BYTES)
        return NULL;
    p->bytes += bytes;
    s->head += bytes;
    p->end = s->head;
    return p;
}

void tarn_stage_align(struct tarn_stage *s)
{
    uint64_t round = (s->head + LINE - 1) / LINE * LINE;
    if (s->count == 0 || round - s->tail > TARN_STAGE_BYTES)
        return;
    s->head = tarn_stage_part_at(s, s->count - 1)->end = round;
}

/* --- giving ------------------------------------------------------------------------------------- */

/* Does its GPU still have the queue that it was meant for? */
static bool is_lost(const struct tarn_stage_part *p, const struct tarn_copiers *c)
{
    return p->turn != c->of[p->device].turn;
}

/* Copies of a part from its cursor on; how many. */
static uint32_t part_copies(const struct tarn_stage *s, const struct tarn_stage_part *p,
                            struct tarn_cuda_piece *out, uint32_t room)
{
    struct tarn_cursor at = p->at;
    uint64_t given = p->given;
    uint32_t n = 0;
    for (; n < room && given < p->bytes; n++) {
        void *there;
        uint64_t bytes = tarn_cursor_next(&at, p->pieces, p->npieces, p->bytes - given, &there);
        uint8_t *here = p->memory + given;
        out[n] = s->to_gpu ? (struct tarn_cuda_piece){here, there, bytes}
                           : (struct tarn_cuda_piece){there, here, bytes};
        given += bytes;
    }
    return n;
}

/* Of parts from the i-th on; the first that is not given whole. */
static uint32_t note_given(struct tarn_stage *s, uint32_t i, const struct tarn_cuda_piece *pieces,
                           size_t taken)
{
    for (size_t k = 0; k < taken; k++) {
        while (tarn_stage_part_at(s, i)->given == tarn_stage_part_at(s, i)->bytes)
            i++;
        struct tarn_stage_part *p = tarn_stage_part_at(s, i);
        void *there;
        p->given += tarn_cursor_next(&p->at, p->pieces, p->npieces, pieces[k].bytes, &there);
    }
    return i;
}

/* Copies of the parts from the i-th up to `end`, as far as the queue takes them. */
static int give_run(struct tarn_stage *s, uint32_t i, uint32_t end, struct tarn_cuda_queue *q)
{
    struct tarn_cuda_piece batch[BATCH];
    for (;;) {
        uint32_t n = 0;
        size_t taken = 0;
        for (uint32_t k = i; k < end && n < BATCH; k++)
            n += part_copies(s, tarn_stage_part_at(s, k), batch + n, BATCH - n);
        int rc = n ? tarn_cuda_copy(q, batch, n, &taken) : 0;
        i = note_given(s, i, batch, taken);
        if (rc || taken < n || n == 0)
            return rc;
    }
}

/* Marks those parts up to `end` that have been given whole. */
static int mark_run(struct tarn_stage *s, uint32_t end, struct tarn_cuda_queue *q)
{
    uint64_t mark;
    uint32_t n = s->marked;
    while (n < end && tarn_stage_part_at(s, n)->given == tarn_stage_part_at(s, n)->bytes)
        n++;
    int rc = n > s->marked ? tarn_cuda_mark(q, &mark) : 0;
    for (; !rc && s->marked < n; s->marked++)
        tarn_stage_part_at(s, s->marked)->mark = mark;
    return rc == TARN_E_AGAIN ? 0 : rc;
}

/* GPU by GPU. */
void tarn_stage_give(struct tarn_stage *s, struct tarn_copiers *c)
{
    while (s->marked < s->count) {
        const struct tarn_stage_part *p = tarn_stage_part_at(s, s->marked);
        struct tarn_copier *of = &c->of[p->device];
        uint32_t end = s->marked + 1;
        if (is_lost(p, c)) {
            s->marked++;
            continue;
        }
        while (end < s->count && tarn_stage_part_at(s, end)->device == p->device &&
               tarn_stage_part_at(s, end)->turn == p->turn)
            end++;
        int rc = give_run(s, s->marked, end, of->queue);
        if (!rc)
            rc = mark_run(s, end, of->queue);
        if (rc)
            copier_fail(of, rc);
        else if (s->marked < end)
            return;
    }
}

/* --- passing ------------------------------------------------------------------------------------ */

static bool passes(struct tarn_stage_part *p, struct tarn_copiers *c)
{
    struct tarn_copier *of = &c->of[p->device];
    int rc = is_lost(p, c) ? 0 : tarn_cuda_poll(of->queue, p->mark);
    if (rc == TARN_E_AGAIN)
        return false;
    if (rc)
        copier_fail(of, rc);
    p->failure = is_lost(p, c) ? &of->failure : NULL;
    return true;
}

bool tarn_stage_move(struct tarn_stage *s, struct tarn_copiers *c)
{
    uint32_t before = s->passed;
    tarn_stage_give(s, c);
    while (s->passed < s->marked && passes(tarn_stage_part_at(s, s->passed), c))
        s->passed++;
    return s->passed > before;
}

bool tarn_stage_moving(const struct tarn_stage *s)
{
    return s->passed < s->count;
}

struct tarn_stage_part *tarn_stage_passed(struct tarn_stage *s, uint32_t i)
{
    return i < s->passed ? tarn_stage_part_at(s, i) : NULL;
}

uint64_t tarn_stage_gather(struct tarn_stage *s, bool failed, uint32_t *part, uint64_t most,
                           struct iovec iov[], uint32_t room)
{
    const struct tarn_stage_part *p;
    uint64_t total = 0;
    for (uint32_t i = 0; i < room && total < most; i++, *part += 1) {
        p = tarn_stage_passed(s, *part);
        if (!p || (p->failure && !failed))
            break;
        uint64_t sent = *part == 0 ? s->sent : 0, left = p->bytes - sent;
        iov[i] = (struct iovec){p->memory + sent, left < most - total ? left : most - total};
        total += iov[i].iov_len;
    }
    return total;
}

void tarn_stage_drop(struct tarn_stage *s)
{
    s->tail = tarn_stage_part_at(s, 0)->end;
    s->first = (s->first + 1) % TARN_STAGE_PARTS;
    s->count--;
    s->passed--;
    s->marked--;
    s->sent = 0;
    if (s->count == 0)
        tarn_stage_clear(s);
}

const struct tarn_reason *tarn_stage_sent(struct tarn_stage *s, uint64_t bytes)
{
    const struct tarn_reason *failure = NULL;
    for (s->sent += bytes; s->count && s->sent >= tarn_stage_part_at(s, 0)->bytes;) {
        const struct tarn_stage_part *p = tarn_stage_part_at(s, 0);
        uint64_t rest = s->sent - p->bytes;
        failure = failure ? failure : p->failure;
        tarn_stage_drop(s);
        s->sent = rest;
    }
    return failure;
}
