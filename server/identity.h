/* SPDX-License-Identifier: Apache-2.0 */
/* Who a node is: its id, its Unix socket, its record in the directory, and that the id is free. */
#ifndef TARN_SERVER_IDENTITY_H
#define TARN_SERVER_IDENTITY_H

#include "base/net.h"
#include "server/parts.h"

/* Chooses id and Unix socket path and makes the socket's directory. */
int tarn_identity_choose(struct tarn_node *n, struct tarn_addr *unix_addr);
/* Lets those connect to the socket, once it is there, whom the settings name. */
int tarn_identity_share(const struct tarn_node *n, const struct tarn_addr *unix_addr);
/* Fills the node's record, once sockets, store and transports are there. */
int tarn_identity_record(struct tarn_node *n, const struct tarn_addr *listen_addr,
                         const struct tarn_addr *unix_addr);
/* With the directory open: makes a secret where the settings have none and one helps; it is in the record
 * then. */
int tarn_identity_secret(struct tarn_node *n, const struct tarn_addr *listen_addr);
/*
 * Writes the record for the first time. A record of the same id that another node keeps alive is
 * BUSY. One that a dead node left behind is taken over when it expires, which is waited for.
 */
int tarn_identity_claim(struct tarn_node *n);

#endif
