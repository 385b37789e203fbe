/* SPDX-License-Identifier: Apache-2.0 */
/* Who a node is: its id, its Unix socket, its record in the directory, and that the id is free. */
#ifndef TARN_SERVER_IDENTITY_H
#define TARN_SERVER_IDENTITY_H

#include "base/net.h"
#include "server/parts.h"

/* Chooses id and Unix socket path and makes the socket's directory. */
int tarn_identity_choose(struct tarn_node *n, struct tarn_addr *unix_addr);
/* Gives the users named in the settings access to the socket. The socket must exist. */
int tarn_identity_share(const struct tarn_node *n, const struct tarn_addr *unix_addr);
/* Fills the node's record. Sockets, store and transports must exist. */
int tarn_identity_record(struct tarn_node *n, const struct tarn_addr *listen_addr,
                         const struct tarn_addr *unix_addr);
/* Makes a secret where the settings have none and one helps, and puts it into the record. The directory must
 * be open. */
int tarn_identity_secret(struct tarn_node *n, const struct tarn_addr *listen_addr);
/*
 * Writes the record for the first time. BUSY: another node keeps a record of the same id alive. If a dead
 * node has left one, waits until it expires.
 */
int tarn_identity_claim(struct tarn_node *n);

#endif
