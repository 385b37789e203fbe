/* SPDX-License-Identifier: Apache-2.0 */
/* Gets: from items to jobs. */
#ifndef TARN_CLIENT_GET_START_H
#define TARN_CLIENT_GET_START_H

#include "client/get_job.h"

/* Makes the jobs of those items that are not final. Of one call's many items the first fly before the last
 * are looked at. Once all of a get's are, it may be gone. */
void tarn_get_start(struct tarn_get_batch *b, struct tarn_get *const *gets, size_t n);
/* There is no memory for the jobs: all items that are left are final. */
void tarn_get_no_memory(struct tarn_get *const *gets, size_t n);

#endif
