/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Redis Sentinel: which Redis is the primary now.
 *
 *   nothing known, or suspected --> ask a sentinel --> connect to what it names --> ROLE says master --> used
 *                                       ^                     |
 *                                       +-- the next sentinel +-- any failure
 *
 * - One sentinel after the other is asked, first the one that answered last. Each, with the Redis that it
 *   names, gets an equal share of the time that is left.
 * - A failed connection, and an answer that only a Redis gives that is not the primary or not ready, makes
 * the primary suspected: the next pipeline asks sentinels before it uses any connection.
 * - A primary that was cut off from its sentinels goes on answering. So nodes ask a sentinel at heartbeats,
 * and clients before they ask for leases (tarn_sentinel_confirm()). Another answer makes the primary
 * suspected.
 * - Each other primary has a new *term*. A connection belongs to the term in which it was made, and is not
 * used in a later one: after one thread has used the new primary, no thread uses the old one any more.
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

/* How much a failure says: the one that says most is reported. */
enum said { SILENT, REFUSED, NAMED };

#define ADDR_TEXT (sizeof((struct tarn_addr *)0)->host + 16)

static bool same(const struct tarn_addr *a, const struct tarn_addr *b)
{
    return a->port == b->port && !strcmp(a->host, b->host);
}

/* --- one sentinel ------------------------------------------------------------------------------- */

struct question {
    const struct tarn_directory *d;
    char sentinel[ADDR_TEXT]; /* who is asked */
    enum said said;
    struct tarn_addr *primary; /* out */
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
        return refused(q, TARN_E_AUTH, text, "grant that user +sentinel|get-master-addr-by-name");
    if (strstr(text, "unknown command"))
        return refused(q, TARN_E_DIRECTORY, text, "it is no sentinel: give the addresses of sentinels");
    return refused(q, TARN_E_DIRECTORY, text, "see the sentinel's log");
}

/* {host, port}; nil: it does not know the name. */
static int take_address(struct question *q, const redisReply *reply)
{
    uint64_t port = 0;
    if (reply->type == REDIS_REPLY_NIL)
        return refused(q, TARN_E_DIRECTORY, "it knows no primary of that name",
                       "correct the name behind the sentinels (SENTINEL MASTERS lists them)");
    bool pair = reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 &&
                reply->element[0]->type == REDIS_REPLY_STRING &&
                reply->element[1]->type == REDIS_REPLY_STRING;
    const redisReply *host = pair ? reply->element[0] : NULL, *number = pair ? reply->element[1] : NULL;
    if (!pair || !host->len || (size_t)host->len >= sizeof q->primary->host ||
        strlen(host->str) != (size_t)host->len ||
        tarn_u64_parse(number->str, (size_t)number->len, 10, UINT16_MAX, &port) || !port)
        return refused(q, TARN_E_DIRECTORY, "its answer is no address",
                       "it is no sentinel: correct its address");
    *q->primary = (struct tarn_addr){.port = (uint16_t)port};
    memcpy(q->primary->host, host->str, (size_t)host->len);
    return 0;
}

static int take_reply(struct question *q, const redisReply *reply, bool is_login)
{
    if (reply->type == REDIS_REPLY_ERROR)
        return take_error(q, reply->str);
    return is_login ? 0 : take_address(q, reply);
}

static int append_question(const struct tarn_sentinels *s, struct tarn_resp *r)
{
    int rc = 0;
    if (s->password)
        rc = tarn_resp_append_strs(r, "AUTH", s->user ? s->user : s->password, s->user ? s->password : NULL,
                                   NULL);
    return rc ? rc : tarn_resp_append_strs(r, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", s->name, NULL);
}

/* Asks on a connection to it. */
static int talk(struct question *q, struct tarn_resp *r, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    const struct tarn_sentinels *s = &q->d->uri.sentinels;
    int rc = append_question(s, r);
    for (int left = s->password ? 2 : 1; left-- && !rc;) {
        redisReply *reply;
        rc = tarn_resp_read(r, deadline_ns, cancel, &reply);
        if (rc == TARN_E_PROTOCOL)
            return refused(q, TARN_E_DIRECTORY, tarn_resp_cause(r), "it is no sentinel: correct its address");
        if (rc)
            return silent(q, rc, tarn_resp_cause(r));
        rc = take_reply(q, reply, left > 0);
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
static void adopt(struct tarn_directory *d, const struct tarn_addr *a, unsigned i, struct tarn_redis *c)
{
    char text[ADDR_TEXT];
    pthread_mutex_lock(&d->lock);
    bool other = !same(&d->primary, a);
    if (other) {
        d->primary = *a;
        d->ndoubtful = 0; /* they are not this one's clients */
        atomic_fetch_add(&d->term, 1);
    }
    d->first_sentinel = i;
    c->term = atomic_load(&d->term);
    pthread_mutex_unlock(&d->lock);
    atomic_store(&d->sentinel_asked_ns, tarn_now_ns());
    tarn_addr_format(a, text, sizeof text);
    if (other)
        tarn_log(d->log, TARN_LOG_INFO, "sentinel", "msg=\"redis has this primary now\" name=%s primary=%s",
                 d->uri.sentinels.name, text);
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
    tarn_addr_format(q->primary, text, sizeof text);
    tarn_reason_keep(&why, rc);
    return tarn_fail(rc, "sentinel %s names the primary %s: %.380s", q->sentinel, text, why.text);
}

/* A part of what is left until the deadline. */
static uint64_t share(uint64_t deadline_ns, unsigned parts)
{
    uint64_t now = tarn_now_ns();
    return deadline_ns <= now ? deadline_ns : now + (deadline_ns - now) / parts;
}

int tarn_sentinel_connect(struct tarn_directory *d, uint64_t deadline_ns, struct tarn_cancel *cancel,
                          struct tarn_redis **c_p)
{
    const struct tarn_sentinels *s = &d->uri.sentinels;
    struct tarn_addr primary, failed = {.port = 0};
    struct question q = {.d = d, .primary = &primary};
    struct tarn_reason why = {.code = 0};
    enum said most = SILENT;
    unsigned first = first_sentinel(d), suspicions = atomic_load(&d->suspicions);
    for (unsigned k = 0; k < s->n; k++) {
        unsigned i = (first + k) % s->n;
        uint64_t until_ns = share(deadline_ns, s->n - k);
        int rc = ask(&q, i, until_ns, cancel);
        if (!rc && same(&primary, &failed))
            continue;
        if (!rc) {
            rc = connect_primary(d, &primary, until_ns, cancel, c_p);
            if (!rc) {
                adopt(d, &primary, i, *c_p);
                atomic_store(&d->answered_suspicions, suspicions);
                return 0;
            }
            failed = primary;
            rc = named_in_vain(&q, rc);
        }
        if (rc == TARN_E_CANCELED || rc == TARN_E_NO_MEMORY)
            return rc;
        if (q.said >= most)
            tarn_reason_keep(&why, rc);
        most = q.said > most ? q.said : most;
    }
    return tarn_reason_fail(&why);
}

void tarn_sentinel_confirm(struct tarn_directory *d, uint32_t max_age_ms, uint64_t deadline_ns)
{
    if (!d->uri.sentinels.n || tarn_sentinel_suspects(d))
        return;
    struct tarn_addr primary;
    struct question q = {.d = d, .primary = &primary};
    uint64_t now = tarn_now_ns(), asked = atomic_load(&d->sentinel_asked_ns);
    uint64_t until_ns = tarn_deadline(CONFIRM_MS);
    if (now - asked < max_age_ms * TARN_NS_PER_MS ||
        !atomic_compare_exchange_strong(&d->sentinel_asked_ns, &asked, now))
        return;
    unsigned i = first_sentinel(d);
    int rc = ask(&q, i, until_ns < deadline_ns ? until_ns : deadline_ns, NULL);
    pthread_mutex_lock(&d->lock);
    bool other = !rc && !same(&d->primary, &primary);
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
