/* SPDX-License-Identifier: Apache-2.0 */
/* Gets: a batch's transfers. */
#ifndef TARN_CLIENT_GET_FLY_H
#define TARN_CLIENT_GET_FLY_H

#include "client/get_job.h"

/* Routes all jobs that are resolved; `opening`: also those that need a link made first. Which stages jobs are
 * in then, as bits. */
unsigned tarn_get_send(struct tarn_get_batch *b, bool opening);
/* Until nothing is in flight, or another job is canceled. */
void tarn_get_fly(struct tarn_get_batch *b);
/* Jobs in flight that have been canceled are final; the look-up, which that cut short, can go on. */
void tarn_get_land_stopped(struct tarn_get_batch *b);

#endif
