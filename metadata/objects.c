/* SPDX-License-Identifier: Apache-2.0 */
/* Records of objects: look-up, publish, withdraw, remove. A call is one pipeline. Publishes and
 * withdrawals share commands; all others are one command a key. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "metadata/records.h"
#include "metadata/redis.h"

/*
 * Records of objects with a time to live expire in Redis this long after it, in case their node cannot remove
 * them in time.
 */
#define EXPIRY_GRACE_MS 60000
#define TOO_MANY 2 /* the scripts: the record would name more than TARN_DISPLACED_MAX displaced copies */

void tarn_object_key(const struct tarn_directory *d, const struct tarn_key *key, char *out)
{
    size_t n = strlen(d->prefix);
    memcpy(out, d->prefix, n);
    memcpy(out + n, "o:", 2);
    if (tarn_key_escape(key, out + n + 2, TARN_KEY_TEXT) < 0)
        *out = '\0';
}

static int check_key(const struct tarn_key *key, size_t i)
{
    if (key->bytes >= 1 && key->bytes <= TARN_KEY_MAX)
        return 0;
    return tarn_fail(TARN_E_INVALID, "key %zu: %zu bytes long: use 1 to %d", i, key->bytes, TARN_KEY_MAX);
}

int tarn_reply_texts(const redisReply *reply, struct tarn_text texts[TARN_TEXTS_MAX], size_t *n_p)
{
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements > TARN_TEXTS_MAX)
        return tarn_fail(TARN_E_FORMAT, "record: no list of at most %d fields and values", TARN_TEXTS_MAX);
    for (size_t i = 0; i < reply->elements; i++) {
        const redisReply *e = reply->element[i];
        if (e->type != REDIS_REPLY_STRING)
            return tarn_fail(TARN_E_FORMAT, "record: element %zu is no text", i);
        texts[i] = (struct tarn_text){e->str, (size_t)e->len};
    }
    *n_p = reply->elements;
    return 0;
}

int tarn_hash_read(const struct tarn_directory *d, const redisReply *reply,
                   struct tarn_text texts[TARN_TEXTS_MAX], size_t *n_p)
{
    if (tarn_reply_refuses(reply, "WRONGTYPE"))
        return tarn_fail(TARN_E_FORMAT, "record: the key is no hash in Redis: delete it there");
    int rc = tarn_redis_check(d, reply);
    if (!rc)
        rc = tarn_reply_texts(reply, texts, n_p);
    return !rc && *n_p == 0 ? TARN_E_NOT_FOUND : rc;
}

int tarn_object_read(const struct tarn_directory *d, const redisReply *reply, struct tarn_record *r)
{
    struct tarn_text texts[TARN_TEXTS_MAX];
    size_t n;
    int rc = tarn_hash_read(d, reply, texts, &n);
    return rc ? rc : tarn_record_parse(texts, n, r);
}

/* --- look-up ------------------------------------------------------------------------------------ */

struct lookup {
    struct tarn_directory *d;
    const struct tarn_key *keys;
    tarn_record_fn fn;
    void *arg;
    struct tarn_record record;
};

static int append_lookup(void *arg, size_t i, struct tarn_resp *r)
{
    const struct lookup *l = arg;
    char key[TARN_OBJECT_KEY_TEXT];
    tarn_object_key(l->d, &l->keys[i], key);
    return tarn_resp_append_strs(r, "HGETALL", key, NULL);
}

static int take_lookup(void *arg, size_t i, const redisReply *reply)
{
    struct lookup *l = arg;
    int rc = tarn_object_read(l->d, reply, &l->record);
    if (rc && rc != TARN_E_NOT_FOUND && rc != TARN_E_FORMAT)
        return rc;
    l->fn(l->arg, i, rc, rc ? NULL : &l->record);
    return 0;
}

int tarn_directory_lookup(struct tarn_directory *d, const struct tarn_key *keys, size_t n,
                          uint64_t deadline_ns, struct tarn_cancel *cancel, tarn_record_fn fn, void *arg)
{
    struct lookup l = {.d = d, .keys = keys, .fn = fn, .arg = arg};
    struct tarn_pipeline p = {
        .n = n, .append = append_lookup, .reply = take_lookup, .arg = &l, .cancel = cancel};
    for (size_t i = 0; i < n; i++)
        if (check_key(&keys[i], i))
            return TARN_E_INVALID;
    return n ? tarn_redis_run(d, deadline_ns, &p) : 0;
}

/* --- publish ------------------------------------------------------------------------------------ */

struct publish {
    struct tarn_directory *d;
    struct tarn_publish *items;
    size_t *first; /* of each command's items; behind the last: how many items */
    size_t refused;
    int refusal;
};

static const char *mode_name(enum tarn_publish_mode mode)
{
    static const char *const names[] = {[TARN_PUBLISH_ABSENT] = "absent",
                                        [TARN_PUBLISH_JOIN] = "join",
                                        [TARN_PUBLISH_REPLACE] = "replace",
                                        [TARN_PUBLISH_RESTORE] = "restore"};
    return names[mode];
}

static uint64_t expiry_ms(const struct tarn_record *r)
{
    if (!r->ttl_ms)
        return 0;
    uint64_t end = r->born_ms + r->ttl_ms, now = tarn_unix_ms();
    return (end > now ? end - now : 0) + EXPIRY_GRACE_MS;
}

static bool together(const struct tarn_publish *a, const struct tarn_publish *b)
{
    const struct tarn_record *r = &a->record, *s = &b->record;

    return a->mode == b->mode && a->replaces == b->replaces && r->ttl_ms == s->ttl_ms &&
           (!r->ttl_ms || r->born_ms == s->born_ms) &&
           strcmp(r->locations[0].pool, s->locations[0].pool) == 0 &&
           strcmp(r->locations[0].node, s->locations[0].node) == 0;
}

size_t tarn_publish_together(const struct tarn_publish *p, size_t n)
{
    size_t i = 1;

    while (i < n && i < TARN_TOGETHER && together(p, &p[i]))
        i++;
    return i;
}

static void add_event(struct tarn_buf *events, const char *why, const char *escaped,
                      const struct tarn_location *l, uint64_t bytes)
{
    char rest[TARN_NODE_ID_MAX + TARN_POOL_NAME_MAX + 32];
    char *pool = stpcpy(stpcpy(stpcpy(rest, " "), l->node), " ");
    char *end = tarn_u64_format(bytes, stpcpy(stpcpy(pool, l->pool), " "));

    if (events->bytes)
        tarn_buf_add(events, "\n", 1);
    tarn_buf_add(events, why, strlen(why));
    tarn_buf_add(events, " ", 1);
    tarn_buf_add(events, escaped, strlen(escaped));
    tarn_buf_add(events, rest, (size_t)(end - rest));
}

/* Ends a command: sends it, or fails if there was no memory for its n events. */
static int end_command(struct tarn_command *c, struct tarn_buf *events, size_t n, struct tarn_resp *r)
{
    int rc = events->failed ? tarn_fail(TARN_E_NO_MEMORY, "directory: events of %zu objects", n)
                            : tarn_resp_append_command(r, c);
    tarn_buf_free(events);
    return rc;
}

/* What the objects may have in common; NULL: they do not. */
struct common {
    const struct tarn_tensor *tensor;
    const uint64_t *version, *born_ms;
};

static struct common common_of(const struct tarn_publish *p, size_t n)
{
    const struct tarn_record *first = &p->record;
    struct common common = {&first->tensor, &first->version, &first->born_ms};

    for (size_t i = 1; i < n; i++) {
        const struct tarn_record *r = &p[i].record;
        if (common.tensor && !tarn_tensor_equal(&r->tensor, &first->tensor))
            common.tensor = NULL;
        if (r->version != first->version)
            common.version = NULL;
        if (r->born_ms != first->born_ms)
            common.born_ms = NULL;
    }
    return common;
}

static void add_tensor(struct tarn_command *c, const struct tarn_tensor *t)
{
    char text[TARN_TENSOR_TEXT] = "";

    if (t)
        tarn_tensor_format(t, text);
    tarn_command_str(c, text);
}

static void add_number(struct tarn_command *c, const uint64_t *v)
{
    if (v)
        tarn_command_u64(c, *v);
    else
        tarn_command_str(c, "");
}

static void add_common(struct tarn_command *c, const struct tarn_publish *p, const struct common *common)
{
    char field[TARN_LOCATION_FIELD];

    tarn_location_field(&p->record.locations[0], field);
    tarn_command_str(c, mode_name(p->mode));
    tarn_command_u64(c, p->replaces);
    tarn_command_u64(c, expiry_ms(&p->record));
    tarn_command_u64(c, p->record.ttl_ms);
    tarn_command_str(c, field);
    add_tensor(c, common->tensor);
    add_number(c, common->version);
    add_number(c, common->born_ms);
}

static void add_object(struct tarn_command *c, const struct tarn_record *r, const struct common *common)
{
    char value[TARN_LOCATION_VALUE];

    if (!common->tensor)
        add_tensor(c, &r->tensor);
    if (!common->version)
        tarn_command_u64(c, r->version);
    if (!common->born_ms)
        tarn_command_u64(c, r->born_ms);
    tarn_location_value(&r->locations[0], value);
    tarn_command_str(c, value);
}

int tarn_publish_append(const struct tarn_directory *d, const struct tarn_publish *p, size_t n,
                        const char *sha, struct tarn_resp *r)
{
    struct tarn_command *c = tarn_resp_command(r, "EVALSHA", sha, NULL);
    const struct common common = common_of(p, n);
    bool restores = p[0].mode == TARN_PUBLISH_RESTORE;
    struct tarn_buf events = {0};
    char key[TARN_OBJECT_KEY_TEXT];
    uint64_t until_ms = UINT64_MAX;

    tarn_command_u64(c, n);
    for (size_t i = 0; i < n; i++) {
        tarn_object_key(d, &p[i].key, key);
        tarn_command_str(c, key);
        if (!restores)
            add_event(&events, "stored", key + strlen(d->prefix) + 2, &p[i].record.locations[0],
                      p[i].record.tensor.bytes);
    }
    tarn_command_str(c, d->channel);
    tarn_command_add(c, events.data ? events.data : "", events.bytes);
    add_common(c, p, &common);
    for (size_t i = 0; i < n; i++) {
        add_object(c, &p[i].record, &common);
        until_ms = p[i].until_ms < until_ms ? p[i].until_ms : until_ms;
    }
    if (restores)
        tarn_command_u64(c, until_ms);
    return end_command(c, &events, n, r);
}

static int append_publish(void *arg, size_t i, const char *sha, struct tarn_resp *r)
{
    const struct publish *s = arg;
    return tarn_publish_append(s->d, &s->items[s->first[i]], s->first[i + 1] - s->first[i], sha, r);
}

/* Fields and values of displaced copies: those that parse; how many. */
static uint32_t read_displaced(const struct tarn_text *texts, size_t n, struct tarn_location *displaced)
{
    uint32_t found = 0;
    for (size_t i = 0; i + 1 < n && found < TARN_DISPLACED_MAX; i += 2)
        found += !tarn_displaced_parse(texts[i], texts[i + 1], &displaced[found]);
    return found;
}

/* {verdict, text ...}. FORMAT: the texts are no record's; the verdict is set. DIRECTORY with verdict 2: the
 * record would name too many displaced copies. */
static int read_script(struct tarn_directory *d, const redisReply *reply, long long *verdict,
                       struct tarn_text texts[TARN_TEXTS_MAX], size_t *n_p)
{
    int rc = tarn_redis_check_array(d, reply);
    if (rc)
        return rc;
    if (!reply->elements || reply->element[0]->type != REDIS_REPLY_INTEGER)
        return tarn_fail(TARN_E_DIRECTORY, "redis at %s: not an answer of the script: is this a proxy?",
                         d->uri.address);
    *verdict = reply->element[0]->integer;
    if (*verdict == TOO_MANY)
        return tarn_fail(
            TARN_E_DIRECTORY,
            "the key's record names %d displaced copies already, which their nodes have not freed: "
            "start those nodes again, or wait for an hour",
            TARN_DISPLACED_MAX);
    redisReply rest = {
        .type = REDIS_REPLY_ARRAY, .elements = reply->elements - 1, .element = reply->element + 1};
    return tarn_reply_texts(&rest, texts, n_p);
}

/* born, displaced copies, locations of the same node that gave way. */
static int take_displaced(struct tarn_publish *p, const struct tarn_text *texts, size_t n)
{
    uint64_t born;
    if (!n || tarn_u64_parse(texts[0].data, texts[0].bytes, 10, INT64_MAX, &born) || !born)
        return tarn_fail(TARN_E_DIRECTORY,
                         "publish: the script has answered without a time of birth: is this a proxy?");
    p->record.born_ms = born;
    p->nnamed = p->ndisplaced = read_displaced(texts + 1, n - 1, p->displaced);
    for (size_t i = 1; i + 1 < n && p->ndisplaced < TARN_DISPLACED_MAX; i += 2)
        if (texts[i].bytes && texts[i].data[0] == '@')
            p->ndisplaced += !tarn_location_parse(texts[i], texts[i + 1], &p->displaced[p->ndisplaced]);
    return 0;
}

/* 1, {1, born, displaced ...}, {2}, {3}, or {0, record that stays ...}. No record, or a damaged one: `found`
 * is zeros. */
static int read_answer(struct tarn_directory *d, const redisReply *reply, struct tarn_publish *p)
{
    struct tarn_text texts[TARN_TEXTS_MAX];
    long long published = 0;
    size_t n;
    if (reply->type == REDIS_REPLY_INTEGER && reply->integer == 1)
        return 0;
    int rc = read_script(d, reply, &published, texts, &n);
    if (rc && published == TOO_MANY && p->mode != TARN_PUBLISH_RESTORE)
        return TARN_E_AGAIN; /* nodes may be about to withdraw what they have freed */
    if (rc && rc != TARN_E_FORMAT)
        return rc;
    if (published == 3)
        return tarn_fail(TARN_E_AGAIN, "published again too late: this node may have been given up");
    if (published)
        return rc ? rc : take_displaced(p, texts, n);
    if (rc || tarn_record_parse(texts, n, &p->found))
        memset(&p->found, 0, sizeof p->found);
    if (p->mode == TARN_PUBLISH_JOIN)
        return tarn_fail(TARN_E_EXISTS,
                         "version %llu is no longer in the directory: put again if it is wanted",
                         (unsigned long long)p->record.version);
    return tarn_fail(TARN_E_EXISTS,
                     "the key exists in the directory with version %llu: replace it or keep it",
                     (unsigned long long)p->found.version);
}

/* Sets the item's status; returns it, or in place of DIRECTORY what Redis refused it with. */
static int read_item(struct tarn_directory *d, const redisReply *reply, struct tarn_publish *p)
{
    p->nnamed = p->ndisplaced = 0;
    int rc = read_answer(d, reply, p);
    p->status = rc && rc != TARN_E_EXISTS && rc != TARN_E_AGAIN ? TARN_E_DIRECTORY : rc;
    return rc;
}

size_t tarn_publish_read(struct tarn_directory *d, const redisReply *reply, struct tarn_publish *p, size_t n,
                         int *refusal)
{
    size_t refused = 0;
    int rc = tarn_redis_check_array(d, reply);
    if (!rc && reply->elements != n)
        rc = tarn_fail(TARN_E_DIRECTORY, "redis at %s: %zu answers for %zu objects: is this a proxy?",
                       d->uri.address, reply->elements, n);
    for (size_t i = 0; i < n; i++) {
        int own = rc ? rc : read_item(d, reply->element[i], &p[i]);
        if (rc)
            p[i].status = TARN_E_DIRECTORY;
        if (p[i].status == TARN_E_DIRECTORY) {
            *refusal = own;
            refused++;
        }
    }
    return refused;
}

static int take_published(void *arg, size_t i, const redisReply *reply)
{
    struct publish *s = arg;
    s->refused +=
        tarn_publish_read(s->d, reply, &s->items[s->first[i]], s->first[i + 1] - s->first[i], &s->refusal);
    return 0;
}

int tarn_publish_check(const struct tarn_publish *p, size_t i)
{
    const struct tarn_record *r = &p->record;
    int rc = check_key(&p->key, i);
    if (!rc)
        rc = tarn_tensor_check(&r->tensor);
    if (!rc && (r->version == 0 || r->version > INT64_MAX || r->born_ms == 0 || r->born_ms > INT64_MAX))
        rc = tarn_fail(TARN_E_INVALID, "publish %zu: version and time of birth must be 1 to 2^63 - 1", i);
    if (!rc && (r->nlocations != 1 || r->locations[0].gen % 2))
        rc = tarn_fail(TARN_E_INVALID, "publish %zu: needs one location with an even generation", i);
    return rc;
}

int tarn_directory_publish(struct tarn_directory *d, struct tarn_publish *items, size_t n,
                           uint64_t deadline_ns)
{
    struct publish s = {.d = d, .items = items};
    enum tarn_script script =
        n && items[0].mode == TARN_PUBLISH_RESTORE ? TARN_SCRIPT_RESTORE : TARN_SCRIPT_PUBLISH;
    struct tarn_script_pipeline p = {script, 0, append_publish, take_published, &s};
    for (size_t i = 0; i < n; i++) {
        items[i].status = TARN_E_DIRECTORY;
        items[i].nnamed = items[i].ndisplaced = 0;
    }
    for (size_t i = 0; i < n; i++) {
        int rc = tarn_publish_check(&items[i], i);
        if (rc)
            return rc;
    }
    if (!n)
        return 0;
    s.first = calloc(n + 1, sizeof *s.first);
    if (!s.first)
        return tarn_fail(TARN_E_NO_MEMORY, "directory: %zu objects to publish", n);
    for (size_t i = 0; i < n; i = s.first[++p.n])
        s.first[p.n + 1] = i + tarn_publish_together(&items[i], n - i);
    int rc = tarn_script_run(d, deadline_ns, &p);
    free(s.first);
    return rc ? rc : s.refused == n ? s.refusal : 0;
}

/* --- withdraw ----------------------------------------------------------------------------------- */

struct withdraw {
    struct tarn_directory *d;
    struct tarn_withdraw *items;
    size_t *first; /* of each command's items; behind the last: how many items */
    bool sweep;
    int refusal;
};

/* How many of the n withdrawals share a command with the first one. */
static size_t withdraw_together(const struct tarn_withdraw *w, size_t n)
{
    size_t i = 1;

    while (i < n && i < TARN_TOGETHER && !w[i].why == !w->why && w[i].until_ms == w->until_ms &&
           strcmp(w[i].location.pool, w->location.pool) == 0 &&
           strcmp(w[i].location.node, w->location.node) == 0)
        i++;
    return i;
}

static int append_withdraw(void *arg, size_t at, const char *sha, struct tarn_resp *r)
{
    const struct withdraw *s = arg;
    const struct tarn_withdraw *w = &s->items[s->first[at]];
    size_t n = s->first[at + 1] - s->first[at];
    struct tarn_command *c = tarn_resp_command(r, "EVALSHA", sha, NULL);
    struct tarn_buf events = {0};
    char key[TARN_OBJECT_KEY_TEXT], field[TARN_LOCATION_FIELD], value[TARN_LOCATION_VALUE];

    tarn_command_u64(c, n);
    for (size_t i = 0; i < n; i++) {
        tarn_object_key(s->d, &w[i].key, key);
        tarn_command_str(c, key);
        if (w[i].why)
            add_event(&events, w[i].why, key + strlen(s->d->prefix) + 2, &w[i].location, w[i].bytes);
    }
    tarn_location_field(&w->location, field);
    tarn_command_str(c, s->d->channel);
    tarn_command_add(c, events.data ? events.data : "", events.bytes);
    tarn_command_str(c, field);
    for (size_t i = 0; i < n; i++) {
        tarn_location_value(&w[i].location, value);
        tarn_command_str(c, value);
    }
    if (s->sweep)
        tarn_command_u64(c, w->until_ms);
    return end_command(c, &events, n, r);
}

static int take_withdrawn(void *arg, size_t at, const redisReply *reply)
{
    struct withdraw *s = arg;
    size_t n = s->first[at + 1] - s->first[at];
    int rc = tarn_redis_check_array(s->d, reply);

    if (!rc && reply->elements != n)
        rc = tarn_fail(TARN_E_DIRECTORY, "redis at %s: %zu answers for %zu objects: is this a proxy?",
                       s->d->uri.address, reply->elements, n);
    if (rc)
        s->refusal = rc;
    for (size_t i = 0; !rc && i < n; i++) {
        const redisReply *answer = reply->element[i];
        if (answer->type == REDIS_REPLY_ERROR && !strstr(answer->str, "WRONGTYPE"))
            s->refusal = tarn_redis_check(s->d, answer);
        s->items[s->first[at] + i].removed = answer->type == REDIS_REPLY_INTEGER && answer->integer == 1;
    }
    return 0;
}

static int withdraw_all(struct withdraw *s, enum tarn_script script, size_t n, uint64_t deadline_ns)
{
    struct tarn_withdraw *items = s->items;
    struct tarn_script_pipeline p = {script, 0, append_withdraw, take_withdrawn, s};
    for (size_t i = 0; i < n; i++) {
        items[i].removed = false;
        if (check_key(&items[i].key, i))
            return TARN_E_INVALID;
    }
    if (!n)
        return 0;
    s->first = calloc(n + 1, sizeof *s->first);
    if (!s->first)
        return tarn_fail(TARN_E_NO_MEMORY, "directory: %zu objects to withdraw", n);
    for (size_t i = 0; i < n; i = s->first[++p.n])
        s->first[p.n + 1] = i + withdraw_together(&items[i], n - i);
    int rc = tarn_script_run(s->d, deadline_ns, &p);
    free(s->first);
    return rc ? rc : s->refusal;
}

int tarn_directory_withdraw(struct tarn_directory *d, struct tarn_withdraw *items, size_t n,
                            uint64_t deadline_ns)
{
    struct withdraw s = {.d = d, .items = items};
    return withdraw_all(&s, TARN_SCRIPT_WITHDRAW, n, deadline_ns);
}

int tarn_directory_sweep(struct tarn_directory *d, struct tarn_withdraw *items, size_t n,
                         uint64_t deadline_ns)
{
    struct withdraw s = {.d = d, .items = items, .sweep = true};
    return withdraw_all(&s, TARN_SCRIPT_SWEEP, n, deadline_ns);
}

/* --- remove ------------------------------------------------------------------------------------- */

struct remove_all {
    struct tarn_directory *d;
    struct tarn_removal *items;
    size_t refused;
    int refusal;
};

static int append_remove(void *arg, size_t i, const char *sha, struct tarn_resp *r)
{
    const struct remove_all *s = arg;
    const struct tarn_removal *item = &s->items[i];
    char key[TARN_OBJECT_KEY_TEXT], event[TARN_EVENT_TEXT];
    char field[TARN_LOCATION_FIELD] = "", value[TARN_LOCATION_VALUE] = "";

    tarn_object_key(s->d, &item->key, key);
    if (item->freed.node[0]) {
        tarn_location_field(&item->freed, field);
        tarn_location_value(&item->freed, value);
    }
    snprintf(event, sizeof event, "removed %s ", key + strlen(s->d->prefix) + 2);
    struct tarn_command *c =
        tarn_resp_command(r, "EVALSHA", sha, "1", key, field, value, s->d->channel, event, NULL);
    for (uint32_t dtype = 0; dtype < TARN_DTYPE_COUNT; dtype++) {
        tarn_command_str(c, tarn_dtype_name(dtype));
        tarn_command_u64(c, tarn_dtype_bytes(dtype));
    }
    return tarn_resp_append_command(r, c);
}

static int read_removal(struct tarn_directory *d, const redisReply *reply, struct tarn_removal *item)
{
    struct tarn_text texts[TARN_TEXTS_MAX];
    long long removed;
    size_t n;
    int rc = read_script(d, reply, &removed, texts, &n);
    if (rc)
        return rc;
    item->ndisplaced = read_displaced(texts, n, item->displaced);
    return removed ? 0 : TARN_E_NOT_FOUND;
}

static int take_removed(void *arg, size_t i, const redisReply *reply)
{
    struct remove_all *s = arg;
    int rc = read_removal(s->d, reply, &s->items[i]);
    s->items[i].status = rc && rc != TARN_E_NOT_FOUND ? TARN_E_DIRECTORY : rc;
    if (s->items[i].status == TARN_E_DIRECTORY) {
        s->refusal = rc;
        s->refused++;
    }
    return 0;
}

int tarn_directory_remove(struct tarn_directory *d, struct tarn_removal *items, size_t n,
                          uint64_t deadline_ns)
{
    struct remove_all s = {.d = d, .items = items};
    struct tarn_script_pipeline p = {TARN_SCRIPT_REMOVE, n, append_remove, take_removed, &s};
    for (size_t i = 0; i < n; i++) {
        items[i].status = TARN_E_DIRECTORY;
        items[i].ndisplaced = 0;
        if (check_key(&items[i].key, i))
            return TARN_E_INVALID;
    }
    if (!n)
        return 0;
    int rc = tarn_script_run(d, deadline_ns, &p);
    return rc ? rc : s.refused == n ? s.refusal : 0;
}
