/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rings of notifications, in a lender's memory that it shares with one session of a peer.
 *
 * Each place has a turn. The n-th notification goes to the place n modulo `places`:
 *
 *   turn n: free for it --push, fill--> turn n + 1: it is there --pop--> turn n + places: free for the next
 *
 * Within a host (D. Vyukov's bounded queue) the session has one ring of TARN_NOTICES places. Any thread of
 * the peer pushes, one at a time of the lender's pops. Who pushes sets `rung`, and rings the lender's bell,
 * an eventfd, if it was not set. The lender clears `rung`, then pops all there is; both are sequentially
 * consistent, so that nothing stays unseen. While the lender looks by itself it leaves `rung` set.
 *
 * From another host (transport/rdma/rdma_tell.c) each link has a ring of TARN_LINK_NOTICES places. A device
 * writes the notice, and the lender fills the place once the device says that all of it has arrived. The
 * peer reads `popped` to learn which places are free.
 *
 * The peer can write anything into the ring, and harms only its own notifications: the lender keeps its own
 * position and copies a notification before it looks at it.
 */
#ifndef TARN_TRANSPORT_NOTICES_H
#define TARN_TRANSPORT_NOTICES_H

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>

#include <tarn/window.h>

#include "transport/transport.h"

#define TARN_NOTICES 1024
#define TARN_LINK_NOTICES 256

struct tarn_notice {
    uint64_t gen, tag;
    uint32_t window, slot, bytes;
    char data[TARN_NOTIFY_MAX];
};

struct tarn_notice_ring {
    _Alignas(64) _Atomic uint64_t next; /* the number of the next push */
    _Alignas(64) _Atomic uint32_t rung;
    _Alignas(64) _Atomic uint64_t popped; /* notifications before this number */
    struct tarn_notice_place {
        _Atomic uint64_t turn;
        struct tarn_notice notice;
    } place[];
};
/* Peers on other hosts count on these. */
static_assert(offsetof(struct tarn_notice_ring, popped) == 128, "of the protocol");
static_assert(offsetof(struct tarn_notice_ring, place) == 136, "of the protocol");
static_assert(sizeof(struct tarn_notice_place) == 296, "of the protocol");
static_assert(offsetof(struct tarn_notice_place, notice) == 8, "of the protocol");
static_assert(offsetof(struct tarn_notice, data) == 28, "of the protocol");

size_t tarn_notices_bytes(uint32_t places);
/* A ring in a file that no peer can shrink. Unmap it with munmap() and close the file. */
int tarn_notices_new(uint32_t places, struct tarn_notice_ring **ring_p, int *fd_p);
/* The notice that tells of that work of a lease. Returns the bytes of it that matter. */
size_t tarn_notice_of(const struct tarn_work *w, struct tarn_notice *out);
/* Tells of that work, whose bytes are in place, in a ring of TARN_NOTICES. AGAIN, without a sentence: the
 * ring is full. */
int tarn_notices_push(struct tarn_notice_ring *ring, int bell, const struct tarn_work *w);
/* Number n is in its place. */
void tarn_notices_fill(struct tarn_notice_ring *ring, uint32_t places, uint64_t n);
/* Copies number n, if it is there. */
bool tarn_notices_peek(const struct tarn_notice_ring *ring, uint32_t places, uint64_t n,
                       struct tarn_notice *out);
/* Frees its place. */
void tarn_notices_pop(struct tarn_notice_ring *ring, uint32_t places, uint64_t n);

#endif
