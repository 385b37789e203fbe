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

#endif
