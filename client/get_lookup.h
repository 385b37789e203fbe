/* SPDX-License-Identifier: Apache-2.0 */
/* Gets: questions to the directory. */
#ifndef TARN_CLIENT_GET_LOOKUP_H
#define TARN_CLIENT_GET_LOOKUP_H

#include "client/get_job.h"

/* Looks up all WANTED jobs in one round trip. Jobs that it fails for are final. */
void tarn_get_look_up(struct tarn_get_batch *b);
/* Waits for one question about all UNLEASED jobs' nodes, which are RESOLVED then. */
void tarn_get_ask_leases(struct tarn_get_batch *b);

#endif
