/* SPDX-License-Identifier: Apache-2.0 */
/* Control commands. */
#ifndef TARN_CLIENT_CALL_H
#define TARN_CLIENT_CALL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/resp/resp.h"
#include "client/node.h"
#include "client/patience.h"
#include "client/stop.h"
#include "client/words.h"

/* A connection on which HELLO was answered by this incarnation. NODE_DOWN, TIMEOUT (and the node is set
 * aside); AUTH, VERSION. local_only: over the Unix socket or NOT_REACHABLE. */
int tarn_call_take(struct tarn_remote *r, bool local_only, uint64_t deadline_ns, const struct tarn_stop *stop,
                   struct tarn_call **call_p);
/* The same with a patience for each step. */
int tarn_call_take_in(struct tarn_remote *r, bool local_only, struct tarn_steps *steps,
                      const struct tarn_stop *stop, struct tarn_call **call_p);
/* The same, and a new one over TCP has not had its HELLO answered: that is sent with the command that follows, and
 * its failure is that of tarn_call_reply(), with call->refused set. */
int tarn_call_take_early(struct tarn_remote *r, struct tarn_steps *steps, const struct tarn_stop *stop,
                         struct tarn_call **call_p);
/* A new one, never from the pool; does not judge the node's health. */
int tarn_call_connect(struct tarn_remote *r, struct tarn_steps *steps, const struct tarn_stop *stop,
                      struct tarn_call **call_p);
/* Back to the pool; a connection that still owes a reply is looked after by the keeper. NULL is allowed. */
void tarn_call_give(struct tarn_call *call);
/* The same for one that this thread needs again in a moment: it is not made the one that is watched. */
void tarn_call_rest(struct tarn_call *call);
int tarn_call_send(struct tarn_call *call, int argc, const char *const *argv, const size_t *lens,
                   uint64_t deadline_ns);
/* Waits for the reply; an error reply to the whole command is a failure. stop may be NULL. */
int tarn_call_reply(struct tarn_call *call, uint64_t deadline_ns, const struct tarn_stop *stop,
                    redisReply **reply_p);
int tarn_words_send(const struct tarn_words *a, struct tarn_call *call, uint64_t deadline_ns);
/* Sends and waits. A node set aside a moment ago is waited for, one known to be down is NODE_DOWN. */
int tarn_words_call(const struct tarn_words *a, struct tarn_remote *r, uint64_t deadline_ns,
                    const struct tarn_stop *stop, redisReply **reply_p);
/* A moment of this host's clock as nanoseconds since the node's tick 0; HELLO was answered before. */
uint64_t tarn_remote_clock(struct tarn_remote *r, uint64_t when_ns);

#endif
