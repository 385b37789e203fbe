/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events: Redis publish/subscribe on "tarn:<ns>:events", one line of text each:
 *   <stored|removed|evicted|expired> <escaped key> <node> <pool> <bytes>
 * A message has one or more, with newlines in between. They are hints: what was published while nobody
 * listened is not kept. Lines that are none are skipped.
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "metadata/records.h"
#include "metadata/redis.h"

#define EVENT_WORDS 5

/* Cuts the line at its blanks. */
static bool split(char *line, char *words[EVENT_WORDS])
{
    for (int i = 0; i < EVENT_WORDS; i++) {
        words[i] = strsep(&line, " ");
        if (!words[i] || !*words[i])
            return false;
    }
    return !line;
}

static bool is_event(const char *word)
{
    static const char *const all[] = {"stored", "removed", "evicted", "expired"};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (strcmp(word, all[i]) == 0)
            return true;
    return false;
}

static int deliver(char *line, tarn_event_fn fn, void *arg)
{
    char *words[EVENT_WORDS], data[TARN_KEY_MAX + 1];
    uint64_t bytes;
    if (!split(line, words) || !is_event(words[0]) ||
        tarn_u64_parse(words[4], strlen(words[4]), 10, UINT64_MAX, &bytes))
        return 0;
    int n = tarn_key_unescape(words[1], data, sizeof data);
    if (n < 0 || !tarn_name_valid(words[2], strlen(words[2]), TARN_NODE_ID_MAX) ||
        !tarn_name_valid(words[3], strlen(words[3]), TARN_POOL_NAME_MAX))
        return 0;
    struct tarn_key key = {data, (size_t)n};
    return fn(arg, words[0], &key, words[2], words[3], bytes);
}

/* A pushed message is {"message", channel, line}; the answer to SUBSCRIBE comes first. */
static int take_push(struct tarn_directory *d, const redisReply *push, tarn_event_fn fn, void *arg)
{
    int rc = tarn_redis_check_array(d, push);
    if (rc)
        return rc;
    if (push->elements != 3 || push->element[0]->type != REDIS_REPLY_STRING ||
        strcmp(push->element[0]->str, "message") || push->element[2]->type != REDIS_REPLY_STRING)
        return 0;
    char *lines = push->element[2]->str;
    while (!rc && lines)
        rc = deliver(strsep(&lines, "\n"), fn, arg);
    return rc;
}

static int listen_on(struct tarn_directory *d, struct tarn_redis *c, uint64_t deadline_ns,
                     struct tarn_cancel *cancel, tarn_event_fn fn, void *arg)
{
    int rc = tarn_resp_append_strs(c->resp, "SUBSCRIBE", d->channel, NULL);
    bool subscribed = false;
    d->round_trips++;
    while (!rc) {
        redisReply *push;
        rc = tarn_redis_read(c, deadline_ns, cancel, &push);
        if (rc)
            return rc == TARN_E_TIMEOUT && subscribed ? 0 : tarn_redis_fail(d, c, rc);
        rc = take_push(d, push, fn, arg);
        subscribed = true;
    }
    return rc;
}

int tarn_directory_events(struct tarn_directory *d, uint64_t deadline_ns, struct tarn_cancel *cancel,
                          tarn_event_fn fn, void *arg)
{
    struct tarn_redis *c;
    int rc = tarn_redis_connect(d, deadline_ns, cancel, &c);
    if (rc)
        return rc;
    rc = listen_on(d, c, deadline_ns, cancel, fn, arg);
    tarn_redis_free(c);
    return rc;
}
