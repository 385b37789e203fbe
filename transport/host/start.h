/* SPDX-License-Identifier: Apache-2.0 */
/* A host's start and end. The caller has set its ops, log, id and loop. */
#ifndef TARN_TRANSPORT_HOST_START_H
#define TARN_TRANSPORT_HOST_START_H

#include "base/net.h"
#include "transport/host/host.h"

/* Serves on the host's transports, one after the other. `wanted`: a comma list; NULL: all that this machine
 * has. strict: it fails if one does; else those are left out with a line in the log. */
int tarn_host_serve(struct tarn_host *h, const struct tarn_serve *serve, const char *wanted, bool strict);
/* Opens both sockets; *listen gets the port taken. BUSY: another program has the port or socket. */
int tarn_host_listen(struct tarn_host *h, struct tarn_addr *listen, const struct tarn_addr *unix_addr);
/* Ends connections, sessions, transports and their ATTACHes, in this order. The loop does not run. */
void tarn_host_end(struct tarn_host *h);

#endif
