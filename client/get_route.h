/* SPDX-License-Identifier: Apache-2.0 */
/* Gets: choosing a way for a job. */
#ifndef TARN_CLIENT_GET_ROUTE_H
#define TARN_CLIENT_GET_ROUTE_H

#include "client/get_job.h"

/* Sends a RESOLVED job on its way, or ends it. opening: also when a link must be opened first. now_ns: the
 * time when it was RESOLVED, or later; by the coarse clock if no wait was since the call began. */
void tarn_get_route(struct tarn_get_batch *b, struct tarn_get_job *j, bool opening, uint64_t now_ns);

#endif
