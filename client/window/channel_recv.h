/* SPDX-License-Identifier: Apache-2.0 */
/* A receive, from its call to its end. channels.h has the states. */
#ifndef TARN_CLIENT_WINDOW_CHANNEL_RECV_H
#define TARN_CLIENT_WINDOW_CHANNEL_RECV_H

#include "base/cancel.h"
#include "client/window/channels.h"

/* Makes the lease. INVALID: the pieces lie in no window. UNSUPPORTED: they lie in memory of a GPU. */
int tarn_channel_recv_begin(struct tarn_channel_call *k);
/*
 * Does what can be done now; may wait until the peer knows of the receive. TARN_INPROGRESS: call again when
 * woken. The lock is held, but not while this waits. When the call has ended, it is in no list.
 */
int tarn_channel_recv_advance(struct tarn_channel_call *k, uint64_t deadline_ns, struct tarn_cancel *cancel);
/* The call has ended with rc: ends the lease, and puts what came with DELIVER into place. Returns rc, or
 * BUSY. Without the lock. */
int tarn_channel_recv_finish(struct tarn_channel_call *k, int rc);

#endif
