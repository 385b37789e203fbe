/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP for monitoring, by a thread of its own: GET /metrics (Prometheus text) and GET /health. */
#ifndef TARN_SERVER_ADMIN_H
#define TARN_SERVER_ADMIN_H

#include "server/parts.h"

/* address: "host:port", port 0 takes a free one. BUSY when it is taken. */
int tarn_admin_start(struct tarn_node *n, const char *address, struct tarn_admin **a_p);
/* NULL is allowed. */
void tarn_admin_stop(struct tarn_admin *a);
/* "127.0.0.1:9100", the address it listens on. */
const char *tarn_admin_address(const struct tarn_admin *a);

#endif
