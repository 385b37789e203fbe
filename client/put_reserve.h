/* SPDX-License-Identifier: Apache-2.0 */
/* Puts: room on the nodes. */
#ifndef TARN_CLIENT_PUT_RESERVE_H
#define TARN_CLIENT_PUT_RESERVE_H

#include "client/put_job.h"

/* Sends RESERVE for all jobs. */
void tarn_chunk_ask(struct tarn_put *p, struct tarn_chunk *c);
/* Waits until every job has room on all its targets, or failed. */
void tarn_chunk_granted(struct tarn_put *p, struct tarn_chunk *c);
/* Gives back the reservations of failed jobs. */
void tarn_chunk_abort(struct tarn_put *p, struct tarn_chunk *c);

#endif
