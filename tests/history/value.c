/* SPDX-License-Identifier: Apache-2.0 */
/* Values that name their key, version and place; see value.h. */
#include "tests/history/value.h"

#include <string.h>

#define MAGIC 0x6e726154u

struct piece {
    uint32_t magic, key;
    uint64_t version;
    uint64_t index;
    uint64_t sum;
};

_Static_assert(sizeof(struct piece) == VALUE_BYTES_MIN, "a piece has 32 bytes");

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static struct piece make(uint32_t key, uint64_t version, uint64_t index)
{
    return (struct piece){.magic = MAGIC,
                          .key = key,
                          .version = version,
                          .index = index,
                          .sum = mix(mix(version + key) + index)};
}

void value_fill(void *data, size_t bytes, uint32_t key, uint64_t version)
{
    for (size_t at = 0, i = 0; at < bytes; at += sizeof(struct piece), i++) {
        struct piece p = make(key, version, i);
        size_t n = bytes - at < sizeof p ? bytes - at : sizeof p;
        memcpy((char *)data + at, &p, n);
    }
}

/* Is it an intact piece of some value? */
static bool is_sound(const struct piece *p)
{
    struct piece want = make(p->key, p->version, p->index);
    return memcmp(p, &want, sizeof want) == 0;
}

/* Names the fault of a piece that is not make(key, version, index). */
static enum history_wrong judge(const char *at, size_t bytes, uint32_t key, uint64_t version)
{
    struct piece p;
    if (bytes < sizeof p)
        return HISTORY_GARBLED;
    memcpy(&p, at, sizeof p);
    if (!is_sound(&p))
        return HISTORY_GARBLED;
    if (p.key != key)
        return HISTORY_FOREIGN;
    return p.version == version ? HISTORY_MISPLACED : HISTORY_TORN;
}

enum history_wrong value_inspect(const void *data, size_t bytes, uint32_t key, uint64_t *version_p,
                                 size_t *at_p)
{
    struct piece first = {0};
    const char *from = data;
    memcpy(&first, data, bytes < sizeof first ? bytes : sizeof first);
    *version_p = is_sound(&first) ? first.version : 0;
    for (size_t at = 0, i = 0; at < bytes; at += sizeof first, i++) {
        struct piece want = make(key, *version_p, i);
        size_t n = bytes - at < sizeof want ? bytes - at : sizeof want;
        if (memcmp(from + at, &want, n) == 0)
            continue;
        *at_p = at;
        return judge(from + at, n, key, *version_p);
    }
    *at_p = bytes;
    return HISTORY_RIGHT;
}
