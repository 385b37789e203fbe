/* SPDX-License-Identifier: Apache-2.0 */
/* Puts: writing. */
#ifndef TARN_CLIENT_PUT_WRITE_H
#define TARN_CLIENT_PUT_WRITE_H

#include "client/put_job.h"

void tarn_chunk_write(struct tarn_put *p, struct tarn_chunk *c);
/* Starts writing pieces of `bytes` bytes at `offset` of the object to one target; false when it failed.
 * With p->seen.at_most nobody has counted: there may be fewer bytes. More make it a misfit. */
bool tarn_target_post(struct tarn_put *p, struct tarn_target *t, uint64_t offset, uint64_t bytes,
                      const struct tarn_piece *pieces, uint32_t npieces);
/* Waits for all posted targets; their state becomes WRITTEN, or their job failed. */
void tarn_put_written(struct tarn_put *p);

#endif
