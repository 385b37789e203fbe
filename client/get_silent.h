/* SPDX-License-Identifier: Apache-2.0 */
/* Gets whose last copy's node is silent. */
#ifndef TARN_CLIENT_GET_SILENT_H
#define TARN_CLIENT_GET_SILENT_H

#include "client/get_job.h"

/* Has the directory not been asked yet, and is there reason to when the last copy's node is silent? */
bool tarn_get_may_ask(const struct tarn_get_job *j);
/* The directory knows of no other copy than on r, which fell silent in this call: waits until it answers
 * again, inside the deadline. False: it is not waited for. */
bool tarn_get_await(struct tarn_get_batch *b, struct tarn_get_job *j, struct tarn_peer_node *node);

#endif
