/* SPDX-License-Identifier: Apache-2.0 */
/* Puts: publishing. */
#ifndef TARN_CLIENT_PUT_COMMIT_H
#define TARN_CLIENT_PUT_COMMIT_H

#include "client/put_job.h"

void tarn_chunk_commit(struct tarn_put *p, struct tarn_chunk *c);
/* Waits for the answers. Each job has succeeded or failed then; failed ones may have `again` set. */
void tarn_chunk_stored(struct tarn_put *p, struct tarn_chunk *c);

#endif
