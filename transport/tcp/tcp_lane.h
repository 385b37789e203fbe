/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP, client half: tcp_link.c (links: connecting, waiting, closing), tcp_lane.c (the works of one
 * direction and their bytes) and tcp_lane_gpu.c (bytes of GPU memory). A link and its lanes belong to one
 * thread at a time.
 */
#ifndef TARN_TRANSPORT_TCP_LANE_H
#define TARN_TRANSPORT_TCP_LANE_H

#include <sys/uio.h>

#include "transport/tcp/tcp_frame.h"
#include "transport/tcp/tcp_stage.h"

/* One direction: a connection and a FIFO of works in flight. */
struct tarn_tcp_lane {
    const char *node; /* for messages */
    int fd;           /* -1: not open */
    uint8_t op;
    uint32_t watched; /* what the link's epoll set waits for; 0: the lane is not in it */
    /* A HELLO that goes ahead of the first work. */
    const struct tarn_tcp_hello *hello;
    uint32_t hello_unsent; /* bytes still to send */
    bool hello_waits;      /* its answer has not come */
    /* Works in flight, oldest first; those from `unsent` on have not been sent in full, those from
     * `unanswered` on not answered in full. */
    uint64_t next_tag;
    struct tarn_work *first, *last, *unsent, *unanswered;
    uint64_t sent;              /* bytes of unsent's message that were sent */
    struct tarn_cursor sent_at; /* where in its pieces that is */
    /* The answer being received. */
    struct tarn_tcp_frame answer;
    uint32_t answer_got;
    uint64_t payload_left;
    struct tarn_cursor received_at;
    /* GPU memory. Of puts, those from `unstaged` on are not in the stage, but for its first bytes. */
    struct tarn_copiers *copiers; /* the link's */
    struct tarn_stage *stage;     /* NULL: not needed so far */
    struct tarn_work *unstaged;
    uint64_t staged;
    struct tarn_cursor staged_at;
    char why[TARN_SENTENCE]; /* the last failure of a work */
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
/* Sends what is queued as far as the socket takes it: 1, or 0 when it took nothing. With `wait` a system
 * call may sleep for the socket's time limit. Negative: the connection is useless. */
int tarn_tcp_lane_send(struct tarn_tcp_lane *n, bool wait);
bool tarn_tcp_lane_wants_to_send(const struct tarn_tcp_lane *n);
/*
 * Receives what is there and ends the works it completes: 1, or 0 when nothing was there. With `wait`
 * the first system call may sleep for the socket's time limit. Negative: as above.
 */
int tarn_tcp_lane_receive(struct tarn_tcp_lane *n, bool wait);
bool tarn_tcp_lane_awaits_answer(const struct tarn_tcp_lane *n);
/* Ends every work of the lane, those not sent included. No copy may be under way. */
void tarn_tcp_lane_fail(struct tarn_tcp_lane *n, int status);
/* Moves bytes between the stage and the GPU, and ends the gets whose last byte has passed. True when any has
 * passed. */
bool tarn_tcp_lane_copy(struct tarn_tcp_lane *n);
/* What an answer to HELLO says: 0, AUTH, VERSION, PROTOCOL. */
int tarn_tcp_check_hello(const char *node, const struct tarn_tcp_frame *f);

/* tcp_lane_gpu.c */

/* What works in memory of that GPU need; takes its time when it comes first. */
int tarn_tcp_lane_prepare(struct tarn_tcp_lane *n, int device);
/* Gives copies, and notes the gets whose last one has passed. True when any has passed. */
bool tarn_tcp_lane_stage(struct tarn_tcp_lane *n);
/* Are copies under way? */
bool tarn_tcp_lane_copying(const struct tarn_tcp_lane *n);
/* So many bytes of a get's payload lie where the stage has its room. */
void tarn_tcp_lane_arrived(struct tarn_tcp_lane *n, struct tarn_work *w, uint64_t bytes);
/* iovecs for what has passed of a put, of which `left` bytes are to be sent, from the *part-th part on; the
 * bytes. */
uint64_t tarn_tcp_lane_passed(const struct tarn_tcp_lane *n, uint32_t *part, uint64_t left,
                              struct iovec iov[], uint32_t room);
/* So many bytes of them were sent. */
void tarn_tcp_lane_passed_on(struct tarn_tcp_lane *n, struct tarn_work *w, uint64_t bytes);

#endif
