/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Lua scripts that change records, and how they are run.
 *
 * Each touches one key, KEYS[1]; only `forget` looks at a second one. All of them compare what is there
 * before they write: one that finds its work done changes nothing. Late is another matter than twice:
 * a publish that is run after the node gave it up takes effect, and redis.h says how that is prevented.
 *
 * They are run by EVALSHA. The digest comes from SCRIPT LOAD, once a directory; when Redis has
 * forgotten the script since (restart, failover, SCRIPT FLUSH) it answers NOSCRIPT, the script is
 * loaded again and what had not run is sent again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "metadata/redis.h"

/*
 * publish: KEYS[1] object; ARGV: 1 mode, 2 version to be replaced or 0, 3 expiry in ms or 0, 4 channel,
 * 5 event or '', 6.. the record's fields and values in the order tensor, ver, born, [ttl], location.
 * Answers {1, displaced field, value ...} or {0, field, value ...} of the record that stays.
 * Copies of one object agree in version and tensor; in modes absent and join a place that is taken stays
 * so. A join makes no record: of the version that it is a copy of, one must be there.
 * A record without ver, born, tensor or any location is damaged and counts as none.
 * PUBLISH is a pcall: a user without the right to the channel may store nevertheless.
 */
static const char publish[] =
    "local mode, replaces, expiry, channel, event = unpack(ARGV, 1, 5)\n"
    "local tensor, ver, born, field, value = ARGV[7], ARGV[9], ARGV[11], ARGV[#ARGV - 1], ARGV[#ARGV]\n"
    "local all, there, others = redis.call('HGETALL', KEYS[1]), {}, {1}\n"
    "for i = 1, #all, 2 do\n"
    "    there[all[i]] = all[i + 1]\n"
    "    if all[i]:sub(1, 1) == '@' then\n"
    "        others[#others + 1] = all[i]\n"
    "        others[#others + 1] = all[i + 1]\n"
    "    end\n"
    "end\n"
    "local function newer()\n"
    "    local b, own = tonumber(there.born), tonumber(born)\n"
    "    if b ~= own then return b ~= nil and b > own end\n"
    "    if #there.ver ~= #ver then return #there.ver > #ver end\n"
    "    return there.ver > ver\n"
    "end\n"
    "local function stays()\n"
    "    if mode == 'join' then return true end\n"
    "    if not (there.ver and there.born and there.tensor and #others > 1) then return false end\n"
    "    if mode == 'replace' then return replaces ~= '0' and there.ver ~= replaces end\n"
    "    return mode == 'absent' or newer()\n"
    "end\n"
    "local function refuse()\n"
    "    table.insert(all, 1, 0)\n"
    "    return all\n"
    "end\n"
    "if there.ver == ver and there.tensor == tensor then\n"
    "    if there[field] == value then return {1} end\n"
    "    if (mode == 'absent' or mode == 'join') and there[field] then return refuse() end\n"
    "    others = there[field] and {1, field, there[field]} or {1}\n"
    "    redis.call('HSET', KEYS[1], field, value)\n"
    "else\n"
    "    if stays() then return refuse() end\n"
    "    if #all > 0 then redis.call('DEL', KEYS[1]) end\n"
    "    redis.call('HSET', KEYS[1], unpack(ARGV, 6))\n"
    "end\n"
    "if expiry ~= '0' then redis.call('PEXPIRE', KEYS[1], expiry) end\n"
    "if event ~= '' then redis.pcall('PUBLISH', channel, event) end\n"
    "return others\n";

/* withdraw: KEYS[1] object; ARGV: 1 location field, 2 its value, 3 channel, 4 event or ''. Answers 1 or 0. */
static const char withdraw[] =
    "local field, value, channel, event = unpack(ARGV)\n"
    "if redis.call('HGET', KEYS[1], field) ~= value then return 0 end\n"
    "local others = 0\n"
    "for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do\n"
    "    if name:sub(1, 1) == '@' and name ~= field then others = others + 1 end\n"
    "end\n"
    "if others > 0 then redis.call('HDEL', KEYS[1], field) else redis.call('DEL', KEYS[1]) end\n"
    "if event ~= '' then redis.pcall('PUBLISH', channel, event) end\n"
    "return 1\n";

/*
 * refresh: KEYS[1] node or pool; ARGV: 1 epoch, 2 expiry in ms, 3 until when (Redis's time in ms) a record that
 * is not there is made, 4.. fields and values. Answers the epoch that was there, '' when it was made, 'gone' when
 * there is none. Writes only over its own epoch; fields of earlier beats go.
 */
static const char refresh[] =
    "local epoch = redis.call('HGET', KEYS[1], 'epoch') or ''\n"
    "if epoch ~= '' and epoch ~= ARGV[1] then return epoch end\n"
    "local t = redis.call('TIME')\n"
    "if epoch == '' and t[1] * 1000 + t[2] / 1000 >= tonumber(ARGV[3]) then return 'gone' end\n"
    "redis.call('DEL', KEYS[1])\n"
    "redis.call('HSET', KEYS[1], 'epoch', ARGV[1], unpack(ARGV, 4))\n"
    "redis.call('PEXPIRE', KEYS[1], ARGV[2])\n"
    "return epoch\n";

/* drop: KEYS[1] node or pool; ARGV: 1 epoch. Answers 1 or 0. */
static const char drop[] = "if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return 0 end\n"
                           "return redis.call('DEL', KEYS[1])\n";

/*
 * sweep: as withdraw, with one more argument: until when, by Redis's time in ms. Later it answers 0: the node
 * that looked dead may be back by then, and have found its location in the record.
 */
static const char sweep[] = "local t = redis.call('TIME')\n"
                            "if t[1] * 1000 + t[2] / 1000 >= tonumber(ARGV[5]) then return 0 end\n";

/* forget: KEYS[1] set of ids, [2] node; ARGV: 1 its id. Answers 1 when this took it out. One that is back stays. */
static const char forget[] = "if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end\n"
                             "return redis.call('SREM', KEYS[1], ARGV[1])\n";

static const char *const scripts[TARN_SCRIPT_COUNT] = {
    [TARN_SCRIPT_PUBLISH] = publish,
    [TARN_SCRIPT_WITHDRAW] = withdraw,
    [TARN_SCRIPT_REFRESH] = refresh,
    [TARN_SCRIPT_STATE] = tarn_state_script,
    [TARN_SCRIPT_DROP] = drop,
    [TARN_SCRIPT_SWEEP] = sweep,
    [TARN_SCRIPT_FORGET] = forget,
};

/* --- loading ------------------------------------------------------------------------------------ */

struct load {
    struct tarn_directory *d;
    const char *text;
    char *sha;
};

static int append_load(void *arg, struct tarn_resp *r)
{
    const struct load *l = arg;
    const char *argv[] = {"SCRIPT", "LOAD", l->text};
    return tarn_resp_append(r, 3, argv, NULL);
}

static int take_sha(void *arg, size_t i, const redisReply *reply)
{
    const struct load *l = arg;
    int rc = tarn_redis_check(l->d, reply);
    (void)i;
    if (rc)
        return rc;
    if (reply->type != REDIS_REPLY_STRING || reply->len != TARN_SHA_TEXT - 1)
        return tarn_fail(TARN_E_DIRECTORY,
                         "redis at %s: SCRIPT LOAD did not answer with a digest: is this a "
                         "proxy without scripts?",
                         l->d->uri.address);
    memcpy(l->sha, reply->str, TARN_SHA_TEXT);
    return 0;
}

static int load(struct tarn_directory *d, uint64_t deadline_ns, enum tarn_script script,
                char sha[TARN_SHA_TEXT])
{
    char text[sizeof sweep + sizeof withdraw];
    struct load l = {d, scripts[script], sha};
    struct tarn_pipeline p = {.n = 1, .append = append_load, .reply = take_sha, .arg = &l};
    if (script == TARN_SCRIPT_SWEEP) {
        snprintf(text, sizeof text, "%s%s", sweep, withdraw);
        l.text = text;
    }
    int rc = tarn_redis_run(d, deadline_ns, &p);
    if (rc)
        return rc;
    pthread_mutex_lock(&d->lock);
    memcpy(d->sha[script], sha, TARN_SHA_TEXT);
    pthread_mutex_unlock(&d->lock);
    return 0;
}

bool tarn_script_sha(struct tarn_directory *d, enum tarn_script script, char sha[TARN_SHA_TEXT])
{
    pthread_mutex_lock(&d->lock);
    memcpy(sha, d->sha[script], TARN_SHA_TEXT);
    pthread_mutex_unlock(&d->lock);
    return sha[0];
}

/* --- running ------------------------------------------------------------------------------------ */

/* One pass over the commands; those that meet NOSCRIPT are noted for a second one. */
struct pass {
    const struct tarn_script_pipeline *p;
    char sha[TARN_SHA_TEXT];
    const size_t *which; /* the commands of this pass; NULL: all */
    size_t n;            /* how many they are */
    size_t *unknown;     /* commands to be sent again; NULL: none */
    size_t nunknown;
};

static size_t command(const struct pass *s, size_t i)
{
    return s->which ? s->which[i] : i;
}

static int append_pass(void *arg, struct tarn_resp *r)
{
    struct pass *s = arg;
    for (size_t i = 0; i < s->n; i++) {
        int rc = s->p->append(s->p->arg, command(s, i), s->sha, r);
        if (rc)
            return rc;
    }
    return 0;
}

static int note_unknown(struct pass *s, size_t i)
{
    if (!s->unknown)
        s->unknown = calloc(s->n, sizeof *s->unknown);
    if (!s->unknown)
        return tarn_fail(TARN_E_NO_MEMORY, "directory: %zu commands to send again", s->n);
    s->unknown[s->nunknown++] = i;
    return 0;
}

static int take_reply(void *arg, size_t i, const redisReply *reply)
{
    struct pass *s = arg;
    if (!s->which && reply->type == REDIS_REPLY_ERROR && !strncmp(reply->str, "NOSCRIPT", 8))
        return note_unknown(s, i);
    return s->p->reply(s->p->arg, command(s, i), reply);
}

static int run_pass(struct tarn_directory *d, uint64_t deadline_ns, struct pass *s)
{
    struct tarn_pipeline p = {
        .n = s->n, .writes = true, .append = append_pass, .reply = take_reply, .arg = s};
    return tarn_redis_run(d, deadline_ns, &p);
}

int tarn_script_run(struct tarn_directory *d, uint64_t deadline_ns, const struct tarn_script_pipeline *p)
{
    struct pass first = {.p = p, .n = p->n};
    int rc = tarn_script_sha(d, p->script, first.sha) ? 0 : load(d, deadline_ns, p->script, first.sha);
    if (!rc)
        rc = run_pass(d, deadline_ns, &first);
    if (!rc && first.nunknown) {
        struct pass again = {.p = p, .n = first.nunknown, .which = first.unknown};
        rc = load(d, deadline_ns, p->script, again.sha);
        if (!rc)
            rc = run_pass(d, deadline_ns, &again);
    }
    free(first.unknown);
    return rc;
}
