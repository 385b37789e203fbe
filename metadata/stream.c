/* SPDX-License-Identifier: Apache-2.0 */
/* Publishing without waiting; directory.h says what it promises. */
#include <stdlib.h>

#include "base/error.h"
#include "metadata/redis.h"

struct tarn_stream {
    struct tarn_directory *directory;
    struct tarn_redis *redis;
    char sha[TARN_SHA_TEXT];
    size_t owed; /* answers */
};

int tarn_stream_open(struct tarn_directory *d, uint64_t deadline_ns, struct tarn_stream **s_p)
{
    struct tarn_stream *s = calloc(1, sizeof *s);
    if (!s)
        return tarn_fail(TARN_E_NO_MEMORY, "directory: %zu bytes", sizeof *s);
    s->directory = d;
    int rc = tarn_redis_connect(d, deadline_ns, NULL, &s->redis);
    if (rc)
        goto free_stream;
    rc = tarn_redis_name(d, s->redis, deadline_ns);
    if (rc)
        goto free_connection;
    if (!tarn_script_sha(d, TARN_SCRIPT_PUBLISH, s->sha)) {
        rc = tarn_fail(TARN_E_INVALID, "directory: nothing was published yet");
        goto free_connection;
    }
    *s_p = s;
    return 0;

free_connection:
    tarn_redis_free(s->redis);
free_stream:
    free(s);
    return rc;
}

void tarn_stream_close(struct tarn_stream *s)
{
    if (!s)
        return;
    if (s->owed)
        tarn_redis_doubt(s->directory, s->redis);
    tarn_redis_free(s->redis);
    free(s);
}

int tarn_stream_fd(const struct tarn_stream *s)
{
    return tarn_resp_fd(s->redis->resp);
}

bool tarn_stream_unsent(const struct tarn_stream *s)
{
    return tarn_resp_unsent(s->redis->resp);
}

int tarn_stream_publish(struct tarn_stream *s, const struct tarn_publish *items, size_t n)
{
    if (tarn_redis_doubtful(s->directory))
        return tarn_fail(TARN_E_BUSY, "directory: Redis must end another connection first");
    if (!tarn_redis_leads(s->directory, s->redis))
        return tarn_fail(TARN_E_DIRECTORY, "directory: Redis has, or may have, another primary");
    for (size_t i = 0; i < n; i++) {
        int rc = tarn_publish_check(&items[i], i);
        if (rc)
            return rc;
    }
    for (size_t i = 0; i < n;) {
        size_t together = tarn_publish_together(&items[i], n - i);
        int rc = tarn_publish_append(s->directory, &items[i], together, s->sha, s->redis->resp);
        if (rc)
            return rc;
        s->owed++;
        i += together;
    }
    tarn_resp_push(s->redis->resp);
    s->directory->round_trips++;
    return 0;
}

int tarn_stream_take(struct tarn_stream *s, struct tarn_publish *items, size_t n, size_t *done)
{
    while (*done < n) {
        redisReply *reply;
        int rc = tarn_redis_try(s->redis, &reply);
        if (rc == TARN_E_AGAIN)
            return rc;
        if (rc) {
            tarn_sentinel_suspect(s->directory);
            return tarn_redis_fail(s->directory, s->redis, rc);
        }
        tarn_sentinel_heard(s->directory, reply);
        s->owed--;
        size_t together = tarn_publish_together(&items[*done], n - *done);
        tarn_publish_read(s->directory, reply, &items[*done], together, &rc);
        *done += together;
    }
    return 0;
}
