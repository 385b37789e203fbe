/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tarn-bench ring --peer`: commands of kernels that write into a window of another host. Rank 1 lends a
 * landing place of slots. Producers of rank 0 (bench_writes_produce.h) push WRITEs into command rings; a
 * proxy carries them out, and tells the part's count with each. Rank 1 forwards the parts (forward.h), and
 * verifies every byte of every part at its final place, and that each count comes exactly once. Every so
 * often it writes how many parts it has verified into a window of rank 0: the *credit*.
 *
 *   rank 0, --peer                              rank 1, --listen
 *   connects a channel; hello: its version -->
 *   SET_UP shape, its credit, its wire     -->  lends the landing place, reaches the credit
 *                                          <--  its landing place, its wire
 *   RUN what, counts                       -->  takes the parts
 *     parts                                ==>
 *                                          <==  credit
 *                                          <--  its word on them
 *   END                                    -->  ends
 *
 * Each order has one answer. Both ranks are the same build for the same kind of machine.
 *
 * The limit is a *wire*: the same slots, counts and credit by the least code that does it. Its sources are
 * filled once, so the part of count n has the bytes of the first count in its slot.
 *
 *   bench_writes.c           rank 0: rows                bench_writes_serve.c   rank 1
 *   bench_writes_rank.c      what both ranks do          bench_writes_threads.c producers as threads
 *   bench_writes_sockets.c   a wire: parts in a stream   bench_writes_verbs.c   a wire: RDMA WRITEs
 */
#ifndef TARN_CLIENT_BENCH_WRITES_H
#define TARN_CLIENT_BENCH_WRITES_H

#include <stdbool.h>
#include <stdint.h>

#include <tarn/channel.h>

#include "client/bench/bench.h"
#include "client/bench/bench_writes_produce.h"

#define BENCH_WRITES_PATIENCE_MS 30000 /* for a part */
#define BENCH_WRITES_ANSWER_MS 600000  /* for an answer, or the next order */
#define BENCH_WIRE_TEXT 256

/* --- what both ranks do (bench_writes_rank.c) ---------------------------------------------------- */

struct bench_writes_shape {
    uint32_t bytes, slots; /* of a part: a multiple of 8; a power of two */
};

enum bench_writes_what { BENCH_WRITES_SET_UP, BENCH_WRITES_OURS, BENCH_WRITES_WIRE, BENCH_WRITES_END };

struct bench_writes_order {
    enum bench_writes_what what;
    struct bench_writes_shape shape;  /* SET_UP */
    char beside[16];                  /* SET_UP: the transport, if there is a wire beside it */
    char credit[TARN_DESCRIPTOR_MAX]; /* SET_UP */
    char wire[BENCH_WIRE_TEXT];       /* SET_UP */
    uint64_t counted, last;           /* OURS, WIRE: parts (counted, last] come */
};

struct bench_writes_answer {
    int status;
    char error[TARN_SENTENCE];
    char landing[TARN_DESCRIPTOR_MAX];
    char wire[BENCH_WIRE_TEXT];
};

/* Opens a client that listens at the environment's address. Its calls end when the benchmark is interrupted.
 */
int bench_writes_client(const struct bench_env *e, const char *transports, struct tarn_client **c_p);
int bench_writes_send(struct tarn_channel *ch, const void *message, size_t bytes);
int bench_writes_receive(struct tarn_channel *ch, void *message, size_t bytes);

/* Where parts arrive, and what has come. */
struct bench_landing {
    struct bench_writes_shape shape;
    char *memory;
    bool *landed;            /* by slot: verified, but not one before it */
    uint64_t verified, last; /* without a gap; how far this slice goes */
};

/* Verifies part `count`, whose bytes are those of count `as`. INVALID: a byte is wrong, or it is not due. */
int bench_landing_take(struct bench_landing *l, uint64_t count, uint64_t as);
/* After a part: is it time to tell rank 0? */
static inline bool bench_landing_owes(const struct bench_landing *l, uint64_t told)
{
    return l->verified - told >= l->shape.slots / 4 || (l->verified == l->last && l->verified > told);
}

/* --- wires --------------------------------------------------------------------------------------- */

struct bench_wire;

struct bench_wire_ops {
    const char *name;
    /* Makes an end and says how the other rank reaches it. `memory`: slots of that shape, the sources or the
     * landing place. */
    int (*offer)(const struct bench_env *e, const struct bench_writes_shape *shape, char *memory, char *text,
                 struct bench_wire **w_p);
    int (*join)(struct bench_wire *w, const char *text);
    /* Rank 0: writes the parts (counted, last], until all are verified. */
    int (*send)(struct bench_wire *w, uint64_t counted, uint64_t last);
    /* Rank 1: takes parts up to l->last. */
    int (*take)(struct bench_wire *w, struct bench_landing *l);
    void (*close)(struct bench_wire *w); /* NULL is allowed */
};

extern const struct bench_wire_ops bench_wire_sockets, bench_wire_verbs;

/* The wire beside a transport; NULL: there is none. */
const struct bench_wire_ops *bench_wire_beside(const char *transport);
/* The count whose bytes a wire's part has. */
static inline uint64_t bench_wire_as(const struct bench_writes_shape *s, uint64_t count)
{
    return (count - 1) % s->slots + 1;
}

/* --- producers as threads (bench_writes_threads.c) ----------------------------------------------- */

struct bench_threads;
int bench_threads_start(struct bench_writes_task *tasks, uint32_t n, struct bench_threads **t_p);
/* Waits for them. */
void bench_threads_finish(struct bench_threads *t);

#endif
