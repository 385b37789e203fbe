/* SPDX-License-Identifier: Apache-2.0 */
/* What lent.c and lent_notify.c share. The lock is held where nothing else is said. */
#ifndef TARN_CLIENT_WINDOW_LENT_IMPL_H
#define TARN_CLIENT_WINDOW_LENT_IMPL_H

#include "client/window/lent.h"

struct tarn_window_grant *tarn_lent_grant_of(struct tarn_window *w, uint64_t session);
/* NULL: it has ended, or is of another window. */
struct tarn_lease *tarn_lent_find(const struct tarn_lent *l, uint32_t window, uint32_t slot, uint64_t gen);
struct tarn_lent_writer *tarn_lent_writer_of(struct tarn_lease *lease, uint64_t session);
/* Fails. */
int tarn_lent_stale(uint32_t window, uint32_t slot);

/* Wakes all who wait for the lease's notifications, or for those of any lease (NULL). */
void tarn_lent_tell(struct tarn_lent *l, const struct tarn_lease *lease);
/* Frees the notifications of that lease, or all. */
void tarn_lent_drop_notices(struct tarn_window *w, const struct tarn_lease *lease);
/* Takes what the rings have, as far as the queues have room. */
void tarn_lent_drain(struct tarn_lent *l);
/* Takes what the session's ring still has, and frees the ring. */
void tarn_lent_ring_end(struct tarn_lent *l, uint64_t session);
/* tarn_guard.notify. It takes the lock. */
int tarn_lent_guard_notify(void *arg, uint64_t session, uint32_t window, uint32_t slot, uint64_t gen,
                           const struct tarn_notify *n);
/* tarn_guard.ring_new and so on. They take the lock. */
int tarn_lent_guard_ring_new(void *arg, uint64_t session, struct tarn_notice_ring **ring_p);
void tarn_lent_guard_ring_got(void *arg, struct tarn_notice_ring *ring, uint32_t number);
void tarn_lent_guard_ring_end(void *arg, struct tarn_notice_ring *ring);

#endif
