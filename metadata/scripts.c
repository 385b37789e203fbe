/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Lua scripts that change records, and how they are run.
 *
 * `publish`, `restore`, `withdraw` and `sweep` take several objects, each for itself; `forget` and the
 * directory's hash look at a second key; all others touch one key, KEYS[1]. Each compares before it writes,
 * and changes nothing if its work is done: running twice is harmless. Running late is not: a publish that
 * runs after its node gave up takes effect. redis.h says how that is prevented.
 *
 * They are run by EVALSHA, with a digest from SCRIPT LOAD, once a directory. If Redis has forgotten a script
 * since (restart, failover, SCRIPT FLUSH), it answers NOSCRIPT: the script is loaded again, and the commands
 * that did not run are sent again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "metadata/redis.h"

#define TEXT(number_) #number_
#define TEXT_OF(number_) TEXT(number_)
#define MOST TEXT_OF(TARN_DISPLACED_MAX)
#define EXPIRY TEXT_OF(TARN_DISPLACED_EXPIRY_MS)

/* Begins the three scripts below: turns a location's name and value into those of a displaced copy. */
#define DISPLACED_NAME \
    "local function as_displaced(name, place)\n" \
    "    local offset, rest = place:match('^(%d+):(%d+:%x+)$')\n" \
    "    return rest and '-' .. name:sub(2) .. ':' .. rest, offset\n" \
    "end\n"

/* Announces the events of the objects i with which_[i]; there are count_. */
#define TELL(which_, count_) \
    "if " count_ " < #KEYS then\n" \
    "    local i, told = 0, {}\n" \
    "    for line in events:gmatch('[^\\n]+') do\n" \
    "        i = i + 1\n" \
    "        if " which_ "[i] then told[#told + 1] = line end\n" \
    "    end\n" \
    "    events = table.concat(told, '\\n')\n" \
    "end\n" \
    "if events ~= '' then redis.pcall('PUBLISH', channel, events) end\n"

/*
 * publish: KEYS objects; ARGV: 1 channel, 2 the objects' events, a line each, or '', 3 mode, 4 version to be
 * replaced or 0, 5 expiry in ms or 0, 6 ttl in ms or 0, 7 location's name, 8 tensor, 9 ver, 10 born, then for
 * each object: those of the last three that are '' here, location. (An argument costs as much as a tenth of
 * all else.) Answers a list, for each object one of:
 *   1                             it is there as given, and no copy gave way
 *   {1, born, field, value ...}   the displaced copies that the record names, then locations of the same node
 *                                 that gave way
 *   {0, field, value ...}         the record that stays
 *   {2}                           it would name too many displaced copies
 *   an error                      Redis's own
 * Copies of one object agree in version and tensor. Modes absent and join change no location that is there. A
 * join makes no record: one of its version must be there. A record without ver, born, tensor or any location
 * is damaged and counts as none. A copy that the record names as displaced is not restored. In the other
 * modes it was published before and has given way since. `born` grows, so that a later restore, too, takes
 * the copy that gave way for the older one. Events of all new copies are one message. PUBLISH is a pcall: a
 * user without the right to the channel may still store.
 */
static const char publish[] = DISPLACED_NAME
    "local channel, events, mode, replaces, expiry, ttl, field, tensors, vers, borns = unpack(ARGV, 1, 10)\n"
    "local call = redis.call\n"
    "local function set(call, key, tensor, ver, born, place)\n"
    "    if ttl == '0' then\n"
    "        return call('HSET', key, 'tensor', tensor, 'ver', ver, 'born', born, field, place)\n"
    "    end\n"
    "    return call('HSET', key, 'tensor', tensor, 'ver', ver, 'born', born, 'ttl', ttl, field, place)\n"
    "end\n"
    "local function change(key, tensor, ver, own_born, place)\n"
    "    local node, born = field:match('^@[^/]*/'), own_born\n"
    "    local all, there, places, named, went = redis.call('HGETALL', key), {}, {}, {}, {}\n"
    "    for i = 1, #all, 2 do\n"
    "        local kind = all[i]:sub(1, 1)\n"
    "        local list = kind == '@' and places or kind == '-' and named or {}\n"
    "        there[all[i]] = all[i + 1]\n"
    "        list[#list + 1] = all[i]\n"
    "        list[#list + 1] = all[i + 1]\n"
    "    end\n"
    "    local function newer()\n"
    "        local b, own = tonumber(there.born), tonumber(born)\n"
    "        if b ~= own then return b ~= nil and b > own end\n"
    "        if #there.ver ~= #ver then return #there.ver > #ver end\n"
    "        return there.ver > ver\n"
    "    end\n"
    "    local function stays()\n"
    "        if mode == 'join' then return true end\n"
    "        if not (there.ver and there.born and there.tensor and #places > 0) then return false end\n"
    "        if replaces ~= '0' then return there.ver ~= replaces end\n"
    "        if mode == 'replace' then return false end\n"
    "        return mode == 'absent' or newer()\n"
    "    end\n"
    "    local function refuse()\n"
    "        table.insert(all, 1, 0)\n"
    "        return all\n"
    "    end\n"
    "    local function done()\n"
    "        local answer = {1, born}\n"
    "        for _, text in ipairs(named) do answer[#answer + 1] = text end\n"
    "        for _, text in ipairs(went) do answer[#answer + 1] = text end\n"
    "        return answer\n"
    "    end\n"
    "    if there[as_displaced(field, place)] then\n"
    "        if mode == 'restore' then return refuse() end\n"
    "        return done()\n"
    "    end\n"
    "    if there.ver == ver and there.tensor == tensor then\n"
    "        born = there.born or born\n"
    "        if there[field] == place then return done() end\n"
    "        if (mode == 'absent' or mode == 'join') and there[field] then return refuse() end\n"
    "        if there[field] then went = {field, there[field]} end\n"
    "        redis.call('HSET', key, field, place)\n"
    "    else\n"
    "        if stays() then return refuse() end\n"
    "        for i = 1, #places, 2 do\n"
    "            local name, offset = as_displaced(places[i], places[i + 1])\n"
    "            local list = places[i]:sub(1, #node) == node and went or named\n"
    "            if name then\n"
    "                list[#list + 1] = list == went and places[i] or name\n"
    "                list[#list + 1] = list == went and places[i + 1] or offset\n"
    "            end\n"
    "        end\n"
    "        if #named > 2 * " MOST " then return {2} end\n"
    "        local b = tonumber(there.born)\n"
    "        if mode ~= 'restore' and b and b >= tonumber(born) and b < 2 ^ 53 then\n"
    "            born = string.format('%.0f', b + 1)\n"
    "        end\n"
    "        if #all > 0 then redis.call('DEL', key) end\n"
    "        set(call, key, tensor, ver, born, place)\n"
    "        if #named > 0 then redis.call('HSET', key, unpack(named)) end\n"
    "    end\n"
    "    if expiry ~= '0' then\n"
    "        local keep = #named > 0 and tonumber(expiry) < " EXPIRY "\n"
    "        redis.call('PEXPIRE', key, keep and " EXPIRY " or expiry)\n"
    "    end\n"
    "    return done(), true\n"
    "end\n"
    "local at, answers, is_new, nnew = 11, {}, {}, 0\n"
    "for i, key in ipairs(KEYS) do\n"
    "    local tensor, ver, born, answer, new = tensors, vers, borns\n"
    "    if tensor == '' then tensor, at = ARGV[at], at + 1 end\n"
    "    if ver == '' then ver, at = ARGV[at], at + 1 end\n"
    "    if born == '' then born, at = ARGV[at], at + 1 end\n"
    "    if mode ~= 'join' and call('EXISTS', key) == 0 then\n"
    "        answer, new = set(redis.pcall, key, tensor, ver, born, ARGV[at])\n"
    "        if type(answer) == 'number' then\n"
    "            answer, new = 1, true\n"
    "            if expiry ~= '0' then call('PEXPIRE', key, expiry) end\n"
    "        end\n"
    "    else\n"
    "        local ran\n"
    "        ran, answer, new = pcall(change, key, tensor, ver, born, ARGV[at])\n"
    "        if not ran and type(answer) ~= 'table' then answer = {err = tostring(answer)} end\n"
    "    end\n"
    "    at = at + 1\n"
    "    answers[i] = answer\n"
    "    if new then is_new[i], nnew = true, nnew + 1 end\n"
    "end\n" TELL("is_new", "nnew") "return answers\n";

/*
 * before: begins `restore`, which goes on as publish, and `sweep`, which goes on as withdraw. Their last
 * argument is a deadline (Redis's time in ms). After that they answer {3} for each object. restore: the node
 * may have been given up, and a newer version stored. sweep: the node that looked dead may be back and have
 * found its location in the record.
 */
static const char before[] = "local t, late = redis.call('TIME'), {}\n"
                             "if t[1] * 1000 + t[2] / 1000 >= tonumber(table.remove(ARGV)) then\n"
                             "    for i = 1, #KEYS do late[i] = {3} end\n"
                             "    return late\n"
                             "end\n";

/*
 * withdraw: KEYS objects; ARGV: 1 channel, 2 the objects' events, a line each, or '', 3 location field, then
 * its value for each object. Answers a list of 1, 0 or Redis's own error. It removes the copy as a location
 * or as a displaced copy. If only displaced copies are left, they stay for a while, and there is no object.
 * Events of locations are one message.
 */
static const char withdraw[] =
    DISPLACED_NAME "local channel, events, field = unpack(ARGV, 1, 3)\n"
                   "local function remove(key, value)\n"
                   "    local gone, place = field, redis.call('HGET', key, field) == value\n"
                   "    if not place then\n"
                   "        gone = as_displaced(field, value)\n"
                   "        if not gone or not redis.call('HGET', key, gone) then return 0 end\n"
                   "    end\n"
                   "    local places, named, rest = 0, 0, {}\n"
                   "    for _, name in ipairs(redis.call('HKEYS', key)) do\n"
                   "        local kind = name:sub(1, 1)\n"
                   "        if name == gone or kind ~= '-' then rest[#rest + 1] = name end\n"
                   "        if name ~= gone and kind == '@' then places = places + 1 end\n"
                   "        if name ~= gone and kind == '-' then named = named + 1 end\n"
                   "    end\n"
                   "    if places > 0 then\n"
                   "        redis.call('HDEL', key, gone)\n"
                   "    elseif named > 0 then\n"
                   "        redis.call('HDEL', key, unpack(rest))\n"
                   "        redis.call('PEXPIRE', key, " EXPIRY ")\n"
                   "    else\n"
                   "        redis.call('DEL', key)\n"
                   "    end\n"
                   "    return 1, place\n"
                   "end\n"
                   "local answers, went, nwent = {}, {}, 0\n"
                   "for i, key in ipairs(KEYS) do\n"
                   "    local ran, answer, place = pcall(remove, key, ARGV[3 + i])\n"
                   "    if not ran and type(answer) ~= 'table' then answer = {err = tostring(answer)} end\n"
                   "    answers[i] = answer\n"
                   "    if ran and place then went[i], nwent = true, nwent + 1 end\n"
                   "end\n" TELL("went", "nwent") "return answers\n";

/*
 * remove: KEYS[1] object; ARGV: 1 location field that its node has freed, or '', 2 its value, 3 channel, 4
 * event's words before the node, 5.. element types and their sizes. Answers {1 or 0, field, value ...}:
 * whether there was an object, and the displaced copies that the record names now; {2} when they are too
 * many. Each location is announced.
 */
static const char remove_all[] =
    DISPLACED_NAME "local field, value, channel, event = unpack(ARGV, 1, 4)\n"
                   "local freed = as_displaced(field, value)\n"
                   "local all, places, named, bytes = redis.call('HGETALL', KEYS[1]), {}, {}, 0\n"
                   "for i = 1, #all, 2 do\n"
                   "    local kind, name, offset = all[i]:sub(1, 1), all[i], all[i + 1]\n"
                   "    if kind == '@' then\n"
                   "        places[#places + 1] = name\n"
                   "        name, offset = as_displaced(name, offset)\n"
                   "    end\n"
                   "    if (kind == '@' or kind == '-') and name and name ~= freed then\n"
                   "        named[#named + 1] = name\n"
                   "        named[#named + 1] = offset\n"
                   "    end\n"
                   "    if name == 'tensor' then\n"
                   "        local dtype, shape = offset:match('^([^%[]*)%[(.*)%]$')\n"
                   "        for k = 5, #ARGV - 1, 2 do\n"
                   "            if ARGV[k] == dtype then bytes = tonumber(ARGV[k + 1]) end\n"
                   "        end\n"
                   "        for n in (shape or ''):gmatch('%d+') do bytes = bytes * tonumber(n) end\n"
                   "    end\n"
                   "end\n"
                   "if #places > 0 and #named > 2 * " MOST " then return {2} end\n"
                   "if #all > 0 then redis.call('DEL', KEYS[1]) end\n"
                   "if #named > 0 then\n"
                   "    redis.call('HSET', KEYS[1], unpack(named))\n"
                   "    redis.call('PEXPIRE', KEYS[1], " EXPIRY ")\n"
                   "end\n"
                   "for _, name in ipairs(places) do\n"
                   "    local at = name:sub(2):gsub('/', ' ', 1)\n"
                   "    redis.pcall('PUBLISH', channel, event .. at .. ' ' .. string.format('%.0f', bytes))\n"
                   "end\n"
                   "table.insert(named, 1, #places > 0 and 1 or 0)\n"
                   "return named\n";

/*
 * refresh: KEYS[1] node or pool; ARGV: 1 epoch, 2 expiry in ms, 3 deadline (Redis's time in ms) for making a
 * missing record, 4.. fields and values. Answers the epoch that was there, '' when it made the record, 'gone'
 * when there is none. It writes only over its own epoch, and removes fields of earlier beats.
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

/* forget: KEYS[1] set of ids, [2] node; ARGV: 1 its id. Answers 1 when it took the id out. The id of a node
 * that is back stays. */
static const char forget[] = "if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end\n"
                             "return redis.call('SREM', KEYS[1], ARGV[1])\n";

/* name: KEYS[1] a lease's name; ARGV: 1 descriptor, 2 its life in ms, 0: remove it. Answers 1, or 0 when
 * another descriptor has the name. */
static const char name[] = "local there = redis.call('GET', KEYS[1])\n"
                           "if there and there ~= ARGV[1] then return 0 end\n"
                           "if ARGV[2] == '0' then redis.call('DEL', KEYS[1])\n"
                           "else redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end\n"
                           "return 1\n";

static const char *const scripts[TARN_SCRIPT_COUNT] = {
    [TARN_SCRIPT_PUBLISH] = publish,   [TARN_SCRIPT_RESTORE] = publish,
    [TARN_SCRIPT_WITHDRAW] = withdraw, [TARN_SCRIPT_REMOVE] = remove_all,
    [TARN_SCRIPT_REFRESH] = refresh,   [TARN_SCRIPT_STATE] = tarn_state_script,
    [TARN_SCRIPT_DROP] = drop,         [TARN_SCRIPT_SWEEP] = withdraw,
    [TARN_SCRIPT_FORGET] = forget,     [TARN_SCRIPT_NAME] = name,
};

/* --- loading ------------------------------------------------------------------------------------ */

struct load {
    struct tarn_directory *d;
    const char *text;
    char *sha;
};

static int append_load(void *arg, size_t i, struct tarn_resp *r)
{
    const struct load *l = arg;
    (void)i;
    return tarn_resp_append_strs(r, "SCRIPT", "LOAD", l->text, NULL);
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
    char text[sizeof before + sizeof publish];
    struct load l = {d, scripts[script], sha};
    struct tarn_pipeline p = {.n = 1, .append = append_load, .reply = take_sha, .arg = &l};
    if (script == TARN_SCRIPT_SWEEP || script == TARN_SCRIPT_RESTORE) {
        snprintf(text, sizeof text, "%s%s", before, l.text);
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

/* One pass over the commands; those answered with NOSCRIPT are noted for a second pass. */
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

static int append_pass(void *arg, size_t i, struct tarn_resp *r)
{
    struct pass *s = arg;
    return s->p->append(s->p->arg, command(s, i), s->sha, r);
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
    if (!s->which && tarn_reply_refuses(reply, "NOSCRIPT"))
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
