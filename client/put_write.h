/* SPDX-License-Identifier: Apache-2.0 */
/* Puts: writing. */
#ifndef TARN_CLIENT_PUT_WRITE_H
#define TARN_CLIENT_PUT_WRITE_H

#include "client/put_job.h"

/* Writes all jobs of the chunk to their targets, which are WRITTEN or LOST then. */
void tarn_chunk_write(struct tarn_put *p, struct tarn_chunk *c);
/* Starts writing an item's pieces or pages at `offset` of the object to one target. False: the job has
 * failed. bytes: their total; with p->seen.at_most pieces may have fewer, and if they have more the target is
 * a misfit.
 */
bool tarn_target_post(struct tarn_put *p, struct tarn_target *t, uint64_t offset, uint64_t bytes,
                      const struct tarn_item *from);
/* Waits for all posted targets. Each is WRITTEN then, or its job has failed. */
void tarn_put_written(struct tarn_put *p);

#endif
