/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server side of RESP: requests out of received bytes.
 *
 * A request is an array of bulk strings, nothing else. redisReader accepts far more, and allocates an array
 * of any announced length at once. So its constructors are wrapped: they refuse whatever no request may
 * contain, before memory is spent. The bytes of a request are counted, so an endless one is refused, too.
 * Requests live in an arena, one at a time.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/container.h"
#include "base/error.h"
#include "base/resp/resp.h"
#include "base/resp/resp_arena.h"

#define HEADER_MAX 32 /* "$<number>\r\n" is shorter */

struct tarn_resp_parser {
    redisReader *reader;
    struct tarn_arena arena;               /* holds the request that was returned, or is being read */
    const redisReplyObjectFunctions *make; /* in the arena */
    redisReplyObjectFunctions strict;
    size_t max_bytes, max_args;
    size_t request_bytes; /* received of the request that is being read, and behind it */
    bool inside;          /* its first byte has been looked at */
    bool returned;        /* the arena's request is complete */
    char why[128];        /* why the bytes are no request; "": they may be one */
};

static struct tarn_resp_parser *parser_of(const redisReadTask *task)
{
    return TARN_CONTAINER_OF((struct tarn_arena *)task->privdata, struct tarn_resp_parser, arena);
}

static void *refuse(const redisReadTask *task)
{
    struct tarn_resp_parser *p = parser_of(task);
    snprintf(p->why, sizeof p->why, "a request must be one array of bulk strings");
    return NULL;
}

static void *create_string(const redisReadTask *task, char *text, size_t bytes)
{
    if (!task->parent || task->type != REDIS_REPLY_STRING)
        return refuse(task);
    return parser_of(task)->make->createString(task, text, bytes);
}

static void *create_array(const redisReadTask *task, tarn_resp_count elements)
{
    struct tarn_resp_parser *p = parser_of(task);
    if (task->parent || task->type != REDIS_REPLY_ARRAY)
        return refuse(task);
    if ((size_t)elements > p->max_args) {
        snprintf(p->why, sizeof p->why, "a request of %zu arguments: at most %zu are allowed",
                 (size_t)elements, p->max_args);
        return NULL;
    }
    return p->make->createArray(task, elements);
}

static void *refuse_integer(const redisReadTask *task, long long value)
{
    (void)value;
    return refuse(task);
}

#if HIREDIS_MAJOR >= 1
static void *refuse_double(const redisReadTask *task, double value, char *text, size_t bytes)
{
    (void)value, (void)text, (void)bytes;
    return refuse(task);
}

static void *refuse_bool(const redisReadTask *task, int value)
{
    (void)value;
    return refuse(task);
}
#endif

struct tarn_resp_parser *tarn_resp_parser_new(size_t max_bytes, size_t max_args)
{
    struct tarn_resp_parser *p = calloc(1, sizeof *p);
    redisReader *reader = redisReaderCreate();

    if (!p || !reader)
        goto no_memory;
    tarn_arena_use(&p->arena, reader);
    p->make = reader->fn;
    p->strict = *reader->fn;
    p->strict.createString = create_string;
    p->strict.createArray = create_array;
    p->strict.createInteger = refuse_integer;
    p->strict.createNil = refuse;
#if HIREDIS_MAJOR >= 1
    p->strict.createDouble = refuse_double;
    p->strict.createBool = refuse_bool;
#endif
    reader->fn = &p->strict;
    p->reader = reader;
    p->max_bytes = max_bytes;
    p->max_args = max_args;
    return p;

no_memory:
    if (reader)
        redisReaderFree(reader);
    free(p);
    return NULL;
}

void tarn_resp_parser_limit(struct tarn_resp_parser *p, size_t max_bytes, size_t max_args)
{
    p->max_bytes = max_bytes;
    p->max_args = max_args;
}

size_t tarn_resp_parser_holds(const struct tarn_resp_parser *p)
{
    return p->request_bytes;
}

void tarn_resp_parser_free(struct tarn_resp_parser *p)
{
    if (!p)
        return;
    redisReaderFree(p->reader);
    tarn_arena_free(&p->arena);
    free(p);
}

int tarn_resp_parser_feed(struct tarn_resp_parser *p, const void *data, size_t bytes)
{
    if (p->why[0] || p->reader->err == REDIS_ERR_PROTOCOL)
        return 0; /* tarn_resp_parser_next() has the sentence */
    if (redisReaderFeed(p->reader, data, bytes) != REDIS_OK)
        return tarn_fail(TARN_E_NO_MEMORY, "out of memory for a request of %zu bytes", bytes);
    p->request_bytes += bytes;
    return 0;
}

static size_t unread(const struct tarn_resp_parser *p)
{
    return p->reader->len - p->reader->pos;
}

/* The reader would make replies of inline commands and of all else that is no array: refuse them. */
static void check_first_byte(struct tarn_resp_parser *p)
{
    if (p->inside || unread(p) == 0)
        return;
    unsigned char first = (unsigned char)p->reader->buf[p->reader->pos];
    p->inside = true;
    if (first != '*')
        snprintf(p->why, sizeof p->why,
                 "a request must begin with '*', not with byte 0x%02x: inline commands are not spoken, use "
                 "redis-cli",
                 first);
}

/*
 * The unread rest of an incomplete request begins with a header, "*N" or "$N", or with its number if the
 * reader has consumed the type. Refuses an endless header and one that announces too much, instead of
 * waiting.
 */
static void check_incomplete(struct tarn_resp_parser *p)
{
    const char *header = p->reader->buf ? p->reader->buf + p->reader->pos : "";
    size_t bytes = unread(p);
    const char *end = memchr(header, '\n', bytes < HEADER_MAX ? bytes : HEADER_MAX);

    if (p->request_bytes > p->max_bytes) {
        snprintf(p->why, sizeof p->why, "a request of more than %zu bytes", p->max_bytes);
    } else if (!end && bytes >= HEADER_MAX) {
        snprintf(p->why, sizeof p->why, "a length of more than %d digits", HEADER_MAX);
    } else if (end) {
        const char *number = header + (*header == '$' || *header == '*');
        unsigned long long announced = strtoull(number, NULL, 10);
        if (*number >= '0' && *number <= '9' && announced > p->max_bytes)
            snprintf(p->why, sizeof p->why, "an argument of %llu bytes: a request may take %zu", announced,
                     p->max_bytes);
    }
}

/* A request, or NULL when it is incomplete or wrong; p->why and reader->err tell which. */
static redisReply *take_request(struct tarn_resp_parser *p)
{
    void *reply = NULL;

    if (p->returned)
        tarn_arena_empty(&p->arena);
    p->returned = false;
    check_first_byte(p);
    if (p->why[0] || redisReaderGetReply(p->reader, &reply) != REDIS_OK)
        return NULL;
    if (!reply) {
        check_incomplete(p);
        return NULL;
    }
    size_t bytes = p->request_bytes - unread(p);
    p->request_bytes = unread(p);
    p->inside = false;
    p->returned = true;
    if (bytes > p->max_bytes) {
        snprintf(p->why, sizeof p->why, "a request of %zu bytes: at most %zu are allowed", bytes,
                 p->max_bytes);
        return NULL;
    }
    return reply;
}

int tarn_resp_parser_next(struct tarn_resp_parser *p, redisReply **request_p)
{
    redisReply *request;

    *request_p = NULL;
    /* Empty arrays ask for nothing and get no reply, as with Redis. */
    do
        request = take_request(p);
    while (request && request->elements == 0);
    if (p->why[0])
        return tarn_fail(TARN_E_PROTOCOL, "%s", p->why);
    if (p->reader->err == REDIS_ERR_OOM)
        return tarn_fail(TARN_E_NO_MEMORY, "out of memory for a request");
    if (p->reader->err)
        return tarn_fail(TARN_E_PROTOCOL, "%s", p->reader->errstr);
    *request_p = request;
    return 0;
}
