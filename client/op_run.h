/* SPDX-License-Identifier: Apache-2.0 */
/* The workers of submitted operations. */
#ifndef TARN_CLIENT_OP_RUN_H
#define TARN_CLIENT_OP_RUN_H

#include "client/client.h"

/* Starts the workers on first use. The queue's lock is held. One is enough to go on. */
int tarn_ops_start_workers(struct tarn_client *c);

#endif
