/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks all objects: SCAN gives a page of key names, HGETALL the record of each.
 *
 * A whole scan asks for the records of one page together with the names of the next: one round trip a page,
 * and one more. It leaves out objects that vanish in between, and damaged names and records, with a line in
 * the log.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "metadata/records.h"
#include "metadata/redis.h"

#define PAGE 1000

/* One round trip: the records of the names in `page`, and the names after `cursor`. */
struct step {
    struct tarn_directory *d;
    struct tarn_buf page; /* names of npage keys, each ended by a NUL */
    size_t npage;
    bool names; /* ask for names */
    uint64_t cursor;
    const char *pattern;
    uint32_t count;
    struct tarn_cancel *cancel;
    struct tarn_buf next; /* the names that came */
    size_t nnext;
    const char *at; /* in page: the next key */
    tarn_scan_fn fn;
    tarn_copies_fn copies; /* in place of fn */
    void *arg;
    struct tarn_record record;
};

/* The key that command i asks about, called for each in order; NULL: it asks for names. */
static const char *next_key(struct step *s, size_t i)
{
    const char *key = i ? s->at : s->names ? NULL : s->page.data;
    s->at = key ? key + strlen(key) + 1 : s->page.data;
    return key;
}

static int append_step(void *arg, size_t i, struct tarn_resp *r)
{
    struct step *s = arg;
    const char *key = next_key(s, i);
    if (key)
        return tarn_resp_append_strs(r, "HGETALL", key, NULL);
    struct tarn_command *c = tarn_resp_command(r, "SCAN", NULL);
    tarn_command_u64(c, s->cursor);
    tarn_command_strs(c, "MATCH", s->pattern, "COUNT", NULL);
    tarn_command_u64(c, s->count);
    return tarn_resp_append_command(r, c);
}

static int take_names(struct step *s, const redisReply *reply)
{
    int rc = tarn_redis_check_array(s->d, reply);
    if (rc)
        return rc;
    const redisReply *cursor = reply->elements == 2 ? reply->element[0] : NULL;
    const redisReply *names = reply->elements == 2 ? reply->element[1] : NULL;
    if (!cursor || cursor->type != REDIS_REPLY_STRING || names->type != REDIS_REPLY_ARRAY ||
        tarn_u64_parse(cursor->str, (size_t)cursor->len, 10, UINT64_MAX, &s->cursor))
        return tarn_fail(TARN_E_DIRECTORY, "redis at %s: not an answer to SCAN: is this a proxy?",
                         s->d->uri.address);
    for (size_t i = 0; i < names->elements; i++) {
        const redisReply *name = names->element[i];
        if (name->type != REDIS_REPLY_STRING || strlen(name->str) != (size_t)name->len ||
            strncmp(name->str, s->pattern, strlen(s->d->prefix) + 2))
            continue; /* no key of ours has a NUL in it */
        tarn_buf_add(&s->next, name->str, (size_t)name->len + 1);
        s->nnext++;
    }
    return s->next.failed ? tarn_fail(TARN_E_NO_MEMORY, "scan: a page of %zu keys", names->elements) : 0;
}

static int left_out(const struct step *s, const char *name)
{
    struct tarn_reason why;
    char shown[TARN_KEY_TEXT];
    tarn_reason_keep(&why, TARN_E_FORMAT);
    if (tarn_key_escape(&(struct tarn_key){name, strlen(name)}, shown, sizeof shown) < 0)
        snprintf(shown, sizeof shown, "?");
    tarn_log(s->d->log, TARN_LOG_WARN, "directory", "msg=\"left out a damaged record\" key=%s cause=\"%s\"",
             shown, why.text);
    return 0;
}

/* The record was read before; `none`: it has displaced copies only. Locations come first. */
static int give_copies(struct step *s, const struct tarn_key *key, const redisReply *reply, bool none)
{
    struct tarn_location copies[TARN_REPLICAS_MAX + TARN_DISPLACED_MAX];
    struct tarn_text texts[TARN_TEXTS_MAX];
    uint32_t nlocations = none ? 0 : s->record.nlocations, n = nlocations;
    size_t ntexts;
    if (tarn_reply_texts(reply, texts, &ntexts))
        return 0;
    memcpy(copies, s->record.locations, nlocations * sizeof *copies);
    for (size_t i = 0; i + 1 < ntexts && n < nlocations + TARN_DISPLACED_MAX; i += 2)
        if (texts[i].bytes && texts[i].data[0] == '-')
            n += !tarn_displaced_parse(texts[i], texts[i + 1], &copies[n]);
    return n ? s->copies(s->arg, key, copies, nlocations, n) : 0;
}

static int take_record(struct step *s, const char *name, const redisReply *reply)
{
    const char *escaped = name + strlen(s->d->prefix) + 2;
    char data[TARN_KEY_MAX + 1];
    int rc = tarn_object_read(s->d, reply, &s->record);
    if (rc == TARN_E_NOT_FOUND && !s->copies)
        return 0;
    bool none = rc == TARN_E_NOT_FOUND;
    if (none)
        rc = 0;
    if (rc && rc != TARN_E_FORMAT)
        return rc;
    int bytes = tarn_key_unescape(escaped, data, sizeof data);
    if (rc || bytes < 0)
        return left_out(s, escaped);
    struct tarn_key key = {data, (size_t)bytes};
    return s->copies ? give_copies(s, &key, reply, none) : s->fn(s->arg, &key, &s->record);
}

static int take_step(void *arg, size_t i, const redisReply *reply)
{
    struct step *s = arg;
    const char *key = next_key(s, i);
    return key ? take_record(s, key, reply) : take_names(s, reply);
}

/* Afterwards the names that came are the page. */
static int run_step(struct step *s, bool names, uint64_t deadline_ns)
{
    struct tarn_pipeline p = {
        .n = s->npage + names, .append = append_step, .reply = take_step, .arg = s, .cancel = s->cancel};
    s->names = names;
    s->next = (struct tarn_buf){0};
    s->nnext = 0;
    int rc = p.n ? tarn_redis_run(s->d, deadline_ns, &p) : 0;
    tarn_buf_free(&s->page);
    s->page = s->next;
    s->npage = s->nnext;
    return rc;
}

static int scan(struct tarn_directory *d, const char *match, struct step *s, bool whole, uint64_t deadline_ns)
{
    struct tarn_buf pattern = {0};
    tarn_buf_printf(&pattern, "%so:%s", d->prefix, match ? match : "*");
    if (pattern.failed) {
        tarn_buf_free(&pattern);
        return tarn_fail(TARN_E_NO_MEMORY, "scan: a pattern of %zu bytes", strlen(match));
    }
    s->d = d;
    s->pattern = pattern.data;
    int rc = run_step(s, true, deadline_ns);
    while (!rc && whole && s->cursor)
        rc = run_step(s, true, deadline_ns);
    if (!rc)
        rc = run_step(s, false, deadline_ns);
    tarn_buf_free(&s->page);
    tarn_buf_free(&pattern);
    return rc;
}

int tarn_directory_scan(struct tarn_directory *d, const char *match, uint64_t deadline_ns,
                        struct tarn_cancel *cancel, tarn_scan_fn fn, void *arg)
{
    struct step s = {.count = PAGE, .cancel = cancel, .fn = fn, .arg = arg};
    return scan(d, match, &s, true, deadline_ns);
}

int tarn_directory_scan_page(struct tarn_directory *d, uint32_t count, uint64_t *cursor, uint64_t deadline_ns,
                             tarn_copies_fn fn, void *arg)
{
    struct step s = {.count = count ? count : PAGE, .cursor = *cursor, .copies = fn, .arg = arg};
    int rc = scan(d, NULL, &s, false, deadline_ns);
    if (!rc)
        *cursor = s.cursor;
    return rc;
}
