/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the parser of Redis URIs. The address of an accepted one, which has no login, must mean the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "metadata/redis.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void demand(bool holds)
{
    if (!holds)
        abort();
}

static bool same(const struct tarn_addr *a, const struct tarn_addr *b)
{
    return a->port == b->port && a->is_unix == b->is_unix && !strcmp(a->host, b->host);
}

/* A path may have bytes that are escapes in a URI. */
static bool has_escapes(const struct tarn_redis_uri *u)
{
    return u->addr.is_unix && strpbrk(u->addr.host, "%?");
}

static void parse_again(const struct tarn_redis_uri *u)
{
    struct tarn_redis_uri again;
    demand(tarn_redis_uri_parse(u->address, &again) == 0);
    demand(!strcmp(u->address, again.address) && same(&u->addr, &again.addr));
    demand(u->sentinels.n == again.sentinels.n && !strcmp(u->sentinels.name, again.sentinels.name));
    for (unsigned i = 0; i < u->sentinels.n; i++)
        demand(same(&u->sentinels.addrs[i], &again.sentinels.addrs[i]));
    tarn_redis_uri_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct tarn_redis_uri u;
    char *text = malloc(bytes + 1);
    demand(text != NULL);
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    if (tarn_redis_uri_parse(text, &u) == 0) {
        demand(u.sentinels.n <= TARN_SENTINELS_MAX && !u.sentinels.n == !u.sentinels.name[0]);
        if (!has_escapes(&u))
            parse_again(&u);
        tarn_redis_uri_free(&u);
    }
    free(text);
    return 0;
}
