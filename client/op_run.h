/* SPDX-License-Identifier: Apache-2.0 */
/* The workers of submitted operations. */
#ifndef TARN_CLIENT_OP_RUN_H
#define TARN_CLIENT_OP_RUN_H

#include "client/client.h"

/* Starts the workers on first use; at least one must start. The queue's lock is held. */
int tarn_ops_start_workers(struct tarn_client *c);

#endif
