/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of one call: items, pieces, references. The first bytes are on the caller's stack, further ones
 * from malloc. */
#include "ext.h"

#include <string.h>

#define CHUNK_BYTES (32u << 10)

struct arena_chunk {
    _Alignas(16) struct arena_chunk *next;
};

void arena_init(struct arena *a)
{
    a->at = a->first;
    a->end = a->first + sizeof a->first;
    a->chunks = NULL;
}

static int add_chunk(struct arena *a, size_t bytes)
{
    size_t room = bytes < CHUNK_BYTES ? CHUNK_BYTES : bytes;
    struct arena_chunk *c = PyMem_RawMalloc(sizeof *c + room);

    if (!c) {
        PyErr_NoMemory();
        return -1;
    }
    c->next = a->chunks;
    a->chunks = c;
    a->at = (char *)(c + 1);
    a->end = a->at + room;
    return 0;
}

void *arena_alloc(struct arena *a, size_t bytes)
{
    if (bytes > PY_SSIZE_T_MAX - 4096) {
        PyErr_NoMemory();
        return NULL;
    }
    bytes = (bytes + 15) & ~(size_t)15;
    if ((size_t)(a->end - a->at) < bytes && add_chunk(a, bytes) < 0)
        return NULL;
    void *p = a->at;
    a->at += bytes;
    return p;
}

void *arena_zalloc(struct arena *a, size_t bytes)
{
    void *p = arena_alloc(a, bytes);

    if (p)
        memset(p, 0, bytes);
    return p;
}

void arena_free(struct arena *a)
{
    while (a->chunks) {
        struct arena_chunk *c = a->chunks;
        a->chunks = c->next;
        PyMem_RawFree(c);
    }
}
