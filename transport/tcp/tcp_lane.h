/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP, client half: tcp_link.c (links: connecting, waiting, closing), tcp_lane.c (the works of one direction
 * and their bytes) and tcp_lane_gpu.c (bytes of GPU memory). One thread at a time uses a link and its lanes.
 */
#ifndef TARN_TRANSPORT_TCP_LANE_H
#define TARN_TRANSPORT_TCP_LANE_H

#include "transport/tcp/tcp_frame.h"
#include "transport/tcp/tcp_stage.h"

/* One direction: a connection and a FIFO of works in flight. */
struct tarn_tcp_lane {
    const char *node; /* for messages */
    int fd;           /* -1: not open */
    uint8_t op;
    uint32_t watched; /* what the link's epoll set waits for; 0: the lane is not in it */
    /* A HELLO goes ahead of the first work. */
    const struct tarn_tcp_hello *hello;
    uint32_t hello_unsent; /* bytes still to send */
    bool hello_waits;      /* its answer has not come */
    /* Works in flight, oldest first. Works from `unsent` on were not sent in full, works from `unanswered` on
     * not answered in full. */
    uint64_t next_tag;
    struct tarn_work *first, *last, *unsent, *unanswered;
    uint64_t sent;              /* bytes of unsent's message that were sent */
    struct tarn_cursor sent_at; /* where in its pieces that is */
    /* The answer being received. */
    struct tarn_tcp_frame answer;
    uint32_t answer_got;
    uint64_t payload_left;
    /* Windows: a verdict follows the payload. */
    bool verdicts, verdict_due;
    struct tarn_tcp_frame verdict;
    uint32_t verdict_got;
    struct tarn_cursor received_at;
    /* GPU memory. Puts from `unstaged` on are not in the stage, except for the first `staged` bytes of the
     * first of them. */
    struct tarn_copiers *copiers; /* the link's */
    struct tarn_stage *stage;     /* NULL: not yet needed */
    struct tarn_work *unstaged;
    uint64_t staged;
    struct tarn_cursor staged_at;
};

/* What a lane keeps in a work's context. */
struct tarn_tcp_course {
    uint64_t tag;
    int status; /* 0 so far */
    bool ended; /* it waits for nothing any more */
};
_Static_assert(sizeof(struct tarn_tcp_course) <= TARN_WORK_CONTEXT, "fits a work");

static inline struct tarn_tcp_course *tarn_tcp_course(const struct tarn_work *w)
{
    return (struct tarn_tcp_course *)w->context;
}

void tarn_tcp_lane_queue(struct tarn_tcp_lane *n, struct tarn_work *w);
/* Sends as much as the socket takes. 1: it took something; 0: nothing. With `wait` a system call may sleep
 * for the socket's time limit. Negative: the connection is broken. */
int tarn_tcp_lane_send(struct tarn_tcp_lane *n, bool wait);
bool tarn_tcp_lane_wants_to_send(const struct tarn_tcp_lane *n);
/* Receives what is there and ends the works that it completes. 1: something was there; 0: nothing. With
 * `wait` the first system call may sleep for the socket's time limit. most: of bytes in one system call, and
 * then there is only one; UINT64_MAX: all that is there. Negative: as above. */
int tarn_tcp_lane_receive(struct tarn_tcp_lane *n, bool wait, uint64_t most);
bool tarn_tcp_lane_awaits_answer(const struct tarn_tcp_lane *n);
/* Ends all works of the lane, also those not yet sent. No copy may be under way. *why stays. */
void tarn_tcp_lane_fail(struct tarn_tcp_lane *n, const struct tarn_reason *why);
/* Moves bytes between the stage and the GPU, and ends gets whose last byte was copied. True: bytes were
 * copied. */
bool tarn_tcp_lane_copy(struct tarn_tcp_lane *n);

/* tcp_lane_gpu.c */

/* Makes what works in memory of that GPU need. Slow for the first one. */
int tarn_tcp_lane_prepare(struct tarn_tcp_lane *n, int device);
/* Starts copies, and marks gets whose last copy has ended. True: copies have ended. */
bool tarn_tcp_lane_stage(struct tarn_tcp_lane *n);
/* Are copies under way? */
bool tarn_tcp_lane_copying(const struct tarn_tcp_lane *n);
/* So many bytes of a get's payload were received into the stage. */
void tarn_tcp_lane_arrived(struct tarn_tcp_lane *n, struct tarn_work *w, uint64_t bytes);
/* So many bytes of a put were sent from the stage. */
void tarn_tcp_lane_passed_on(struct tarn_tcp_lane *n, struct tarn_work *w, uint64_t bytes);

#endif
