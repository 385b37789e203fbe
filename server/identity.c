/* SPDX-License-Identifier: Apache-2.0 */
#include "server/identity.h"

#include <ctype.h>
#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/resp/resp.h"
#include "base/text.h"
#include "base/unix_dir.h"
#include "server/directory/presence.h"
#include "transport/cuda/cuda_text.h"

#define AT "node"
#define CLAIM_POLL_MS 50
#define ANSWER_MS 500

struct sharing {
    mode_t mode;
    gid_t group; /* -1: as it is */
};

static void host_name(char *out, size_t bytes)
{
    char name[128] = "";
    if (gethostname(name, sizeof(name) - 1) || !name[0])
        snprintf(name, sizeof(name), "localhost");
    snprintf(out, bytes, "%s", name);
}

static void choose_id(struct tarn_node *n)
{
    char host[40];
    if (n->config->id) {
        snprintf(n->id, sizeof(n->id), "%s", n->config->id);
        return;
    }
    host_name(host, sizeof(host));
    for (char *c = host; *c; c++) {
        if (!isalnum((unsigned char)*c) && *c != '.' && *c != '_' && *c != '-')
            *c = '-';
    }
    snprintf(n->id, sizeof(n->id), "%s-%d", host, (int)getpid());
}

/* --- the Unix socket and its directory ---------------------------------------------------------- */

/* Who may connect must be able to walk there. */
static mode_t dir_mode(const struct sharing *sharing)
{
    return 0700 | (sharing->mode & 0060 ? 0010 : 0) | (sharing->mode & 0006 ? 0001 : 0);
}

static int find_access(const struct tarn_node_config *c, struct sharing *out)
{
    unsigned mode;
    uint64_t number;
    int rc = tarn_unix_mode_parse(c->unix_mode, &mode);
    *out = (struct sharing){(mode_t)mode, (gid_t)-1};
    if (rc || !c->unix_group)
        return rc;
    const struct group *g = getgrnam(c->unix_group);
    if (g)
        out->group = g->gr_gid;
    else if (tarn_u64_parse(c->unix_group, strlen(c->unix_group), 10, UINT32_MAX - 1, &number) == 0)
        out->group = (gid_t)number;
    else
        return tarn_fail(TARN_E_CONFIG, "--unix-group %s: no such group: see `getent group`", c->unix_group);
    return 0;
}

/* The group before the mode, so that nobody gets in by the group it had. */
static int give_access(const char *path, gid_t group, mode_t mode)
{
    if (group != (gid_t)-1 && lchown(path, (uid_t)-1, group))
        return tarn_fail(
            TARN_E_CONFIG,
            "--unix-group: %s cannot be given to group %u: %m: name one that the node's user is in", path,
            (unsigned)group);
    if (chmod(path, mode))
        return tarn_fail(TARN_E_SYSTEM, "%s: its permissions cannot be set to %04o: %m", path,
                         (unsigned)mode);
    return 0;
}

/* Other nodes of this user may have opened it to others. */
static int share_our_dir(const char *dir, const struct sharing *sharing)
{
    struct stat st;
    int rc = tarn_unix_dir_check(dir, "give --unix a path in a directory that can be made");
    if (!rc && lstat(dir, &st))
        rc = tarn_fail(TARN_E_SYSTEM, "%s: %m", dir);
    return rc ? rc : give_access(dir, sharing->group, (st.st_mode & 0777) | dir_mode(sharing));
}

/* A directory of the operator's stays as it is. */
static int make_dir(const char *dir, bool ours, const struct sharing *sharing)
{
    bool made = mkdir(dir, 0700) == 0;
    if (!made && errno != EEXIST)
        return tarn_fail(TARN_E_SYSTEM, "%s: %m: give --unix a path in a directory that can be made", dir);
    return made || ours ? share_our_dir(dir, sharing) : 0;
}

int tarn_identity_share(const struct tarn_node *n, const struct tarn_addr *unix_addr)
{
    struct sharing sharing;
    int rc = find_access(n->config, &sharing);
    return rc ? rc : give_access(unix_addr->host, sharing.group, sharing.mode);
}

static int choose_path(struct tarn_node *n, char *path, size_t bytes)
{
    int used;
    if (n->config->unix_path)
        used =
            snprintf(path, bytes, "%s%s", n->config->unix_path[0] == '/' ? "" : "./", n->config->unix_path);
    else
        used = tarn_unix_path(n->id, path, bytes);
    if (used > TARN_UNIX_PATH_MAX)
        return tarn_fail(TARN_E_CONFIG,
                         "--unix: a path of %d bytes: a Unix socket's has %d at most: give a shorter one",
                         used, TARN_UNIX_PATH_MAX);
    return 0;
}

int tarn_identity_choose(struct tarn_node *n, struct tarn_addr *unix_addr)
{
    *unix_addr = (struct tarn_addr){.is_unix = true};
    choose_id(n);
    struct sharing sharing;
    int rc = find_access(n->config, &sharing);
    if (!rc)
        rc = choose_path(n, unix_addr->host, sizeof(unix_addr->host));
    if (rc)
        return rc;
    snprintf(n->unix_dir, sizeof(n->unix_dir), "%.*s", (int)(strrchr(unix_addr->host, '/') - unix_addr->host),
             unix_addr->host);
    return n->unix_dir[0] ? make_dir(n->unix_dir, !n->config->unix_path, &sharing) : 0;
}

/* --- the record --------------------------------------------------------------------------------- */

static void record_pool(struct tarn_node *n, uint32_t i, const struct tarn_pool_memory *pool)
{
    struct tarn_pool_record *r = &n->pools[i];
    size_t used = 0, nfields = 0;
    snprintf(r->name, sizeof(r->name), "%s", pool->name);
    snprintf(r->kind, sizeof(r->kind), "%s", pool->kind == TARN_POOL_GPU ? "gpu" : "cpu");
    if (pool->kind == TARN_POOL_GPU)
        tarn_cuda_uuid_format(pool->uuid, r->device);
    r->index = i;
    r->bytes = r->free_bytes = pool->bytes;
    r->slots = pool->nslots;
    for (uint32_t t = 0; t < n->host.ntransports && nfields < sizeof(r->fields) / sizeof(r->fields[0]); t++) {
        const struct tarn_node_half_ops *ops = n->host.transports[t].ops;
        if (!ops->serves(n->host.transports[t].half, i))
            continue;
        ops->describe(n->host.transports[t].half, i, r->fields[nfields++], TARN_FIELD_MAX);
        used += (size_t)snprintf(r->transports + used, sizeof(r->transports) - used, "%s%s", used ? "," : "",
                                 ops->name);
    }
}

int tarn_identity_record(struct tarn_node *n, const struct tarn_addr *listen_addr,
                         const struct tarn_addr *unix_addr)
{
    struct tarn_node_record *r = &n->record;
    const struct tarn_pool_memory *pools = tarn_store_pools(n->store, &r->npools);
    int rc = tarn_host_id(r->host_id);
    if (rc)
        return rc;
    snprintf(r->id, sizeof(r->id), "%s", n->id);
    r->epoch = n->epoch;
    host_name(r->host, sizeof(r->host));
    tarn_addr_format(listen_addr, r->control, sizeof(r->control));
    snprintf(r->unix_path, sizeof(r->unix_path), "%.*s", TARN_UNIX_PATH_MAX, unix_addr->host);
    snprintf(r->version, sizeof(r->version), "%s", tarn_version());
    r->pid = (uint32_t)getpid();
    r->started_ms = tarn_unix_ms();
    r->pools = n->pools;
    for (uint32_t i = 0; i < r->npools; i++)
        record_pool(n, i, &pools[i]);
    return 0;
}

/* --- the secret ------------------------------------------------------------------------------------ */

static bool is_loopback(const struct tarn_addr *a)
{
    return !strncmp(a->host, "127.", 4) || !strcmp(a->host, "::1") || !strcmp(a->host, "localhost");
}

/*
 * Made where it keeps somebody out: whom Redis keeps out cannot read it there, and who comes from another
 * host may not reach Redis. Else every user of this host could, so there is none.
 */
int tarn_identity_secret(struct tarn_node *n, const struct tarn_addr *listen_addr)
{
    if (n->config->secret)
        return 0;
    bool guarded =
        tarn_directory_is_guarded(n->directory, tarn_deadline((uint32_t)n->config->redis_timeout_ms));
    if (!guarded)
        tarn_log(&n->log, TARN_LOG_WARN, AT,
                 "msg=\"every user of this host, and whoever reaches Redis, may read and change what the "
                 "node holds\" control=%s remedy=\"set --secret, or give Redis a password\"",
                 n->record.control);
    return guarded || !is_loopback(listen_addr) ? tarn_secret_make(n->record.secret) : 0;
}

/* --- claiming the id ---------------------------------------------------------------------------- */

struct holder {
    struct tarn_node *node;
    struct tarn_node_record record;
    bool found;
};

static int take_holder(void *arg, const struct tarn_node_record *r)
{
    struct holder *h = arg;
    if (strcmp(r->id, h->node->id))
        return 0;
    h->found = true;
    h->record = *r;
    h->record.pools = NULL; /* the listing's */
    h->record.npools = 0;
    return 0;
}

/* The value that follows `name` in an answer to HELLO. */
static const char *hello_value(const redisReply *hello, const char *name)
{
    for (size_t i = 0; hello->type == REDIS_REPLY_ARRAY && i + 1 < hello->elements; i += 2) {
        const redisReply *key = hello->element[i], *value = hello->element[i + 1];
        if (key->type == REDIS_REPLY_STRING && value->type == REDIS_REPLY_STRING && !strcmp(key->str, name))
            return value->str;
    }
    return "";
}

/*
 * True: the node that wrote the record answers at its address with its epoch. Any other answer proves
 * nothing, because a dead node's port may be another server's by now, even this node's own. A node that wants
 * a secret that the record does not have counts as silent: its record goes on.
 */
static bool answers(const struct tarn_node_record *r)
{
    struct tarn_addr a;
    struct tarn_resp *resp;
    redisReply *reply;
    char session[20], epoch[20];
    const char *secret = r->secret[0] ? r->secret : NULL;
    uint64_t deadline = tarn_deadline(ANSWER_MS);
    snprintf(session, sizeof(session), "%016" PRIx64, tarn_random64());
    snprintf(epoch, sizeof(epoch), "%016" PRIx64, r->epoch);
    if (tarn_addr_parse(r->control, "control address", &a) || tarn_resp_connect(&a, deadline, NULL, &resp))
        return false;
    const struct tarn_command *hello = tarn_resp_command(resp, "HELLO", "1", session, secret, NULL);
    int rc = tarn_resp_call(resp, deadline, hello, &reply);
    tarn_resp_free(resp);
    if (rc)
        return false;
    bool same = !strcmp(hello_value(reply, "epoch"), epoch);
    freeReplyObject(reply);
    return same;
}

/* BUSY when the node that has the id answers; with `last` also when it does not. */
static int look_at_holder(struct tarn_node *n, uint64_t deadline_ns, bool last)
{
    struct holder h = {.node = n};
    int rc = tarn_directory_nodes(n->directory, deadline_ns, NULL, take_holder, &h);
    if (rc || !h.found)
        return rc;
    if (answers(&h.record))
        return tarn_fail(TARN_E_BUSY,
                         "node id %s: the node at %s on host %s (pid %u) lives under it: give this one "
                         "another --id",
                         n->id, h.record.control, h.record.host, h.record.pid);
    if (!last)
        return 0;
    return tarn_fail(
        TARN_E_BUSY,
        "node id %s: the node at %s on host %s (pid %u) keeps it, and does not answer or wants a "
        "secret: give this one another --id, or wait until its record expires",
        n->id, h.record.control, h.record.host, h.record.pid);
}

/*
 * Where the nodes before had another heartbeat, this waits until the last beat that it has found would have
 * expired: perhaps they are gone. CONFIG: they are not.
 */
static int first_beat(struct tarn_node *n, struct tarn_beat *b)
{
    const struct tarn_directory_state *s = &b->state;
    uint64_t until_ms = 0; /* by Redis's time */
    for (;;) {
        tarn_presence_fill(n, b);
        if (!n->taken_over)
            b->make_until_ms = UINT64_MAX; /* it holds nothing yet */
        int rc = tarn_directory_beat(n->directory, b, tarn_deadline((uint32_t)n->config->redis_timeout_ms));
        if (!b->conflict || (until_ms && s->now_ms >= until_ms))
            return rc;
        if (!until_ms) {
            until_ms = s->beat_ms + 3 * s->heartbeat_ms;
            tarn_log(&n->log, TARN_LOG_INFO, AT,
                     "msg=\"waiting whether the nodes with another heartbeat are gone\" heartbeat-ms=%" PRIu64
                     " wait_ms=%" PRIu64,
                     s->heartbeat_ms, until_ms - s->now_ms);
        }
        poll(NULL, 0, CLAIM_POLL_MS);
    }
}

/*
 * One that does not answer may be paused, or not to be reached from here: only its record's expiry says that
 * it is dead. Its pid does not, since it may be one of another PID namespace.
 */
int tarn_identity_claim(struct tarn_node *n)
{
    uint32_t timeout_ms = (uint32_t)n->config->redis_timeout_ms;
    uint64_t give_up = 0;
    for (;;) {
        struct tarn_beat b;
        bool last = give_up && !tarn_left_ms(give_up); /* what follows is asked after the record's end */
        int rc = first_beat(n, &b);
        if (rc)
            return rc;
        if (!b.taken_epoch) {
            if (!n->taken_over) /* else the first heartbeat decides */
                tarn_presence_begin(n, &b);
            return 0;
        }
        rc = look_at_holder(n, tarn_deadline(timeout_ms), last);
        if (rc)
            return rc;
        if (!give_up)
            give_up = tarn_deadline(n->ttl_ms + timeout_ms);
        poll(NULL, 0, CLAIM_POLL_MS);
    }
}
