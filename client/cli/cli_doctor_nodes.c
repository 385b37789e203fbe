/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tarn doctor's checks of nodes, made as a client: HELLO to each node, then put, get and remove of an
 * object for each pool and transport. The objects' keys begin with "tarn-doctor/". An object that cannot
 * be removed expires after a minute. Nothing is evicted for them: just before each put, the doctor asks
 * the node whether it has room and takes puts.
 */
#include "client/cli/cli_checks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "client/control_conn.h"
#include "client/peer_nodes.h"
#include "client/retire.h"
#include "metadata/redis.h" /* INFO replies have the form of Redis's */

#define PROBE_BYTES (64u << 10) /* several packets on any network */
#define PROBE_TTL_MS 60000

/* --- each node ---------------------------------------------------------------------------------- */

static const char *remedy_of(int code)
{
    switch (code) {
    case TARN_E_AUTH:
        return "show the secret that tarnd was started with: TARN_SECRET=..., or --secret; omit it "
               "if the node generated its own";
    case TARN_E_VERSION:
    case TARN_E_PROTOCOL:
        return "install the same version of tarn on both hosts: `tarn --version` here, `tarnd --version` "
               "there";
    case TARN_E_NODE_DOWN:
    case TARN_E_TIMEOUT:
        return "see whether it runs, and whether a firewall is between";
    default:
        return "do what the sentence says";
    }
}

/* Sends HELLO and INFO on a connection of its own. */
static int ask_info(const struct cli *c, struct tarn_peer_node *r, redisReply **reply_p)
{
    struct tarn_steps steps = {.deadline_ns = tarn_deadline(cli_timeout(c, 0)), .patience_ns = UINT64_MAX};
    struct tarn_control_conn *call;
    int rc = tarn_control_conn_connect(r, &steps, NULL, &call);

    if (rc != 0)
        return rc;
    rc = tarn_control_conn_send(call, tarn_resp_command(call->resp, "INFO", NULL), steps.deadline_ns, NULL);
    if (rc == 0)
        rc = tarn_control_conn_reply(call, steps.deadline_ns, NULL, reply_p);
    tarn_control_conn_drop(call);
    return rc;
}

static void check_clock(struct doctor *d, const char *node, const redisReply *info, uint64_t asked_ms)
{
    char name[80], text[32];
    uint64_t told_ms;

    snprintf(name, sizeof name, "node %s", node);
    if (tarn_info_value(info, "\ntime_ms:", text, sizeof text) &&
        tarn_u64_parse(text, strlen(text), 10, UINT64_MAX, &told_ms) == 0)
        doctor_clock(d, name, told_ms, asked_ms);
}

static void check_version(struct doctor *d, const char *title, const struct tarn_node_info *n,
                          const redisReply *info)
{
    uint32_t reached = 0;
    char version[32];

    for (uint32_t i = 0; i < n->npools; i++)
        reached += n->pools[i].transport != NULL;
    if (reached < n->npools)
        doctor_check(
            d, title, MISSING, "all pools reached",
            "compare `tarn info` here and on the node's host: the transports of both must have one in common",
            "answers at %s, %u of %u pools are reached", n->control, reached, n->npools);
    else if (tarn_info_value(info, "\nversion:", version, sizeof version) &&
             strcmp(version, tarn_version()) != 0)
        doctor_check(d, title, OPTIONAL, "answers", "update the older of the two",
                     "answers at %s, has version %s, this is %s", n->control, version, tarn_version());
    else
        doctor_check(d, title, GOOD, "answers", "", "answers at %s, %u pool%s", n->control, n->npools,
                     CLI_S(n->npools));
}

struct nodes {
    struct doctor *d;
    size_t n;
    struct tarn_buf good; /* ids of nodes that answer, each followed by a comma */
};

static int check_node(void *arg, const struct tarn_node_info *n)
{
    struct nodes *nodes = arg;
    struct doctor *d = nodes->d;
    struct tarn_peer_node *r = tarn_peer_node_of(d->c->client, n->id, (uint32_t)n->epoch);
    redisReply *info = NULL;
    uint64_t asked_ms = tarn_unix_ms();
    char title[100];

    nodes->n++;
    snprintf(title, sizeof title, "node %s", n->id);
    int rc = r ? ask_info(d->c, r, &info) : tarn_fail(TARN_E_NO_MEMORY, "no memory");
    if (rc != 0) {
        doctor_check(d, title, MISSING, "answers", remedy_of(rc), "%s", tarn_last_error());
        return 0;
    }
    tarn_buf_printf(&nodes->good, "%s,", n->id);
    check_version(d, title, n, info);
    check_clock(d, n->id, info, asked_ms);
    freeReplyObject(info);
    return 0;
}

/* --- an object for each pool and transport ------------------------------------------------------ */

/* Is the name in this comma-separated list? NULL means all names. */
static bool listed(const char *list, const char *name)
{
    size_t n = strlen(name);

    while (list && *list && !(strncmp(list, name, n) == 0 && (list[n] == ',' || list[n] == '\0'))) {
        list += strcspn(list, ",");
        list += *list == ',';
    }
    return !list || *list;
}

struct target {
    char node[TARN_NODE_ID_MAX + 1], pool[TARN_POOL_NAME_MAX + 1];
    uint32_t epoch;
};

struct targets {
    const char *nodes; /* their ids, comma-separated */
    struct target *all;
    size_t n;
};

static int add_targets(void *arg, const struct tarn_node_info *n)
{
    struct targets *t = arg;

    if (!listed(t->nodes, n->id))
        return 0;
    struct target *all = reallocarray(t->all, t->n + n->npools + 1, sizeof *all);

    if (!all)
        return tarn_fail(TARN_E_NO_MEMORY, "no memory for the nodes");
    t->all = all;
    for (uint32_t i = 0; i < n->npools; i++) {
        const struct tarn_pool_info *p = &n->pools[i];
        if (!p->transport)
            continue;
        struct target *a = &all[t->n++];
        *a = (struct target){.epoch = (uint32_t)n->epoch};
        snprintf(a->node, sizeof a->node, "%s", n->id);
        snprintf(a->pool, sizeof a->pool, "%s", p->name);
    }
    return 0;
}

struct probe {
    struct doctor *d;
    struct cli c;                  /* a client with this transport only */
    const char *transport, *nodes; /* nodes: those that answer, comma-separated */
    uint8_t *bytes, *back;         /* PROBE_BYTES each */
    double put_ms, get_ms;
};

static double ms_since(uint64_t ns)
{
    return (double)(tarn_now_ns() - ns) / 1e6;
}

/* Puts, gets and removes. On failure the last error has the sentence. */
static int try_pool(struct probe *p, const char *place)
{
    char key[32]; /* a new one each time, so that an object that could not be removed does not affect other
                   * pools */
    snprintf(key, sizeof key, "tarn-doctor/%016" PRIx64, tarn_random64());
    uint32_t timeout_ms = cli_timeout(&p->c, 0);
    struct tarn_piece piece = {.addr = p->bytes, .bytes = PROBE_BYTES};
    struct tarn_item item = {
        .key = {key, strlen(key)},
        .pieces = &piece,
        .npieces = 1,
        .tensor = {.dtype = TARN_U8, .ndim = 1, .shape = {PROBE_BYTES}, .bytes = PROBE_BYTES}};
    struct tarn_put_options put = {
        .size = sizeof put, .timeout_ms = timeout_ms, .ttl_ms = PROBE_TTL_MS, .place = place};
    struct tarn_get_options get = {.size = sizeof get, .timeout_ms = timeout_ms};
    uint64_t begun = tarn_now_ns();
    int rc = tarn_put(p->c.client, &item, 1, &put);

    if (rc != 0)
        return rc;
    p->put_ms = ms_since(begun);
    piece.addr = memset(p->back, 0, PROBE_BYTES);
    begun = tarn_now_ns();
    rc = tarn_get(p->c.client, &item, 1, &get);
    p->get_ms = ms_since(begun);
    if (rc == 0 && memcmp(p->bytes, p->back, PROBE_BYTES) != 0)
        rc = tarn_fail(TARN_E_PROTOCOL, "other bytes came back than were put");
    /* On a mismatch the object stays until it expires: removing it could replace the last error. */
    return rc ? rc : tarn_remove(p->c.client, &item.key, 1, NULL, timeout_ms);
}

/* The remedy for network failures. Nodes that do not answer have their own row. */
static const char *transport_remedy(const struct probe *p, int rc)
{
    static const char *const remedies[][2] = {
        {"tcp",
         "open the node's data port in the firewalls between: tarnd --data-port PORT fixes which it is"},
        {"rdma", "see the rows for RDMA here and on the node's host, and docs/rdma.md"},
        {"tcpx", "run `tarn doctor tcpx` here and on the node's host"},
    };

    if (rc == TARN_E_AUTH || rc == TARN_E_VERSION || rc == TARN_E_PROTOCOL || rc == TARN_E_NODE_DOWN)
        return remedy_of(rc);
    for (size_t i = 0; i < CLI_COUNT(remedies); i++)
        if (strcmp(remedies[i][0], p->transport) == 0)
            return remedies[i][1];
    return "do what the sentence says, or leave the transport out with --transports";
}

/* INFO's line for a pool says how much fits without eviction. */
static bool has_room(const redisReply *info, const char *pool)
{
    char start[TARN_POOL_NAME_MAX + 8], line[512], *value;
    uint64_t room = 0;

    snprintf(start, sizeof start, ":name=%s,", pool);
    if (tarn_info_value(info, start, line, sizeof line) && (value = strstr(line, ",room=")))
        tarn_u64_parse(value + 6, strcspn(value + 6, ","), 10, UINT64_MAX, &room);
    return room >= PROBE_BYTES;
}

/* What keeps the node from storing the probe now; "" if nothing. */
static int ask_why_not(struct probe *p, const struct target *t, char why[32])
{
    struct tarn_peer_node *r = tarn_peer_node_of(p->c.client, t->node, t->epoch);
    redisReply *info;
    int rc = r ? ask_info(&p->c, r, &info) : tarn_fail(TARN_E_NO_MEMORY, "no memory");

    if (rc != 0)
        return rc;
    if (tarn_info_value(info, "\nstate:", why, 32) && strcmp(why, "ready") == 0)
        snprintf(why, 32, "%s", has_room(info, t->pool) ? "" : "nearly full");
    freeReplyObject(info);
    return 0;
}

static void check_pool(struct probe *p, const struct target *t)
{
    char place[TARN_NODE_ID_MAX + TARN_POOL_NAME_MAX + 2], title[160], why[32] = "";
    struct tarn_reason failure;

    snprintf(place, sizeof place, "%s/%s", t->node, t->pool);
    snprintf(title, sizeof title, "%s by %s", place, p->transport);
    int rc = ask_why_not(p, t, why);
    if (rc == 0 && !*why)
        rc = try_pool(p, place);
    tarn_reason_keep(&failure, rc);
    if (rc == TARN_E_FULL)
        snprintf(why, sizeof why, "full");
    else if (rc != 0) /* it may have begun to drain or to reconcile with the directory */
        ask_why_not(p, t, why);
    if (*why)
        doctor_check(p->d, title, OPTIONAL, "put and get", "see `tarn info`", "not tried: %s", why);
    else if (rc == 0)
        doctor_check(p->d, title, GOOD, "put and get", "", "put %.2f ms, get %.2f ms", p->put_ms, p->get_ms);
    else
        doctor_check(p->d, title, MISSING, "put and get", transport_remedy(p, rc), "%s", failure.text);
}

static int try_transport(void *arg, const char *name, const char *why)
{
    struct probe *p = arg;
    const char *named = p->d->c->common->transports;
    struct cli_common common = *p->d->c->common;
    struct targets targets = {.nodes = p->nodes};

    if (why || !listed(named, name))
        return 0;
    if (!named && strcmp(name, "tcpx") == 0) {
        doctor_check(p->d, "put and get by tcpx", GOOD, "when named", "",
                     "not tried, since a plugin may end the process: name it, --transports tcpx");
        return 0;
    }
    common.transports = (char *)name;
    p->c = *p->d->c;
    p->c.common = &common;
    p->c.client = NULL;
    p->transport = name;
    int rc = cli_connect(&p->c);
    if (rc == 0)
        rc = tarn_nodes(p->c.client, cli_timeout(&p->c, 0), add_targets, &targets);
    if (rc != 0)
        doctor_check(p->d, name, MISSING, "put and get", remedy_of(rc), "%s", tarn_last_error());
    for (size_t i = 0; rc == 0 && i < targets.n; i++)
        check_pool(p, &targets.all[i]);
    tarn_close(p->c.client);
    free(targets.all);
    return 0;
}

static void check_pools(struct doctor *d, const char *nodes)
{
    struct probe p = {.d = d, .nodes = nodes, .bytes = malloc(PROBE_BYTES), .back = malloc(PROBE_BYTES)};

    for (size_t i = 0; p.bytes && i < PROBE_BYTES; i++)
        p.bytes[i] = (uint8_t)(i * 31 + (i >> 8));
    if (p.bytes && p.back)
        tarn_transports(try_transport, &p);
    else
        doctor_check(d, "pools", MISSING, "put and get", "free some memory", "no memory for %u bytes",
                     PROBE_BYTES);
    free(p.bytes);
    free(p.back);
}

/* --- all ---------------------------------------------------------------------------------------- */

void doctor_nodes(struct doctor *d)
{
    struct nodes nodes = {.d = d};
    int rc = cli_connect(d->c);

    if (rc == 0)
        rc = tarn_nodes(d->c->client, cli_timeout(d->c, 0), check_node, &nodes);
    if (rc != 0)
        doctor_check(d, "nodes", MISSING, "listed by Redis", "do what the sentence says", "%s",
                     tarn_last_error());
    else if (nodes.n == 0)
        doctor_check(d, "nodes", MISSING, "one to store anything",
                     "start tarnd with the same --redis and --ns, or correct these here",
                     "none in namespace %s", d->c->common->ns);
    else if (nodes.good.bytes && !nodes.good.failed)
        check_pools(d, nodes.good.data);
    tarn_buf_free(&nodes.good);
}
