/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory at either end of a TCP connection. Sockets do not reach it, so its bytes pass through a *stage*,
 * a ring of pinned memory. A stage holds a sequence of *parts*, which keep their order:
 *
 *   to a GPU:    received into the room --add--> given --copied--> passed --dropped--> room
 *   from a GPU:  room --add--> given --copied--> passed --sent--> room
 *
 * A part's copy is given to the GPU's queue as soon as the queue takes it. It runs while the next part is
 * received, or the one before is sent. A stage moves bytes in one direction, for one connection at a time.
 *
 * When a GPU fails, the stage waits for everything given to its queue. Each of these parts passes with the
 * failure, without its bytes. The GPU may touch a part's memory until the part has passed, and
 * not after.
 *
 * Threads: one thread at a time uses a set of copiers and all stages that go with it.
 */
#ifndef TARN_TRANSPORT_TCP_STAGE_H
#define TARN_TRANSPORT_TCP_STAGE_H

#include <sys/uio.h>

#include "base/error.h"
#include "transport/transport.h"

#define TARN_STAGE_BYTES (2u << 20)
#define TARN_STAGE_PART (512u << 10) /* at most, so that four are on their way */
enum { TARN_STAGE_PARTS = 128, TARN_STAGE_DEVICES = 32 };

/* A queue of copies for each GPU, opened at its first use. */
struct tarn_copiers {
    struct tarn_copier {
        struct tarn_cuda_queue *queue;
        uint32_t turn;              /* counts its failures */
        struct tarn_reason failure; /* the last one; UNAVAILABLE stays */
    } of[TARN_STAGE_DEVICES];
};

/* Makes the GPU's queue ready, which takes milliseconds the first time. */
int tarn_copiers_open(struct tarn_copiers *c, int device);
/* Waits for copies under way. Afterwards no GPU touches a part of any stage. */
void tarn_copiers_close(struct tarn_copiers *c);

struct tarn_stage_part {
    void *owner;
    bool last; /* the owner's last one */
    /* Windows: the lease whose pin goes with the part. gen 0: there is none. */
    struct {
        uint32_t pool, slot;
        uint64_t gen;
    } pin;
    const struct tarn_reason *failure; /* once it has passed: NULL, or why it has no bytes */
    /* The GPU's side: `bytes` bytes from the cursor on. */
    const struct tarn_piece *pieces;
    uint32_t npieces;
    struct tarn_cursor at;
    struct tarn_piece own; /* room for `pieces` if there is one */
    /* The stage's own: */
    uint8_t *memory;
    uint64_t bytes, given, end;
    uint32_t device, turn;
    uint64_t mark; /* 0: not marked */
};

struct tarn_stage {
    struct tarn_stage *next; /* for lists of unused stages */
    bool to_gpu;             /* set it while the stage is empty */
    uint8_t *ring;
    uint64_t head, tail;     /* bytes, ever */
    uint64_t sent;           /* from a GPU: of the first part */
    uint32_t first, count;   /* parts */
    uint32_t passed, marked; /* of the parts, from the first on */
    struct tarn_stage_part parts[TARN_STAGE_PARTS];
};

int tarn_stage_new(struct tarn_stage **s_p);
/* No copy may be under way. NULL is allowed. */
void tarn_stage_free(struct tarn_stage *s);
/* Forgets all parts. No copy may be under way. */
void tarn_stage_clear(struct tarn_stage *s);

/* Contiguous room for a part; 0: there is none now. It stays the same until a part is added. */
uint64_t tarn_stage_room(const struct tarn_stage *s, uint8_t **memory_p);
/* Adds a part of `bytes` of the room. Set its fields up to `at`. Without a queue it passes as failed. */
struct tarn_stage_part *tarn_stage_add(struct tarn_stage *s, const struct tarn_copiers *c, int device,
                                       uint64_t bytes);
/* Zeros take the place of the GPU's bytes. A part just added passes without a copy then. */
void tarn_stage_zero(struct tarn_stage_part *p);
/* Makes the last part longer by `bytes` of the room. NULL: it is complete or already given, or there is none.
 */
struct tarn_stage_part *tarn_stage_grow(struct tarn_stage *s, uint64_t bytes);
/* Lets the next part begin at an aligned address, which makes its copy faster. */
void tarn_stage_align(struct tarn_stage *s);

/* Gives the queues as many copies as they take. */
void tarn_stage_give(struct tarn_stage *s, struct tarn_copiers *c);
/* Does so, and looks which parts have passed. True: more have. */
bool tarn_stage_move(struct tarn_stage *s, struct tarn_copiers *c);
/* Is a part still to be copied? */
bool tarn_stage_moving(const struct tarn_stage *s);
/* The i-th part if it has passed; else NULL. */
struct tarn_stage_part *tarn_stage_passed(struct tarn_stage *s, uint32_t i);
/* Fills iovecs with the bytes of passed parts from part *part on that were not sent, at most `most` bytes and
 * `room` iovecs, and moves *part on. Stops at a failed part unless `failed`. Returns the bytes. */
uint64_t tarn_stage_gather(struct tarn_stage *s, bool failed, uint32_t *part, uint64_t most,
                           struct iovec iov[], uint32_t room);
/* The i-th part, passed or not. There must be one. */
struct tarn_stage_part *tarn_stage_part_at(struct tarn_stage *s, uint32_t i);
/* Drops the first part, which has passed. */
void tarn_stage_drop(struct tarn_stage *s);
/* So many bytes of passed parts were sent. Drops the parts that were sent whole; returns their first failure,
 * or NULL. */
const struct tarn_reason *tarn_stage_sent(struct tarn_stage *s, uint64_t bytes);

#endif
