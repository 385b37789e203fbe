/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes of a lease, without the checks of a public call. */
#ifndef TARN_CLIENT_WINDOW_MOVE_H
#define TARN_CLIENT_WINDOW_MOVE_H

#include "base/cancel.h"
#include "client/window/reach.h"

/* As tarn_read() and tarn_write(). */
int tarn_move_run(struct tarn_reach *r, struct tarn_move *moves, size_t n, bool write, uint64_t deadline_ns,
                  struct tarn_cancel *cancel);
/* As tarn_write() with this notification, or NULL. */
int tarn_move_tell(struct tarn_reach *r, struct tarn_move *moves, size_t n, const struct tarn_notify *notify,
                   uint64_t deadline_ns, struct tarn_cancel *cancel);

/* A write that tells something of its own; notify NULL: nothing. */
struct tarn_told_move {
    struct tarn_move move;
    const struct tarn_notify *notify;
};
/* Move i has ended. The reason is this thread's last error. */
typedef void tarn_moved_fn(void *arg, size_t i, int status);
/*
 * Writes n moves together, each for itself, as n calls of tarn_move_tell() by n threads would. `moved` is
 * called for each as soon as it has ended, in any order, and must not use the reach. AGAIN: the bytes are in
 * place and nobody was told, since the lender's queue is full.
 */
void tarn_move_each(struct tarn_reach *r, struct tarn_told_move *moves, size_t n, uint64_t deadline_ns,
                    struct tarn_cancel *cancel, tarn_moved_fn *moved, void *arg);

#endif
