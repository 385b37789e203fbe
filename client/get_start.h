/* SPDX-License-Identifier: Apache-2.0 */
/* Gets: from items to jobs. */
#ifndef TARN_CLIENT_GET_START_H
#define TARN_CLIENT_GET_START_H

#include "client/get_job.h"

/* Makes jobs of the items that are not final. The first of one call's many fly before the last are started. A
 * get whose items are all final may be gone when this returns. */
void tarn_get_start(struct tarn_get_batch *b, struct tarn_get *const *gets, size_t n);
/* Without memory for the jobs: ends all items that are left. */
void tarn_get_no_memory(struct tarn_get *const *gets, size_t n);

#endif
