/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ATTACH and DETACH. A transport may take its time to answer an ATTACH (rdma finds the client's address and
 * joins queue pairs); the connection then waits, the control thread does not.
 */
#ifndef TARN_SERVER_ATTACH_H
#define TARN_SERVER_ATTACH_H

#include "server/control/control.h"

void tarn_command_attach(struct tarn_conn *c, size_t n, redisReply **args);
void tarn_command_detach(struct tarn_conn *c, size_t n, redisReply **args);
/* Frees those whose answer will not be sent any more; the transports have stopped. */
void tarn_attaching_free(struct tarn_node *n);

#endif
