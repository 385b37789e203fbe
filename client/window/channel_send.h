/* SPDX-License-Identifier: Apache-2.0 */
/* A send, from its call to its end. channels.h has the states. */
#ifndef TARN_CLIENT_WINDOW_CHANNEL_SEND_H
#define TARN_CLIENT_WINDOW_CHANNEL_SEND_H

#include "base/cancel.h"
#include "client/window/channels.h"

/*
 * Does what can be done now; may wait for the peer's answers. TARN_INPROGRESS: no receive is posted; call
 * again when woken. The lock is held, but not while this waits. When the call has ended, it is in no list.
 */
int tarn_channel_send_advance(struct tarn_channel_call *k, uint64_t deadline_ns, struct tarn_cancel *cancel);

#endif
