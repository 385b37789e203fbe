/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An arena of chunks behind hiredis's reply functions. Emptying keeps one chunk, so that in the long run
 * replies need no allocation. A reply is one piece with its text or elements.
 */
#include "base/resp/resp_arena.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK (16 * 1024)
#define ALIGN sizeof(max_align_t)

struct tarn_arena_chunk {
    struct tarn_arena_chunk *next;
    size_t room, used;
    max_align_t data[];
};

static void *take(struct tarn_arena *a, size_t bytes)
{
    struct tarn_arena_chunk *c = a->first;
    if (bytes > SIZE_MAX / 2)
        return NULL;
    bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (!c || c->room - c->used < bytes) {
        size_t room = bytes > CHUNK ? bytes : CHUNK;
        c = malloc(sizeof *c + room);
        if (!c)
            return NULL;
        c->next = a->first;
        c->room = room;
        c->used = 0;
        a->first = c;
    }
    void *p = (char *)c->data + c->used;
    c->used += bytes;
    return p;
}

/* A reply with room for `extra` bytes behind it, put into the array it belongs to. NULL: hiredis reports it.
 */
static redisReply *create(const redisReadTask *task, int type, size_t extra)
{
    redisReply *r = take(task->privdata, sizeof *r + extra);
    if (!r)
        return NULL;
    memset(r, 0, sizeof *r);
    r->type = type;
    if (task->parent) {
        redisReply *array = task->parent->obj;
        array->element[task->idx] = r;
    }
    return r;
}

static void *create_string(const redisReadTask *task, char *text, size_t bytes)
{
    redisReply *r = create(task, task->type, bytes + 1);
    if (!r)
        return NULL;
    r->str = (char *)(r + 1);
    memcpy(r->str, text, bytes);
    r->str[bytes] = '\0';
    r->len = bytes;
    return r;
}

static void *create_array(const redisReadTask *task, tarn_resp_count count)
{
    size_t n = (size_t)count;
    if (n > SIZE_MAX / 4 / sizeof(redisReply *))
        return NULL;
    redisReply *r = create(task, task->type, n * sizeof(redisReply *));
    if (!r)
        return NULL;
    r->elements = n;
    r->element = (redisReply **)(r + 1);
    return r;
}

static void *create_integer(const redisReadTask *task, long long value)
{
    redisReply *r = create(task, REDIS_REPLY_INTEGER, 0);
    if (r)
        r->integer = value;
    return r;
}

static void *create_nil(const redisReadTask *task)
{
    return create(task, REDIS_REPLY_NIL, 0);
}

/* When a connection ends, hiredis frees half a reply; the arena goes soon after. */
static void free_nothing(void *reply)
{
    (void)reply;
}

#if HIREDIS_MAJOR >= 1
/* We never ask for RESP3 types. NULL ends the connection of a peer that sends them. */
static void *refuse_double(const redisReadTask *task, double value, char *text, size_t bytes)
{
    (void)task, (void)value, (void)text, (void)bytes;
    return NULL;
}

static void *refuse_bool(const redisReadTask *task, int value)
{
    (void)task, (void)value;
    return NULL;
}
#endif

static const redisReplyObjectFunctions functions = {
    .createString = create_string,
    .createArray = create_array,
    .createInteger = create_integer,
#if HIREDIS_MAJOR >= 1
    .createDouble = refuse_double,
    .createBool = refuse_bool,
#endif
    .createNil = create_nil,
    .freeObject = free_nothing,
};

void tarn_arena_use(struct tarn_arena *a, redisReader *reader)
{
    reader->fn = (redisReplyObjectFunctions *)&functions; /* only read by hiredis */
    reader->privdata = a;
}

void tarn_arena_empty(struct tarn_arena *a)
{
    while (a->first && (a->first->next || a->first->room > CHUNK)) {
        struct tarn_arena_chunk *c = a->first;
        a->first = c->next;
        free(c);
    }
    if (a->first)
        a->first->used = 0;
}

void tarn_arena_free(struct tarn_arena *a)
{
    tarn_arena_empty(a);
    free(a->first);
    a->first = NULL;
}
