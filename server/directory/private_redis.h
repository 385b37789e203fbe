/* SPDX-License-Identifier: Apache-2.0 */
/* A redis-server of the node's own, for when none was named: one machine then needs no set-up. */
#ifndef TARN_SERVER_PRIVATE_REDIS_H
#define TARN_SERVER_PRIVATE_REDIS_H

#include <stdint.h>

struct tarn_private_redis;

/*
 * Starts redis-server without persistence on a free port of 127.0.0.1 and on a Unix socket in `dir`,
 * and waits until it answers. It dies with this process. UNAVAILABLE when it is not installed,
 * TIMEOUT, SYSTEM.
 */
int tarn_private_redis_start(const char *dir, uint64_t deadline_ns, struct tarn_private_redis **r_p);
/* "redis://127.0.0.1:PORT", for everybody. */
const char *tarn_private_redis_uri(const struct tarn_private_redis *r);
/* Ends it and waits for its end. NULL is allowed. */
void tarn_private_redis_stop(struct tarn_private_redis *r);

#endif
