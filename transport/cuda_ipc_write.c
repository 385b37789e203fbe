/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/cuda_ipc_write.h"

#define LARGE (16ull << 20) /* runs from this size on go to the copy engines */

static inline struct tarn_cuda_piece piece_of(const struct tarn_ipc_run *r, uint64_t bytes, bool put)
{
    return put ? (struct tarn_cuda_piece){r->memory, r->pool, bytes}
               : (struct tarn_cuda_piece){r->pool, r->memory, bytes};
}

void tarn_ipc_write_large(struct tarn_ipc_writer *o, struct tarn_ipc_run *r)
{
    o->large = piece_of(r, r->bytes, o->put);
    o->end = o->at;
    r->bytes = 0;
}

static inline bool write_run(struct tarn_ipc_writer *o, struct tarn_ipc_run *r)
{
    if (r->bytes >= LARGE && o->at < o->end)
        tarn_ipc_write_large(o, r);
    while (r->bytes > 0) {
        uint64_t n = r->bytes < TARN_CUDA_PIECE_MAX ? r->bytes : TARN_CUDA_PIECE_MAX;
        if (o->at == o->end)
            return false;
        *o->at++ = piece_of(r, n, o->put);
        o->bytes += n;
        *r = (struct tarn_ipc_run){r->pool + n, r->memory + n, r->bytes - n};
    }
    return true;
}

bool tarn_ipc_write_run(struct tarn_ipc_writer *o, struct tarn_ipc_run *r)
{
    return write_run(o, r);
}

/* The next contiguous range of a work's pieces; false at the end. */
static inline bool next_range(struct tarn_cursor *c, const struct tarn_work *w, uint8_t **addr,
                              uint64_t *bytes)
{
    while (c->piece < w->npieces) {
        const struct tarn_piece *p = &w->pieces[c->piece];
        uint64_t count = p->count ? p->count : 1, apart = p->stride ? p->stride : p->bytes;
        *addr = (uint8_t *)p->addr + c->run * apart;
        *bytes = p->bytes;
        if (apart == p->bytes) {
            *bytes *= count;
            count = 1;
        }
        if (++c->run >= count) {
            c->run = 0;
            c->piece++;
        }
        if (*bytes > 0)
            return true;
    }
    return false;
}

/*
 * What lists of thousands of pieces are made of: plain ones, each a run of its own, with nothing in them to
 * be cut or taken together. Stops at the first that is not so, at the end of the room or of the work's bytes.
 * False: it has written none.
 */
static bool write_plain(struct tarn_ipc_writer *o, const struct tarn_work *w, uint8_t *pool,
                        struct tarn_cursor *c, uint64_t *done)
{
    const struct tarn_piece *begin = w->pieces + c->piece, *end = w->pieces + w->npieces, *p;
    struct tarn_cuda_piece *at = o->at, *last = o->end;
    uint64_t offset = *done, left = w->bytes - *done;
    bool put = o->put;
    for (p = begin; p + 1 < end && at < last; p++, at++) {
        uint8_t *memory = p->addr;
        uint64_t n = p->bytes;
        if (p->count > 1 || n - 1 >= TARN_CUDA_PIECE_MAX || n > left || memory + n == p[1].addr)
            break;
        at->from = put ? memory : pool + offset;
        at->to = put ? pool + offset : memory;
        at->bytes = n;
        offset += n;
        left -= n;
    }
    o->at = at;
    o->bytes += offset - *done;
    c->piece += (uint32_t)(p - begin);
    *done = offset;
    return p > begin;
}

bool tarn_ipc_write_work(struct tarn_ipc_writer *o, const struct tarn_work *w, uint8_t *pool,
                         struct tarn_ipc_place *place)
{
    struct tarn_cursor c = place->cursor, next;
    struct tarn_ipc_run run = place->run;
    uint64_t n, done = place->done, total = w->bytes;
    uint8_t *memory;
    bool room = true;
    while (done < total) {
        next = c;
        if (!next_range(&next, w, &memory, &n))
            break;
        if (run.bytes > 0 && memory != run.memory + run.bytes)
            room = write_run(o, &run);
        if (!room)
            break;
        if (run.bytes == 0 && c.run == 0 && write_plain(o, w, pool, &c, &done))
            continue;
        if (run.bytes == 0)
            run = (struct tarn_ipc_run){pool + done, memory, 0};
        n = n < total - done ? n : total - done;
        run.bytes += n;
        done += n;
        c = next;
    }
    room = room && write_run(o, &run);
    *place = (struct tarn_ipc_place){c, room ? total : done, run};
    return room;
}
