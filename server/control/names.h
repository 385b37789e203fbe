/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of leases that clients lend (LEND, UNLEND). Clients do not write to Redis, so a node writes a lease's
 * descriptor for them, for the life of its own record, and again at each heartbeat:
 *
 *   LEND --Redis has taken it--> kept: written at each heartbeat --UNLEND, the session or its time ends-->
 *        \--another has it--> EXISTS                              removed from Redis
 *
 * If the node ends, names expire with its record.
 */
#ifndef TARN_SERVER_NAMES_H
#define TARN_SERVER_NAMES_H

#include "server/parts.h"

/* At each heartbeat. */
void tarn_names_tick(struct tarn_node *n);
/* The session is gone. */
void tarn_names_forget(struct tarn_node *n, uint64_t session);
/* At the end. */
void tarn_names_free(struct tarn_node *n);

#endif
