/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A primary Redis, a replica of it, and three sentinels, which make the replica the primary when the primary
 * does not answer for a second.
 *
 *   struct sentinels *s = sentinels_start(h, NULL, NULL);
 *   ... harness_node_start(h, "node0", &s->redis, ...), client_open(s->redis.url, ...) ...
 *   harness_kill(s->servers[0]->process);
 *   HARNESS_UNTIL(sentinels_name(s) == 1, 20000);
 */
#ifndef TARN_TESTS_SENTINELS_H
#define TARN_TESTS_SENTINELS_H

#include "tests/harness.h"

enum { SENTINELS = 3 };

struct sentinels {
    struct harness_redis *servers[2]; /* the primary first */
    struct harness_redis redis;       /* its url names the sentinels, and nothing else is set */
    struct harness_process *processes[SENTINELS];
    char addresses[SENTINELS][32];
    char hosts[SENTINELS * 32]; /* all of them, for a URI */
    const char *password;       /* of the sentinels */
};

/* Passwords of Redis and of the sentinels; NULL: none. Returns when the sentinels know all of each other. */
struct sentinels *sentinels_start(struct harness *h, const char *redis_password, const char *password);
/* Which server the first living sentinel names: 0, 1. */
int sentinels_name(const struct sentinels *s);
/* Is this server a primary ("master") or a replica ("slave")? */
bool sentinels_role_is(const struct sentinels *s, int server, const char *role);

#endif
