/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notifications within a host: a ring in memory that a lender shares with one session of a peer. Any thread
 * of the peer pushes, one at a time of the lender's pops.
 *
 * Each place has a turn. The n-th notification goes to place n % TARN_NOTICES:
 *
 *   turn n: free for it --push--> turn n + 1: it is there --pop--> turn n + TARN_NOTICES: free for the next
 *
 * (D. Vyukov's bounded queue.) Who pushes sets `rung`, and rings the lender's bell, an eventfd, if it was not
 * set. The lender clears `rung`, then pops all there is; both are sequentially consistent, so that nothing
 * stays unseen. While the lender looks by itself it leaves `rung` set.
 *
 * The peer can write anything into the ring, and harms only its own notifications: the lender keeps its own
 * position and copies a notification before it looks at it.
 */
#ifndef TARN_TRANSPORT_NOTICES_H
#define TARN_TRANSPORT_NOTICES_H

#include <stdatomic.h>
#include <stdbool.h>

#include <tarn/window.h>

#include "transport/transport.h"

#define TARN_NOTICES 1024

struct tarn_notice {
    uint64_t gen, tag;
    uint32_t window, slot, bytes;
    char data[TARN_NOTIFY_MAX];
};

struct tarn_notice_ring {
    _Alignas(64) _Atomic uint64_t next; /* the number of the next push */
    _Alignas(64) _Atomic uint32_t rung;
    struct {
        _Atomic uint64_t turn;
        struct tarn_notice notice;
    } place[TARN_NOTICES];
};

/* A ring in a file that no peer can shrink. Unmap it with munmap() and close the file. */
int tarn_notices_new(struct tarn_notice_ring **ring_p, int *fd_p);
/* Tells of that work of a lease, whose bytes are in place. AGAIN, without a sentence: the ring is full. */
int tarn_notices_push(struct tarn_notice_ring *ring, int bell, const struct tarn_work *w);
/* Copies number n, if it is there. */
bool tarn_notices_peek(const struct tarn_notice_ring *ring, uint64_t n, struct tarn_notice *out);
/* Frees its place. */
void tarn_notices_pop(struct tarn_notice_ring *ring, uint64_t n);

#endif
