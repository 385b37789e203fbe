/* SPDX-License-Identifier: Apache-2.0 */
/* Gets: what the directory is asked. */
#ifndef TARN_CLIENT_GET_LOOKUP_H
#define TARN_CLIENT_GET_LOOKUP_H

#include "client/get_job.h"

/* Looks up all jobs that are WANTED in one round trip; those it fails for are final. */
void tarn_get_look_up(struct tarn_get_batch *b);
/* One question for all jobs that are UNLEASED; they look again what it has brought. */
void tarn_get_ask_leases(struct tarn_get_batch *b);

#endif
