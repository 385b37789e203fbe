/* SPDX-License-Identifier: Apache-2.0 */
/* A private redis-server, for a node whose settings name no Redis: one machine then needs no set-up. */
#ifndef TARN_SERVER_PRIVATE_REDIS_H
#define TARN_SERVER_PRIVATE_REDIS_H

#include "base/log.h"

struct tarn_private_redis;

/*
 * Starts redis-server without persistence on a free port of 127.0.0.1 and on a Unix socket of mode 0600 in
 * `dir`, with a random password, and waits until it answers. redis-server ends when this process ends.
 * UNAVAILABLE: it is not installed. Also TIMEOUT, SYSTEM.
 */
int tarn_private_redis_start(const char *dir, uint64_t deadline_ns, struct tarn_private_redis **r_p);
/* "redis://default:PASSWORD@127.0.0.1:PORT", for clients of the node. */
const char *tarn_private_redis_uri(const struct tarn_private_redis *r);
/* The same Redis by its Unix socket, which costs the node less than TCP. Has the password, too. */
const char *tarn_private_redis_socket_uri(const struct tarn_private_redis *r);
/*
 * The control thread calls it regularly. If redis-server has died, starts it again, empty and at the same
 * address. SYSTEM: redis-server keeps dying.
 */
int tarn_private_redis_tend(struct tarn_private_redis *r, const struct tarn_logger *log);
/* Ends it and waits for its end. NULL is allowed. */
void tarn_private_redis_stop(struct tarn_private_redis *r);

#endif
