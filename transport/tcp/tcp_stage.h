/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory at either end of a TCP connection: sockets do not reach it, so its bytes pass through a *stage*,
 * a ring of pinned memory. What lies there is a sequence of *parts*, which keep their order:
 *
 *   to a GPU:    received into the room --add--> given --copied--> passed --dropped--> room
 *   from a GPU:  room --add--> given --copied--> passed --sent--> room
 *
 * A part's copy is given as soon as the GPU's queue takes it, and runs while the next part is received, or
 * the one before it sent. A stage moves bytes in one direction and belongs to one connection at a time.
 *
 * GPUs fail: then everything given to the queue is waited for, and each part of it passes with that status
 * instead of its bytes. A part that has not passed may still be written or read by the GPU; one that has is
 * never touched by it again.
 *
 * Threads: a set of copiers and all stages that are used with it belong to one thread at a time.
 */
#ifndef TARN_TRANSPORT_TCP_STAGE_H
#define TARN_TRANSPORT_TCP_STAGE_H

#include "transport/transport.h"

#define TARN_STAGE_BYTES (2u << 20)
#define TARN_STAGE_PART (512u << 10) /* at most; so that four are on their way */
enum { TARN_STAGE_PARTS = 128, TARN_STAGE_DEVICES = 32 };

/* Who copies: a queue of each GPU, opened when it is first used. */
struct tarn_copiers {
    struct tarn_copier {
        struct tarn_cuda_queue *queue;
        uint32_t turn; /* how often it has failed */
        int status;    /* of the last failure; UNAVAILABLE is for good */
    } of[TARN_STAGE_DEVICES];
};

/* Makes the GPU's queue ready, which takes milliseconds the first time. */
int tarn_copiers_open(struct tarn_copiers *c, int device);
/* Waits for what is under way: then no part of any stage is touched any more. */
void tarn_copiers_close(struct tarn_copiers *c);

struct tarn_stage_part {
    void *owner;
    bool last;  /* the owner's last one */
    int status; /* passed: 0, or why the bytes are none */
    /* On the GPU's side: so many bytes from the cursor on. */
    const struct tarn_piece *pieces;
    uint32_t npieces;
    struct tarn_cursor at;
    struct tarn_piece own; /* where the pieces may be, when there is one */
    /* The stage's own: */
    uint8_t *memory;
    uint64_t bytes, given, end;
    uint32_t device, turn;
    uint64_t mark; /* 0: not marked */
};

struct tarn_stage {
    struct tarn_stage *next; /* for whoever keeps unused ones */
    bool to_gpu;             /* to be set while it is empty */
    uint8_t *ring;
    uint64_t head, tail;     /* bytes, ever */
    uint64_t sent;           /* from a GPU: of the first part */
    uint32_t first, count;   /* parts */
    uint32_t passed, marked; /* so many of them, from the first on */
    struct tarn_stage_part parts[TARN_STAGE_PARTS];
};

int tarn_stage_new(struct tarn_stage **s_p);
/* No copy may be under way. NULL is allowed. */
void tarn_stage_free(struct tarn_stage *s);
/* Forgets all parts. No copy may be under way. */
void tarn_stage_clear(struct tarn_stage *s);

/* Contiguous room for a part, 0 while there is none; it stays where it is until something is added. */
uint64_t tarn_stage_room(const struct tarn_stage *s, uint8_t **memory_p);
/* A part of `bytes` of the room, whose fields up to `at` are to be set. Without a queue it passes as failed.
 */
struct tarn_stage_part *tarn_stage_add(struct tarn_stage *s, const struct tarn_copiers *c, int device,
                                       uint64_t bytes);
/* Makes the last part longer by `bytes` of the room; NULL: there is none that has no end and was not given.
 */
struct tarn_stage_part *tarn_stage_grow(struct tarn_stage *s, uint64_t bytes);
/* The next part begins at a round address, as copies like it. */
void tarn_stage_align(struct tarn_stage *s);

/* Gives what has not been given, as far as the queues take it. */
void tarn_stage_give(struct tarn_stage *s, struct tarn_copiers *c);
/* Does so, and looks at what has passed. True when anything newly has. */
bool tarn_stage_move(struct tarn_stage *s, struct tarn_copiers *c);
/* Is a part still to be copied? */
bool tarn_stage_moving(const struct tarn_stage *s);
/* The i-th part, when it has passed; else NULL. */
struct tarn_stage_part *tarn_stage_passed(struct tarn_stage *s, uint32_t i);
/* The one added last; there must be one. */
struct tarn_stage_part *tarn_stage_last(struct tarn_stage *s);
/* The first part, which has passed, is done with. */
void tarn_stage_drop(struct tarn_stage *s);
/* So many bytes of what has passed were sent. The first failure among the parts that are done with by that.
 */
int tarn_stage_sent(struct tarn_stage *s, uint64_t bytes);

#endif
