/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory's hash: does Redis still have its data (docs/consistency.md, "Losing the directory")? One
 * script makes it, marks it as lost and notes that a node beats, all by Redis's clock:
 *
 *   - It has another heartbeat than the node, and a beat younger than 3 of those: nothing; the node is
 * refused.
 *   - There is none, or Redis has another run than the one noted, or it has another heartbeat and no such
 * beat: made, with a new id. `lost` if the node knew a directory, or there was one.
 *   - It is not the one that the node knew, and younger than a ttl: marked as lost. The first mark begins its
 * time again.
 *   - It is not the one that the node knew, and older: nothing; the node is late.
 *
 * A command that is sent twice finds the id of its first run and changes nothing more.
 */
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "metadata/records.h"
#include "metadata/redis.h"

/*
 * KEYS[1] the hash, KEYS[2] the set of nodes; ARGV: 1 heartbeat in ms, 2 ttl in ms, 3 id of a new one, 4 id
 * that the node knows or '', 5 its last beat there, 6 '1': a new one has aged at once, 7 the node's id, 8
 * what tarn_sentinel_run() appends to the run. Answers Redis's time, then fields and values, one more than
 * the hash has: `nodes`, how many ids the set has. `heartbeat` is another one if the node is refused. HDEL
 * comes first: when its memory is full, Redis lets a script go on that has written.
 */
const char tarn_state_script[] =
    "local heartbeat, ttl, last = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[5])\n"
    "local fresh, known = ARGV[3], ARGV[4]\n"
    "local run = redis.call('INFO', 'server'):match('run_id:(%w+)') or ''\n"
    "run = run .. ARGV[8]\n"
    "local t = redis.call('TIME')\n"
    "local now = t[1] * 1000 + math.floor(t[2] / 1000)\n"
    "local all, h = redis.call('HGETALL', KEYS[1]), {}\n"
    "for i = 1, #all, 2 do h[all[i]] = all[i + 1] end\n"
    "local function ms(name) return tonumber(h[name]) or 0 end\n"
    "local function text(v) return string.format('%.0f', v) end\n"
    "local function tell()\n"
    "    local told, me = h.told or ' ', ARGV[7] .. ' '\n"
    "    h.told = told:find(' ' .. me, 1, true) and told or told .. me\n"
    "end\n"
    "local theirs = ms('heartbeat')\n"
    "local other = theirs ~= 0 and theirs ~= heartbeat\n"
    "if h.id and h.run == run and other and now < ms('beat') + 3 * theirs then\n"
    "    table.insert(all, 1, text(now))\n"
    "    return all\n"
    "end\n"
    "redis.call('HDEL', KEYS[1], '-')\n"
    "if not h.id or h.run ~= run or other then\n"
    "    local follows = known ~= '' or h.id ~= nil\n"
    "    local lived = math.max(last, ms('beat'))\n"
    "    redis.call('DEL', KEYS[1])\n"
    "    h = {id = fresh, run = run, lost = follows and '1' or '0', lived = text(lived)}\n"
    "    h.since = text((ARGV[6] == '1' and not follows) and now - ttl or now)\n"
    "    if known ~= '' then tell() end\n"
    "elseif known ~= '' and known ~= h.id and fresh ~= h.id and now < ms('since') + ttl then\n"
    "    if h.lost ~= '1' then h.since = text(now) end\n"
    "    h.lost = '1'\n"
    "    h.lived = text(math.max(ms('lived'), last))\n"
    "    tell()\n"
    "end\n"
    "if h.beat and now - ms('beat') >= 2 * heartbeat then\n"
    "    h.silent = h.beat\n"
    "    h.resumed = text(now)\n"
    "end\n"
    "h.beat = text(now)\n"
    "h.heartbeat = ARGV[1]\n"
    "local out = {text(now), 'nodes', text(#redis.call('SMEMBERS', KEYS[2]))}\n"
    "for name, value in pairs(h) do\n"
    "    redis.call('HSET', KEYS[1], name, value)\n"
    "    out[#out + 1] = name\n"
    "    out[#out + 1] = value\n"
    "end\n"
    "return out\n";

int tarn_state_append(const struct tarn_directory *d, const struct tarn_beat *b,
                      const char fresh[TARN_DIRECTORY_ID_TEXT], const char *sha, struct tarn_resp *r)
{
    char key[TARN_REDIS_KEY_TEXT], nodes[TARN_REDIS_KEY_TEXT], epoch[24] = "";
    tarn_redis_key(d, key, "directory");
    tarn_redis_key(d, nodes, "nodes");
    tarn_sentinel_run(d, epoch, sizeof epoch);
    struct tarn_command *c = tarn_resp_command(r, "EVALSHA", sha, "2", key, nodes, NULL);
    tarn_command_u64(c, b->heartbeat_ms);
    tarn_command_u64(c, b->ttl_ms);
    tarn_command_strs(c, fresh, b->known, NULL);
    tarn_command_u64(c, b->last_ms);
    tarn_command_strs(c, b->own_redis ? "1" : "0", b->node->id, epoch, NULL);
    return tarn_resp_append_command(r, c);
}

/* --- reading ------------------------------------------------------------------------------------ */

/* How many words a text has that begins and ends with a space. */
static uint32_t words(const char *text)
{
    uint32_t spaces = 0;
    for (; *text; text++)
        spaces += *text == ' ';
    return spaces ? spaces - 1 : 0;
}

static void take_field(struct tarn_directory_state *s, const char *name, const redisReply *value)
{
    const struct {
        const char *name;
        uint64_t *value;
    } numbers[] = {{"since", &s->since_ms},   {"lived", &s->lived_ms},     {"beat", &s->beat_ms},
                   {"silent", &s->silent_ms}, {"resumed", &s->resumed_ms}, {"heartbeat", &s->heartbeat_ms},
                   {"nodes", &s->nodes}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (!strcmp(name, numbers[i].name))
            tarn_u64_parse(value->str, (size_t)value->len, 10, INT64_MAX, numbers[i].value);
    }
    if (!strcmp(name, "id"))
        snprintf(s->id, sizeof s->id, "%s", value->str);
    if (!strcmp(name, "run"))
        snprintf(s->run, sizeof s->run, "%s", value->str);
    if (!strcmp(name, "lost"))
        s->lost = !strcmp(value->str, "1");
    if (!strcmp(name, "told"))
        s->told = words(value->str);
}

void tarn_state_fields(const redisReply *reply, size_t first, struct tarn_directory_state *s)
{
    for (size_t i = first; i + 1 < reply->elements; i += 2) {
        const redisReply *name = reply->element[i], *value = reply->element[i + 1];
        if (name->type == REDIS_REPLY_STRING && value->type == REDIS_REPLY_STRING)
            take_field(s, name->str, value);
    }
}

int tarn_state_read(const struct tarn_directory *d, const redisReply *reply, struct tarn_directory_state *s)
{
    int rc = tarn_redis_check_array(d, reply);
    *s = (struct tarn_directory_state){0};
    if (rc)
        return rc;
    if (reply->elements && reply->element[0]->type == REDIS_REPLY_STRING)
        tarn_u64_parse(reply->element[0]->str, (size_t)reply->element[0]->len, 10, INT64_MAX, &s->now_ms);
    tarn_state_fields(reply, 1, s);
    return s->id[0] && s->now_ms ? 0
                                 : tarn_fail(TARN_E_DIRECTORY,
                                             "redis at %s: the script about the directory "
                                             "answered without its id",
                                             d->uri.address);
}

bool tarn_info_value(const redisReply *reply, const char *name, char *out, size_t bytes)
{
    const char *at = reply->type == REDIS_REPLY_STRING ? strstr(reply->str, name) : NULL;
    if (at)
        snprintf(out, bytes, "%.*s", (int)strcspn(at + strlen(name), "\r\n"), at + strlen(name));
    return at;
}

struct look {
    struct tarn_directory *d;
    struct tarn_directory_state *state;
};

static int append_look(void *arg, size_t i, struct tarn_resp *r)
{
    const struct look *l = arg;
    char key[TARN_REDIS_KEY_TEXT];
    tarn_redis_key(l->d, key, "directory");
    return i == 0   ? tarn_resp_append_strs(r, "HGETALL", key, NULL)
           : i == 1 ? tarn_resp_append_strs(r, "INFO", "server", NULL)
                    : tarn_resp_append_strs(r, "TIME", NULL);
}

uint64_t tarn_time_ms(const redisReply *reply)
{
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
        reply->element[0]->type != REDIS_REPLY_STRING || reply->element[1]->type != REDIS_REPLY_STRING)
        return 0;
    return strtoull(reply->element[0]->str, NULL, 10) * 1000 +
           strtoull(reply->element[1]->str, NULL, 10) / 1000;
}

static int take_look(void *arg, size_t i, const redisReply *reply)
{
    struct look *l = arg;
    char run[sizeof l->state->run] = "";
    int rc = i == 1 ? tarn_redis_check(l->d, reply) : tarn_redis_check_array(l->d, reply);
    if (rc)
        return rc;
    if (i == 0)
        tarn_state_fields(reply, 0, l->state);
    if (i == 2)
        l->state->now_ms = tarn_time_ms(reply);
    if (i != 1)
        return 0;
    tarn_info_value(reply, "run_id:", run, sizeof run);
    tarn_sentinel_run(l->d, run, sizeof run);
    if (strcmp(run, l->state->run))
        l->state->id[0] = 0;
    memcpy(l->state->run, run, sizeof run);
    return 0;
}

int tarn_directory_look(struct tarn_directory *d, uint64_t deadline_ns, struct tarn_directory_state *s)
{
    struct look l = {d, s};
    struct tarn_pipeline p = {.n = 3, .append = append_look, .reply = take_look, .arg = &l};
    *s = (struct tarn_directory_state){0};
    int rc = tarn_redis_run(d, deadline_ns, &p);
    if (atomic_load(&d->term) != atomic_load(&d->beaten_term))
        s->id[0] = 0;
    return rc;
}

/* --- what it means ------------------------------------------------------------------------------ */

bool tarn_directory_aged(const struct tarn_directory_state *s, uint32_t ttl_ms)
{
    return s->id[0] && s->now_ms >= s->since_ms + ttl_ms;
}

bool tarn_directory_calm(const struct tarn_directory_state *s, uint32_t heartbeat_ms, uint32_t ttl_ms)
{
    return tarn_directory_aged(s, ttl_ms) && s->heartbeat_ms == heartbeat_ms &&
           s->now_ms < s->beat_ms + 2ull * heartbeat_ms && s->now_ms >= s->resumed_ms + ttl_ms;
}

/* --- settings of Redis -------------------------------------------------------------------------- */

static int append_memory(void *arg, size_t i, struct tarn_resp *r)
{
    (void)arg, (void)i;
    return tarn_resp_append_strs(r, "INFO", "memory", NULL);
}

static int take_memory(void *arg, size_t i, const redisReply *reply)
{
    struct tarn_directory *d = arg;
    struct tarn_beat b = {0};
    int rc = tarn_redis_check(d, reply);
    (void)i;
    if (rc)
        return rc;
    tarn_memory_read(reply, &b);
    if (!b.evicts)
        return 0;
    return tarn_fail(
        TARN_E_CONFIG,
        "redis at %s: maxmemory-policy %s: it would drop records of copies that readers still have: set "
        "maxmemory-policy noeviction, or maxmemory 0",
        d->uri.address, b.policy);
}

void tarn_memory_read(const redisReply *reply, struct tarn_beat *b)
{
    char limit[24] = "0";
    tarn_info_value(reply, "maxmemory:", limit, sizeof limit);
    bool told = tarn_info_value(reply, "maxmemory_policy:", b->policy, sizeof b->policy);
    b->evicts = told && strcmp(limit, "0") && strcmp(b->policy, "noeviction");
}

int tarn_directory_check_redis(struct tarn_directory *d, uint64_t deadline_ns)
{
    struct tarn_pipeline p = {.n = 1, .append = append_memory, .reply = take_memory, .arg = d};
    return tarn_redis_run(d, deadline_ns, &p);
}

/* --- who reaches Redis ---------------------------------------------------------------------------- */

/* Does it belong to this user or root, with none of these bits in its mode? */
static bool is_own(const char *path, mode_t bits)
{
    struct stat s;
    return stat(path, &s) == 0 && (s.st_uid == geteuid() || s.st_uid == 0) && !(s.st_mode & bits);
}

/* Connecting requires the right to write to the socket and to walk through its folder. */
static bool is_own_socket(const char *path)
{
    char folder[sizeof(((struct tarn_addr *)0)->host)];
    snprintf(folder, sizeof folder, "%s", path);
    return is_own(dirname(folder), S_IXGRP | S_IXOTH) || is_own(path, S_IWGRP | S_IWOTH);
}

static int append_server(void *arg, size_t i, struct tarn_resp *r)
{
    (void)arg, (void)i;
    return tarn_resp_append_strs(r, "INFO", "server", NULL);
}

static int take_port(void *arg, size_t i, const redisReply *reply)
{
    char port[8] = "";
    (void)i;
    tarn_info_value(reply, "tcp_port:", port, sizeof port);
    *(bool *)arg = strcmp(port, "0") == 0;
    return 0;
}

bool tarn_directory_is_guarded(struct tarn_directory *d, uint64_t deadline_ns)
{
    bool alone = false;
    struct tarn_pipeline p = {.n = 1, .append = append_server, .reply = take_port, .arg = &alone};
    if (d->uri.password || !d->uri.addr.is_unix || !is_own_socket(d->uri.addr.host))
        return d->uri.password;
    return tarn_redis_run(d, deadline_ns, &p) == 0 && alone;
}
