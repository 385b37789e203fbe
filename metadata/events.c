/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events: Redis publish/subscribe on "tarn:<ns>:events", one line of text each:
 *   <stored|removed|evicted|expired> <escaped key> <node> <pool> <bytes>
 * A message has one or more, with newlines in between. They are hints: what was published while nobody
 * listened is not kept. Lines that are none are skipped. With sentinels, the subscription follows the
 * primary.
 */
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "metadata/records.h"
#include "metadata/redis.h"

#define EVENT_WORDS 5
#define MOVE_MS 60000 /* how long another primary is waited for, with sentinels */
#define MOVE_PAUSE_MS 100

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

/* Until the deadline, or until a push is there: 0. NODE_DOWN: another Redis is the primary now. */
static int await_push(struct tarn_directory *d, struct tarn_redis *c, uint64_t deadline_ns,
                      struct tarn_cancel *cancel, redisReply **push_p)
{
    int rc;
    while ((rc = tarn_redis_try(c, push_p)) == TARN_E_AGAIN) {
        uint64_t look_ns = tarn_deadline(TARN_CONFIRM_MS);
        rc = tarn_net_wait(tarn_resp_fd(c->resp), POLLIN, look_ns < deadline_ns ? look_ns : deadline_ns,
                           cancel);
        if (rc && (rc != TARN_E_TIMEOUT || !tarn_left_ms(deadline_ns)))
            return rc;
        tarn_sentinel_confirm(d, TARN_CONFIRM_MS, deadline_ns);
        if (!tarn_redis_leads(d, c))
            return TARN_E_NODE_DOWN;
    }
    return rc;
}

struct listening {
    struct tarn_directory *d;
    struct tarn_cancel *cancel;
    tarn_event_fn fn;
    void *arg;
    uint64_t lost_ns; /* when a subscription was lost; 0: never */
    bool over;        /* fn has said so, or Redis refuses */
};

static int listen_on(struct listening *l, struct tarn_redis *c, uint64_t deadline_ns)
{
    bool subscribed = false;
    int rc = tarn_resp_append_strs(c->resp, "SUBSCRIBE", l->d->channel, NULL);
    l->d->round_trips++;
    while (!rc) {
        redisReply *push;
        rc = await_push(l->d, c, deadline_ns, l->cancel, &push);
        if (rc)
            break;
        rc = take_push(l->d, push, l->fn, l->arg);
        l->over = rc;
        subscribed = true;
    }
    if (subscribed)
        l->lost_ns = tarn_now_ns();
    if (l->over || (rc == TARN_E_TIMEOUT && subscribed))
        return l->over ? rc : 0;
    if (rc == TARN_E_NODE_DOWN)
        tarn_sentinel_suspect(l->d);
    return tarn_redis_fail(l->d, c, rc);
}

static int listen_once(struct listening *l, uint64_t deadline_ns)
{
    struct tarn_redis *c;
    int rc = tarn_redis_connect(l->d, deadline_ns, l->cancel, &c);
    if (rc)
        return rc;
    rc = listen_on(l, c, deadline_ns);
    tarn_redis_free(c);
    return rc;
}

/* Sentinels need seconds to name another primary. */
static bool may_move(const struct listening *l, int rc)
{
    return l->d->uri.sentinels.n && !l->over && l->lost_ns &&
           tarn_now_ns() - l->lost_ns < MOVE_MS * TARN_NS_PER_MS &&
           (rc == TARN_E_DIRECTORY || rc == TARN_E_TIMEOUT);
}

int tarn_directory_events(struct tarn_directory *d, uint64_t deadline_ns, struct tarn_cancel *cancel,
                          tarn_event_fn fn, void *arg)
{
    struct listening l = {.d = d, .cancel = cancel, .fn = fn, .arg = arg};
    int rc = listen_once(&l, deadline_ns);
    while (may_move(&l, rc)) {
        if (!tarn_cancel_pause(cancel, deadline_ns, MOVE_PAUSE_MS))
            return tarn_canceled(cancel) ? tarn_cancel_fail() : 0;
        rc = listen_once(&l, deadline_ns);
    }
    return rc;
}
