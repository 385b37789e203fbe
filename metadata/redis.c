/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections to Redis: login, pool, pipelines, errors in words.
 *
 * A failure of the connection (refused, reset, not RESP) is DIRECTORY, a passed deadline TIMEOUT. An error
 * that Redis answers is DIRECTORY, too, or AUTH if it concerns users and passwords. Every sentence has the
 * address without user and password.
 */
#include "metadata/redis.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "metadata/records.h"

/* --- errors ------------------------------------------------------------------------------------- */

static int fail(const struct tarn_directory *d, int rc, const char *cause, const char *remedy)
{
    switch (rc) {
    case TARN_E_NO_MEMORY:
    case TARN_E_CANCELED:
        return rc;
    case TARN_E_TIMEOUT:
        return tarn_fail(rc,
                         "redis at %s: no answer before the deadline: see whether it is paused, overloaded "
                         "or cut off (redis-cli PING), or allow more time",
                         d->uri.address);
    case TARN_E_PROTOCOL:
        return tarn_fail(TARN_E_DIRECTORY,
                         "redis at %s: what answers there does not speak Redis's protocol (%s): "
                         "correct the address",
                         d->uri.address, cause);
    default:
        return tarn_fail(TARN_E_DIRECTORY, "redis at %s: %s: %s", d->uri.address, cause, remedy);
    }
}

int tarn_redis_fail(const struct tarn_directory *d, const struct tarn_redis *c, int rc)
{
    return fail(d, rc, tarn_resp_cause(c->resp), "start Redis there or correct the address");
}

/* `error` is the errno of tarn_resp_connect(). */
static int connect_failed(const struct tarn_directory *d, int rc, int error)
{
    bool forbidden = error == EACCES || error == EPERM;
    struct tarn_reason why;
    char cause[128];

    tarn_reason_keep(&why, rc);
    snprintf(cause, sizeof cause, "cannot connect: %s", strerror(error));
    return fail(d, rc, error ? cause : why.text,
                forbidden ? "run as a user who may" : "start Redis there or correct the address");
}

/* What Redis's error codes mean for the reader of the message. Older servers put them inside "ERR ...". */
static const struct {
    const char *word;
    int code;
    const char *remedy;
} refusals[] = {
    {"WRONGPASS", TARN_E_AUTH, "correct user and password in the Redis URI"},
    {"NOAUTH", TARN_E_AUTH, "put user and password into the Redis URI (redis://user:password@host)"},
    {"NOPERM", TARN_E_AUTH, "grant the user what metadata/KEYS.md lists (ACL SETUSER)"},
    {"ACL failure in script", TARN_E_AUTH, "grant the user what metadata/KEYS.md lists (ACL SETUSER)"},
    {"can't run this command", TARN_E_AUTH, "grant the user what metadata/KEYS.md lists (ACL SETUSER)"},
    {"UNSUPPORTED unknown command", TARN_E_DIRECTORY,
     "this is a storage node, not Redis: give the redis= of its ready line"},
    {"without any password configured", TARN_E_AUTH, "take the password out of the Redis URI"},
    {"no password is set", TARN_E_AUTH, "take the password out of the Redis URI"},
    {"OOM", TARN_E_DIRECTORY, "raise Redis's maxmemory or let it evict (CONFIG SET maxmemory-policy)"},
    {"READONLY", TARN_E_DIRECTORY, "it is a replica: give the address of the primary"},
    {"LOADING", TARN_E_DIRECTORY, "it reads its data from disk: try again in a moment"},
    {"MISCONF", TARN_E_DIRECTORY,
     "its snapshots fail: see its log, or CONFIG SET stop-writes-on-bgsave-error no"},
    {"MASTERDOWN", TARN_E_DIRECTORY, "it is a replica without its primary: give the address of the primary"},
    {"BUSY", TARN_E_DIRECTORY, "a script runs for too long there: end it by SCRIPT KILL"},
    {"MOVED", TARN_E_DIRECTORY, "it is a cluster node: give the address of a single Redis"},
    {"CROSSSLOT", TARN_E_DIRECTORY, "it is a cluster node: give the address of a single Redis"},
    {"CLUSTERDOWN", TARN_E_DIRECTORY, "it is a cluster node: give the address of a single Redis"},
    {"unknown command", TARN_E_DIRECTORY,
     "tarn needs that command: a Sentinel has it not, nor a Redis with rename-command, nor an old one"},
    {"DB index", TARN_E_DIRECTORY, "correct the database number in the Redis URI"},
    {"max number of clients", TARN_E_DIRECTORY, "raise Redis's maxclients"},
};

int tarn_redis_check(const struct tarn_directory *d, const redisReply *reply)
{
    if (reply->type != REDIS_REPLY_ERROR)
        return 0;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
        if (strstr(reply->str, refusals[i].word))
            return tarn_fail(refusals[i].code, "redis at %s refuses: %.200s: %s", d->uri.address, reply->str,
                             tarn_sentinel_suspects(d) ? "sentinels may be changing the primary: try again"
                                                       : refusals[i].remedy);
    return tarn_fail(TARN_E_DIRECTORY,
                     "redis at %s refuses: %.200s: see its log and version (6.0 or newer is tested)",
                     d->uri.address, reply->str);
}

int tarn_redis_check_array(const struct tarn_directory *d, const redisReply *reply)
{
    int rc = tarn_redis_check(d, reply);
    if (!rc && reply->type != REDIS_REPLY_ARRAY)
        rc = tarn_fail(
            TARN_E_DIRECTORY,
            "redis at %s: not the kind of answer that Redis gives: correct the address, and if a proxy is "
            "there, give that of Redis",
            d->uri.address);
    return rc;
}

/* --- connections -------------------------------------------------------------------------------- */

static int append_login(const struct tarn_redis_uri *u, struct tarn_resp *r, int *ncommands)
{
    char db[12];
    int rc = 0;
    snprintf(db, sizeof db, "%u", u->db);
    *ncommands = 1 + (u->password != NULL) + (u->db != 0);
    if (u->password)
        rc = tarn_resp_append_strs(r, "AUTH", u->user ? u->user : u->password, u->user ? u->password : NULL,
                                   NULL);
    if (!rc && u->db)
        rc = tarn_resp_append_strs(r, "SELECT", db, NULL);
    return rc ? rc : tarn_resp_append_strs(r, "PING", NULL);
}

/* A TLS port closes the connection at the first command. */
static int login_failed(const struct tarn_directory *d, const struct tarn_redis *c, int rc)
{
    if (rc != TARN_E_NODE_DOWN)
        return tarn_redis_fail(d, c, rc);
    return tarn_fail(
        TARN_E_DIRECTORY,
        "redis at %s: answers nothing (%s): correct the address, or give a port without TLS, which tarn "
        "does not speak",
        d->uri.address, tarn_resp_cause(c->resp));
}

/* PING ends the login, so that a Redis that is loading, or wants a password, says so here. */
static int login(struct tarn_directory *d, struct tarn_redis *c, uint64_t deadline_ns,
                 struct tarn_cancel *cancel)
{
    uint64_t asked = tarn_now_ns();
    int n, rc = append_login(&d->uri, c->resp, &n);
    for (int i = 0; i < n && !rc; i++) {
        redisReply *reply;
        rc = tarn_redis_read(c, deadline_ns, cancel, &reply);
        rc = rc ? login_failed(d, c, rc) : tarn_redis_check(d, reply);
    }
    d->round_trips++;
    if (!rc)
        atomic_store(&d->rtt_ns, tarn_now_ns() - asked);
    return rc;
}

int tarn_redis_connect_to(struct tarn_directory *d, const struct tarn_addr *a, uint64_t deadline_ns,
                          struct tarn_cancel *cancel, struct tarn_redis **c_p)
{
    struct tarn_redis *c = calloc(1, sizeof *c);
    if (!c)
        return tarn_fail(TARN_E_NO_MEMORY, "redis at %s: %zu bytes", d->uri.address, sizeof *c);
    int rc = tarn_resp_connect(a, deadline_ns, cancel, &c->resp);
    if (rc) {
        rc = connect_failed(d, rc, errno);
        goto free_connection;
    }
    tarn_arena_use(&c->replies, tarn_resp_reader(c->resp));
    rc = login(d, c, deadline_ns, cancel);
    if (rc)
        goto free_connection;
    *c_p = c;
    return 0;

free_connection:
    tarn_redis_free(c);
    return rc;
}

int tarn_redis_connect(struct tarn_directory *d, uint64_t deadline_ns, struct tarn_cancel *cancel,
                       struct tarn_redis **c_p)
{
    return d->uri.sentinels.n ? tarn_sentinel_connect(d, deadline_ns, cancel, c_p)
                              : tarn_redis_connect_to(d, &d->uri.addr, deadline_ns, cancel, c_p);
}

bool tarn_redis_leads(const struct tarn_directory *d, const struct tarn_redis *c)
{
    return c->term == atomic_load(&d->term) && !tarn_sentinel_suspects(d);
}

void tarn_redis_free(struct tarn_redis *c)
{
    tarn_resp_free(c->resp);
    tarn_arena_free(&c->replies);
    free(c);
}

int tarn_redis_read(struct tarn_redis *c, uint64_t deadline_ns, struct tarn_cancel *cancel,
                    redisReply **reply_p)
{
    tarn_arena_empty(&c->replies);
    return tarn_resp_read(c->resp, deadline_ns, cancel, reply_p);
}

int tarn_redis_try(struct tarn_redis *c, redisReply **reply_p)
{
    if (!c->partial)
        tarn_arena_empty(&c->replies);
    int rc = tarn_resp_try(c->resp, reply_p);
    c->partial = rc == TARN_E_AGAIN;
    return rc;
}

/* The idle connection used last, if it is still alive. None while the primary is suspected. */
static struct tarn_redis *take_idle(struct tarn_directory *d)
{
    while (!tarn_sentinel_suspects(d)) {
        pthread_mutex_lock(&d->lock);
        struct tarn_redis *c = d->nidle ? d->idle[--d->nidle] : NULL;
        pthread_mutex_unlock(&d->lock);
        if (!c || (c->term == atomic_load(&d->term) && !tarn_resp_dead(c->resp)))
            return c;
        tarn_redis_free(c);
    }
    return NULL;
}

static void give_back(struct tarn_directory *d, struct tarn_redis *c)
{
    pthread_mutex_lock(&d->lock);
    bool room = d->nidle < TARN_REDIS_IDLE_MAX;
    if (room)
        d->idle[d->nidle++] = c;
    pthread_mutex_unlock(&d->lock);
    if (!room)
        tarn_redis_free(c);
}

/* --- connections that may still be heard -------------------------------------------------------- */

/* Forgets the oldest when they are too many. */
static void note_doubtful(struct tarn_directory *d, const struct tarn_redis_client *clients, unsigned n)
{
    pthread_mutex_lock(&d->lock);
    for (unsigned i = 0; i < n; i++) {
        if (d->ndoubtful == TARN_REDIS_DOUBTFUL_MAX)
            memmove(d->doubtful, d->doubtful + 1, --d->ndoubtful * sizeof *d->doubtful);
        d->doubtful[d->ndoubtful++] = clients[i];
    }
    pthread_mutex_unlock(&d->lock);
}

static unsigned take_doubtful(struct tarn_directory *d,
                              struct tarn_redis_client clients[TARN_REDIS_DOUBTFUL_MAX])
{
    pthread_mutex_lock(&d->lock);
    unsigned n = d->ndoubtful;
    memcpy(clients, d->doubtful, n * sizeof *clients);
    d->ndoubtful = 0;
    pthread_mutex_unlock(&d->lock);
    return n;
}

/* The value of " name=" in what CLIENT INFO answers. */
static void take_word(const char *text, const char *name, char *out, size_t out_bytes)
{
    const char *at = strstr(text, name);
    size_t n = at ? strcspn(at + strlen(name), " \r\n") : 0;
    if (at && n < out_bytes)
        snprintf(out, out_bytes, "%.*s", (int)n, at + strlen(name));
}

/* CLIENT INFO came with Redis 6.2; before, CLIENT ID tells the number alone. */
static int append_ask(const struct tarn_directory *d, struct tarn_redis *c)
{
    c->by_id = atomic_load(&d->by_id);
    return tarn_resp_append_strs(c->resp, "CLIENT", c->by_id ? "ID" : "INFO", NULL);
}

/* Without CLIENT INFO, the next pipeline asks again. */
static void take_client(struct tarn_directory *d, struct tarn_redis *c, const redisReply *reply)
{
    c->asked = true;
    if (reply->type == REDIS_REPLY_INTEGER) {
        snprintf(c->client.id, sizeof c->client.id, "%lld", reply->integer);
    } else if (reply->type == REDIS_REPLY_STRING && !strncmp(reply->str, "id=", 3)) {
        take_word(reply->str, "id=", c->client.id, sizeof c->client.id);
        take_word(reply->str, " addr=", c->client.addr, sizeof c->client.addr);
    } else {
        c->asked = c->by_id;
        atomic_store(&d->by_id, true);
    }
}

/* The address, if it is known, too: a Redis that was restarted gives the same ids to others. */
static int append_preface(const struct tarn_directory *d, struct tarn_redis *c,
                          const struct tarn_redis_client *doubtful, unsigned n)
{
    int rc = c->asked ? 0 : append_ask(d, c);
    for (unsigned i = 0; i < n && !rc; i++) {
        const char *addr = doubtful[i].addr;
        rc = tarn_resp_append_strs(c->resp, "CLIENT", "KILL", "ID", doubtful[i].id, addr[0] ? "ADDR" : NULL,
                                   addr, NULL);
    }
    return rc;
}

/* The answers to CLIENT KILL do not matter: the connection is dead, or Redis does not let us. */
static int read_preface(struct tarn_directory *d, struct tarn_redis *c, uint64_t deadline_ns, unsigned nkills)
{
    redisReply *reply;
    int rc = c->asked ? 0 : tarn_redis_read(c, deadline_ns, NULL, &reply);
    if (!rc && !c->asked)
        take_client(d, c, reply);
    while (!rc && nkills--)
        rc = tarn_redis_read(c, deadline_ns, NULL, &reply);
    return rc;
}

int tarn_redis_name(struct tarn_directory *d, struct tarn_redis *c, uint64_t deadline_ns)
{
    int rc = 0;
    for (int i = 0; i < 2 && !rc && !c->asked; i++) {
        rc = append_preface(d, c, NULL, 0);
        if (!rc)
            rc = read_preface(d, c, deadline_ns, 0);
    }
    return rc ? tarn_redis_fail(d, c, rc) : 0;
}

void tarn_redis_doubt(struct tarn_directory *d, const struct tarn_redis *c)
{
    if (c->client.id[0] && c->term == atomic_load(&d->term))
        note_doubtful(d, &c->client, 1);
}

bool tarn_redis_doubtful(struct tarn_directory *d)
{
    pthread_mutex_lock(&d->lock);
    bool any = d->ndoubtful > 0;
    pthread_mutex_unlock(&d->lock);
    return any;
}

void tarn_redis_key(const struct tarn_directory *d, char out[TARN_REDIS_KEY_TEXT], const char *rest, ...)
{
    va_list ap;
    int n = snprintf(out, TARN_REDIS_KEY_TEXT, "%s", d->prefix);
    va_start(ap, rest);
    vsnprintf(out + n, TARN_REDIS_KEY_TEXT - (size_t)n, rest, ap);
    va_end(ap);
}

/* --- pipelines ---------------------------------------------------------------------------------- */

/* *replies: how many came. Returns a failure of the connection; *result is what p->reply has returned. */
static int exchange(struct tarn_directory *d, struct tarn_redis *c, uint64_t deadline_ns,
                    const struct tarn_pipeline *p, size_t *replies, int *result)
{
    struct tarn_redis_client doubtful[TARN_REDIS_DOUBTFUL_MAX];
    unsigned nkills = p->writes ? take_doubtful(d, doubtful) : 0;
    int rc = p->writes ? append_preface(d, c, doubtful, nkills) : 0;
    for (size_t i = 0; i < p->n && !rc; i++)
        rc = p->append(p->arg, i, c->resp);
    if (!rc && p->writes)
        rc = read_preface(d, c, deadline_ns, nkills);
    if (rc)
        note_doubtful(d, doubtful, nkills);
    for (; !rc && *replies < p->n; ++*replies) {
        redisReply *reply;
        rc = tarn_redis_read(c, deadline_ns, p->cancel, &reply);
        if (rc)
            break;
        tarn_sentinel_heard(d, reply);
        if (!*result)
            *result = p->reply(p->arg, *replies, reply);
    }
    if (rc && rc != TARN_E_CANCELED)
        tarn_sentinel_suspect(d);
    if (rc && p->writes) {
        tarn_redis_doubt(d, c);
        d->unanswered++;
    }
    d->answers = !rc;
    return rc;
}

int tarn_redis_run(struct tarn_directory *d, uint64_t deadline_ns, const struct tarn_pipeline *p)
{
    tarn_sentinel_confirm(d, TARN_CONFIRM_USED_MS, deadline_ns);
    struct tarn_redis *c = take_idle(d);
    size_t replies = 0;
    int result = 0, rc = TARN_E_NODE_DOWN;
    if (c) {
        d->round_trips += !p->aside;
        rc = exchange(d, c, deadline_ns, p, &replies, &result);
    }
    if (rc == TARN_E_NODE_DOWN && !replies) {
        if (c)
            tarn_redis_free(c);
        d->answers = false;
        rc = tarn_redis_connect(d, deadline_ns, p->cancel, &c);
        if (rc)
            return rc;
        d->round_trips += !p->aside;
        rc = exchange(d, c, deadline_ns, p, &replies, &result);
    }
    if (rc) {
        rc = tarn_redis_fail(d, c, rc);
        tarn_redis_free(c);
        return rc;
    }
    give_back(d, c);
    return result;
}

/* --- open, close -------------------------------------------------------------------------------- */

int tarn_name_check(const char *what, const char *text, size_t max)
{
    if (tarn_name_valid(text, strlen(text), max))
        return 0;
    return tarn_fail(TARN_E_CONFIG, "%s '%.80s': not a name: use 1 to %zu of A-Z a-z 0-9 . _ -", what, text,
                     max);
}

int tarn_directory_open(const char *uri, const char *ns, const struct tarn_logger *log, uint64_t deadline_ns,
                        struct tarn_cancel *cancel, struct tarn_directory **d_p)
{
    ns = ns ? ns : "default";
    int rc = tarn_name_check("namespace", ns, TARN_NS_MAX);
    if (rc)
        return rc;
    struct tarn_directory *d = calloc(1, sizeof *d);
    if (!d)
        return tarn_fail(TARN_E_NO_MEMORY, "directory: %zu bytes", sizeof *d);
    rc = tarn_redis_uri_parse(uri, &d->uri);
    if (rc)
        goto free_directory;
    d->log = log;
    snprintf(d->ns, sizeof d->ns, "%s", ns);
    snprintf(d->prefix, sizeof d->prefix, "tarn:%s:", ns);
    snprintf(d->channel, sizeof d->channel, "%sevents", d->prefix);
    pthread_mutex_init(&d->lock, NULL);
    struct tarn_redis *c;
    rc = tarn_redis_connect(d, deadline_ns, cancel, &c);
    if (rc)
        goto destroy_lock;
    give_back(d, c);
    *d_p = d;
    return 0;

destroy_lock:
    pthread_mutex_destroy(&d->lock);
    tarn_redis_uri_free(&d->uri);
free_directory:
    free(d);
    return rc;
}

void tarn_directory_close(struct tarn_directory *d)
{
    if (!d)
        return;
    for (unsigned i = 0; i < d->nidle; i++)
        tarn_redis_free(d->idle[i]);
    pthread_mutex_destroy(&d->lock);
    tarn_redis_uri_free(&d->uri);
    free(d);
}

const char *tarn_directory_ns(const struct tarn_directory *d)
{
    return d->ns;
}

const char *tarn_directory_address(const struct tarn_directory *d)
{
    return d->uri.address;
}

bool tarn_directory_answers(const struct tarn_directory *d)
{
    return d->answers;
}

uint64_t tarn_directory_rtt_ns(const struct tarn_directory *d)
{
    return atomic_load(&d->rtt_ns);
}

uint64_t tarn_directory_round_trips(const struct tarn_directory *d)
{
    return d->round_trips;
}

uint64_t tarn_directory_unanswered(const struct tarn_directory *d)
{
    return d->unanswered;
}
