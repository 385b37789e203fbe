/* SPDX-License-Identifier: Apache-2.0 */
/* Gets: one attempt. */
#ifndef TARN_CLIENT_GET_ATTEMPT_H
#define TARN_CLIENT_GET_ATTEMPT_H

#include "client/get_job.h"

/* Makes the job's transfer of `bytes` bytes of that copy; `more` and now as below. */
void tarn_get_aim(struct tarn_get_job *j, const struct tarn_loc *l, bool more, uint64_t bytes, uint64_t now);
/* Tries the copy and transport that were chosen; `more`: another copy is left besides; now:
 * the clock. */
void tarn_get_launch(struct tarn_get_batch *b, struct tarn_get_job *j, bool more, uint64_t bytes,
                     uint64_t now);
/* A transfer came back. */
void tarn_get_landed(struct tarn_get_batch *b, struct tarn_get_job *j);

#endif
