/* SPDX-License-Identifier: Apache-2.0 */
/* Gets: one attempt. */
#ifndef TARN_CLIENT_GET_ATTEMPT_H
#define TARN_CLIENT_GET_ATTEMPT_H

#include "client/get_job.h"

/* Tries the chosen way. MOVED or LATER. */
enum tarn_get_move tarn_get_launch(struct tarn_get_batch *b, struct tarn_get_job *j, uint64_t bytes);
/* A transfer came back. */
void tarn_get_landed(struct tarn_get_batch *b, struct tarn_get_job *j);

#endif
