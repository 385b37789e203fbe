/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Redis Sentinel: which Redis is the primary now.
 *
 *   nothing known, or suspected -> ask a sentinel -> connect to what it names -> ROLE: master -> used
 *                                     |                     |                      |
 *                                     +-- any failure: ask the next sentinel ------+
 *
 * - One sentinel after the other is asked, first the one that answered last. Each, with the Redis that it
 *   names, gets an equal share of the time that is left.
 * - Two questions go together. GET-MASTER-ADDR-BY-NAME gives the address: during a failover it is the new one
 *   before MASTER says so. MASTER gives config-epoch, the number of the last change of the primary.
 * - A sentinel with a smaller config-epoch than was seen before has not heard of the last change. It is
 *   believed only if no sentinel has a larger one, as after all were set up anew.
 * - A failed connection makes the primary suspected, and so do answers that only a Redis gives that is no
 *   primary or is not ready. The next pipeline then asks sentinels before it uses any connection.
 * - A primary that was cut off from its sentinels goes on answering. So nodes ask a sentinel at heartbeats,
 *   clients before they ask for leases (tarn_sentinel_confirm()). Another answer makes the primary suspected.
 * - Each other primary has a new term, and so has one that is the primary again: what it holds may be older
 *   than what its successor had. A connection belongs to the term in which it was made, and is not used in a
 *   later one: after one thread has used the new primary, no thread uses the old one any more.
 * - Without an answer of any sentinel, open connections are used on: sentinels that are down harm nobody.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "metadata/redis.h"

#define CONFIRM_MS 200 /* for an answer that nobody needs */
#define NO_SENTINEL "it is no sentinel: correct its address"

/* How much a failure says: the one that says most is reported. */
enum said { SILENT, REFUSED, NAMED };

#define ADDR_TEXT (sizeof((struct tarn_addr *)0)->host + 16)

static bool same(const struct tarn_addr *a, const struct tarn_addr *b)
{
    return a->port == b->port && !strcmp(a->host, b->host);
}

/* --- one sentinel ------------------------------------------------------------------------------- */

/* What a sentinel says: which Redis, by which change. */
struct named {
    struct tarn_addr addr;
    uint64_t epoch;
};

struct question {
    const struct tarn_directory *d;
    char sentinel[ADDR_TEXT]; /* who is asked */
    enum said said;
    struct named primary; /* out */
};

/* All sentinels asked before were silent, too, or their failure would be reported instead. */
static int silent(const struct question *q, int rc, const char *cause)
{
    if (rc == TARN_E_CANCELED || rc == TARN_E_NO_MEMORY)
        return rc;
    return tarn_fail(rc == TARN_E_TIMEOUT ? rc : TARN_E_DIRECTORY,
                     "redis at %s: no sentinel answers; %s was the last one asked: %s: start them or correct "
                     "their addresses",
                     q->d->uri.address, q->sentinel, rc == TARN_E_TIMEOUT ? "no answer in time" : cause);
}

static int refused(struct question *q, int rc, const char *cause, const char *remedy)
{
    q->said = REFUSED;
    return tarn_fail(rc, "redis at %s: sentinel %s: %.200s: %s", q->d->uri.address, q->sentinel, cause,
                     remedy);
}

static int take_error(struct question *q, const char *text)
{
    if (strstr(text, "WRONGPASS") || strstr(text, "without any password") ||
        strstr(text, "no password is set"))
        return refused(q, TARN_E_AUTH, text, "correct sentinel_user and sentinel_password in the Redis URI");
    if (strstr(text, "NOAUTH"))
        return refused(q, TARN_E_AUTH, text, "put ?sentinel_password= into the Redis URI");
    if (strstr(text, "NOPERM"))
        return refused(q, TARN_E_AUTH, text, "grant that user what docs/sentinel.md lists");
    if (strstr(text, "unknown command"))
        return refused(q, TARN_E_DIRECTORY, text, "it is no sentinel: give the addresses of sentinels");
    return refused(q, TARN_E_DIRECTORY, text, "see the sentinel's log");
}

/* The value of this field among names and values; NULL: there is none. */
static const redisReply *field_of(const redisReply *reply, const char *name)
{
    for (size_t i = 0; reply->type == REDIS_REPLY_ARRAY && i + 1 < reply->elements; i += 2) {
        const redisReply *n = reply->element[i], *value = reply->element[i + 1];
        if (n->type == REDIS_REPLY_STRING && value->type == REDIS_REPLY_STRING && !strcmp(n->str, name))
            return value;
    }
    return NULL;
}

static bool is_number(const redisReply *text, uint64_t most, uint64_t *out)
{
    return text && !tarn_u64_parse(text->str, (size_t)text->len, 10, most, out);
}

/* {host, port}; nil: it does not know the name. */
static int take_address(struct question *q, const redisReply *reply)
{
    struct tarn_addr *a = &q->primary.addr;
    uint64_t port = 0;
    if (reply->type == REDIS_REPLY_NIL)
        return refused(q, TARN_E_DIRECTORY, "it knows no primary of that name",
                       "correct the name behind the sentinels (SENTINEL MASTERS lists them)");
    bool pair = reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 &&
                reply->element[0]->type == REDIS_REPLY_STRING &&
                reply->element[1]->type == REDIS_REPLY_STRING;
    const redisReply *host = pair ? reply->element[0] : NULL;
    if (!pair || !host->len || (size_t)host->len >= sizeof a->host ||
        strlen(host->str) != (size_t)host->len || !is_number(reply->element[1], UINT16_MAX, &port) || !port)
        return refused(q, TARN_E_DIRECTORY, "its answer is no address", NO_SENTINEL);
    *a = (struct tarn_addr){.port = (uint16_t)port};
    memcpy(a->host, host->str, (size_t)host->len);
    return 0;
}

static int take_epoch(struct question *q, const redisReply *reply)
{
    if (is_number(field_of(reply, "config-epoch"), INT64_MAX, &q->primary.epoch))
        return 0;
    return refused(q, TARN_E_DIRECTORY, "its answer has no config-epoch", NO_SENTINEL);
}

/* `left`: how many replies are still missing. */
static int take_reply(struct question *q, const redisReply *reply, int left)
{
    if (reply->type == REDIS_REPLY_ERROR)
        return take_error(q, reply->str);
    return left == 2 ? 0 : left == 1 ? take_address(q, reply) : take_epoch(q, reply);
}

static int append_question(const struct tarn_sentinels *s, struct tarn_resp *r)
{
    int rc = 0;
    if (s->password)
        rc = tarn_resp_append_strs(r, "AUTH", s->user ? s->user : s->password, s->user ? s->password : NULL,
                                   NULL);
    if (!rc)
        rc = tarn_resp_append_strs(r, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", s->name, NULL);
    return rc ? rc : tarn_resp_append_strs(r, "SENTINEL", "MASTER", s->name, NULL);
}

/* Asks on a connection to it. */
static int talk(struct question *q, struct tarn_resp *r, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    const struct tarn_sentinels *s = &q->d->uri.sentinels;
    int rc = append_question(s, r);
    for (int left = s->password ? 3 : 2; left-- && !rc;) {
        redisReply *reply;
        rc = tarn_resp_read(r, deadline_ns, cancel, &reply);
        if (rc == TARN_E_PROTOCOL)
            return refused(q, TARN_E_DIRECTORY, tarn_resp_cause(r), NO_SENTINEL);
        if (rc)
            return silent(q, rc, tarn_resp_cause(r));
        rc = take_reply(q, reply, left);
        freeReplyObject(reply);
    }
    return rc;
}

static int ask(struct question *q, unsigned i, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    const struct tarn_addr *a = &q->d->uri.sentinels.addrs[i];
    struct tarn_resp *r;
    q->said = SILENT;
    tarn_addr_format(a, q->sentinel, sizeof q->sentinel);
    int rc = tarn_resp_connect(a, deadline_ns, cancel, &r);
    if (rc)
        return silent(q, rc, errno ? strerror(errno) : "cannot connect");
    rc = talk(q, r, deadline_ns, cancel);
    tarn_resp_free(r);
    return rc;
}

/* --- the primary -------------------------------------------------------------------------------- */

bool tarn_sentinel_suspects(const struct tarn_directory *d)
{
    return atomic_load(&d->suspicions) != atomic_load(&d->answered_suspicions);
}

void tarn_sentinel_suspect(struct tarn_directory *d)
{
    if (d->uri.sentinels.n)
        atomic_fetch_add(&d->suspicions, 1);
}

/* What only a Redis says that is no primary, is not ready, or was cut off from its replicas. */
static bool says_so(const char *error)
{
    static const char *const words[] = {"READONLY", "LOADING", "MASTERDOWN", "UNBLOCKED", "NOREPLICAS"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(error, words[i]))
            return true;
    return false;
}

/* Scripts put errors into arrays. */
static bool has_such_error(const redisReply *reply)
{
    if (reply->type == REDIS_REPLY_ERROR)
        return says_so(reply->str);
    for (size_t i = 0; reply->type == REDIS_REPLY_ARRAY && i < reply->elements; i++)
        if (has_such_error(reply->element[i]))
            return true;
    return false;
}

void tarn_sentinel_heard(struct tarn_directory *d, const redisReply *reply)
{
    if (d->uri.sentinels.n && has_such_error(reply))
        tarn_sentinel_suspect(d);
}

/* Redis answers to ROLE with an array that begins with "master" or "slave". */
static int check_role(struct tarn_directory *d, struct tarn_redis *c, uint64_t deadline_ns,
                      struct tarn_cancel *cancel)
{
    redisReply *reply;
    int rc = tarn_resp_append_strs(c->resp, "ROLE", NULL);
    if (!rc)
        rc = tarn_redis_read(c, deadline_ns, cancel, &reply);
    if (rc)
        return tarn_redis_fail(d, c, rc);
    rc = tarn_redis_check_array(d, reply);
    if (rc)
        return rc;
    const redisReply *role = reply->elements ? reply->element[0] : NULL;
    if (role && role->type == REDIS_REPLY_STRING && !strcmp(role->str, "master"))
        return 0;
    return tarn_fail(TARN_E_DIRECTORY,
                     "redis at %s: it is no primary: sentinels are changing it: try again, or see SENTINEL "
                     "MASTER %s",
                     d->uri.address, d->uri.sentinels.name);
}

static int connect_primary(struct tarn_directory *d, const struct tarn_addr *a, uint64_t deadline_ns,
                           struct tarn_cancel *cancel, struct tarn_redis **c_p)
{
    int rc = tarn_redis_connect_to(d, a, deadline_ns, cancel, c_p);
    if (rc)
        return rc;
    rc = check_role(d, *c_p, deadline_ns, cancel);
    if (rc)
        tarn_redis_free(*c_p);
    return rc;
}

/* From now on this is the primary, and sentinel `i` is asked first. */
static void adopt(struct tarn_directory *d, const struct named *n, unsigned i, struct tarn_redis *c)
{
    char text[ADDR_TEXT];
    pthread_mutex_lock(&d->lock);
    bool other = !same(&d->primary, &n->addr) || atomic_load(&d->config_epoch) != n->epoch;
    if (other) {
        d->primary = n->addr;
        d->ndoubtful = 0; /* they are not this one's clients */
        atomic_store(&d->config_epoch, n->epoch);
        atomic_fetch_add(&d->term, 1);
    }
    d->first_sentinel = i;
    c->term = atomic_load(&d->term);
    pthread_mutex_unlock(&d->lock);
    atomic_store(&d->sentinel_asked_ns, tarn_now_ns());
    tarn_addr_format(&n->addr, text, sizeof text);
    if (other)
        tarn_log(d->log, TARN_LOG_INFO, "sentinel",
                 "msg=\"redis has this primary now\" name=%s primary=%s epoch=%llu", d->uri.sentinels.name,
                 text, (unsigned long long)n->epoch);
}

static unsigned first_sentinel(struct tarn_directory *d)
{
    pthread_mutex_lock(&d->lock);
    unsigned first = d->first_sentinel;
    pthread_mutex_unlock(&d->lock);
    return first;
}

/* The name of whoever told the address, and the address. */
static int named_in_vain(struct question *q, int rc)
{
    char text[ADDR_TEXT];
    struct tarn_reason why;
    q->said = NAMED;
    tarn_addr_format(&q->primary.addr, text, sizeof text);
    tarn_reason_keep(&why, rc);
    return tarn_fail(rc, "sentinel %s names the primary %s: %.380s", q->sentinel, text, why.text);
}

/* A part of what is left until the deadline. */
static uint64_t share(uint64_t deadline_ns, unsigned parts)
{
    uint64_t now = tarn_now_ns();
    return deadline_ns <= now ? deadline_ns : now + (deadline_ns - now) / parts;
}

/* A search for the primary. */
struct search {
    struct tarn_directory *d;
    struct tarn_cancel *cancel;
    uint64_t epoch;          /* smaller ones are not believed */
    bool late;               /* out: a sentinel has told a smaller one */
    struct tarn_addr failed; /* the last one that was tried */
    enum said most;
    struct tarn_reason why; /* what the failure that said most has said */
};

static int try_sentinel(struct search *w, unsigned i, uint64_t deadline_ns, struct tarn_redis **c_p)
{
    struct question q = {.d = w->d};
    int rc = ask(&q, i, deadline_ns, w->cancel);
    if (!rc && q.primary.epoch < w->epoch) {
        w->late = true;
        return TARN_E_DIRECTORY;
    }
    if (!rc && same(&q.primary.addr, &w->failed))
        return TARN_E_DIRECTORY;
    if (!rc) {
        rc = connect_primary(w->d, &q.primary.addr, deadline_ns, w->cancel, c_p);
        if (!rc) {
            adopt(w->d, &q.primary, i, *c_p);
            return 0;
        }
        w->failed = q.primary.addr;
        rc = named_in_vain(&q, rc);
    }
    if (q.said >= w->most) {
        tarn_reason_keep(&w->why, rc);
        w->most = q.said;
    }
    return rc;
}

static int search(struct search *w, uint64_t deadline_ns, struct tarn_redis **c_p)
{
    unsigned n = w->d->uri.sentinels.n, first = first_sentinel(w->d);
    int rc = TARN_E_DIRECTORY;
    for (unsigned k = 0; k < n && rc; k++) {
        rc = try_sentinel(w, (first + k) % n, share(deadline_ns, n - k), c_p);
        if (rc == TARN_E_CANCELED || rc == TARN_E_NO_MEMORY)
            return rc;
    }
    return rc;
}

int tarn_sentinel_connect(struct tarn_directory *d, uint64_t deadline_ns, struct tarn_cancel *cancel,
                          struct tarn_redis **c_p)
{
    struct search w = {.d = d, .cancel = cancel, .epoch = atomic_load(&d->config_epoch)};
    unsigned suspicions = atomic_load(&d->suspicions);
    int rc = search(&w, deadline_ns, c_p);
    if (rc == TARN_E_CANCELED || rc == TARN_E_NO_MEMORY)
        return rc;
    if (rc && w.late && w.most < NAMED) {
        w.epoch = 0;
        rc = search(&w, deadline_ns, c_p);
    }
    if (!rc)
        atomic_store(&d->answered_suspicions, suspicions);
    return rc ? tarn_reason_fail(&w.why) : 0;
}

void tarn_sentinel_confirm(struct tarn_directory *d, uint32_t max_age_ms, uint64_t deadline_ns)
{
    if (!d->uri.sentinels.n || tarn_sentinel_suspects(d))
        return;
    struct question q = {.d = d};
    uint64_t now = tarn_now_ns(), asked = atomic_load(&d->sentinel_asked_ns);
    uint64_t until_ns = tarn_deadline(CONFIRM_MS);
    if (now - asked < max_age_ms * TARN_NS_PER_MS ||
        !atomic_compare_exchange_strong(&d->sentinel_asked_ns, &asked, now))
        return;
    unsigned i = first_sentinel(d);
    int rc = ask(&q, i, until_ns < deadline_ns ? until_ns : deadline_ns, NULL);
    pthread_mutex_lock(&d->lock);
    bool other =
        !rc && (!same(&d->primary, &q.primary.addr) || atomic_load(&d->config_epoch) != q.primary.epoch);
    if (rc)
        d->first_sentinel = (i + 1) % d->uri.sentinels.n;
    pthread_mutex_unlock(&d->lock);
    if (other)
        tarn_sentinel_suspect(d);
}

void tarn_directory_primary(struct tarn_directory *d, char out[TARN_PRIMARY_TEXT])
{
    pthread_mutex_lock(&d->lock);
    if (d->primary.port)
        tarn_addr_format(&d->primary, out, TARN_PRIMARY_TEXT);
    else
        out[0] = '\0';
    pthread_mutex_unlock(&d->lock);
}

void tarn_sentinel_run(const struct tarn_directory *d, char *run, size_t bytes)
{
    size_t n = strlen(run);
    if (d->uri.sentinels.n)
        snprintf(run + n, bytes - n, ":%llu", (unsigned long long)atomic_load(&d->config_epoch));
}
