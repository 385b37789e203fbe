/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ATTACH and DETACH. A transport may answer an ATTACH later: rdma resolves the client's address and joins
 * queue pairs. Only the connection waits for that, not the control thread.
 */
#ifndef TARN_SERVER_ATTACH_H
#define TARN_SERVER_ATTACH_H

#include "server/control/control.h"

void tarn_command_attach(struct tarn_conn *c, size_t n, redisReply **args);
void tarn_command_detach(struct tarn_conn *c, size_t n, redisReply **args);
/* Frees all ATTACHes that still wait. The transports must have stopped. */
void tarn_attaching_free(struct tarn_node *n);

#endif
