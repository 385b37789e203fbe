/* SPDX-License-Identifier: Apache-2.0 */
/* tarn ping, drain and config: commands to a node itself, over a control connection. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "client/cli/cli.h"
#include "client/cli/cli_text.h"
#include "client/control_conn.h"
#include "client/peer_nodes.h"
#include "metadata/redis.h" /* INFO replies have the form of Redis's */

struct node {
    char id[64], address[280];
    char local[128]; /* "unix:" and the socket's path; "" without one */
    uint64_t epoch;
};

struct nodes {
    struct node *all;
    size_t n;
};

/* --- which nodes -------------------------------------------------------------------------------- */

static int add_node(void *arg, const struct tarn_node_info *info)
{
    struct nodes *nodes = arg;
    struct node *all = reallocarray(nodes->all, nodes->n + 1, sizeof *all);

    if (!all)
        return tarn_fail(TARN_E_NO_MEMORY, "no memory for the nodes");
    nodes->all = all;
    struct node *n = &all[nodes->n++];
    snprintf(n->id, sizeof n->id, "%s", info->id);
    snprintf(n->address, sizeof n->address, "%s",
             info->same_host && info->unix_path ? info->unix_path
             : info->control                    ? info->control
                                                : "?");
    snprintf(n->local, sizeof n->local, "%s%s", info->unix_path ? "unix:" : "",
             info->unix_path ? info->unix_path : "");
    n->epoch = info->epoch;
    return 0;
}

/* Connects, and fills `nodes`. */
static int list_nodes(struct cli *c, int connected, struct nodes *nodes)
{
    return connected ? connected : tarn_nodes(c->client, cli_timeout(c, 0), add_node, nodes);
}

static const struct node *find_node(const struct nodes *nodes, const char *id)
{
    const char **names = calloc(nodes->n + 1, sizeof *names), *nearest;
    const struct node *found = NULL;

    for (size_t i = 0; i < nodes->n; i++) {
        if (strcmp(nodes->all[i].id, id) == 0)
            found = &nodes->all[i];
        if (names)
            names[i] = nodes->all[i].id;
    }
    nearest = names && !found ? tarn_nearest(id, names, nodes->n) : NULL;
    if (!found)
        tarn_fail(TARN_E_NOT_FOUND, "no living node %s: %s%s%s", id,
                  nearest ? "did you mean " : "`tarn info` lists them", nearest ? nearest : "",
                  nearest ? "?" : "");
    free(names);
    return found;
}

/* --- talking to one ----------------------------------------------------------------------------- */

/* Sends the command after HELLO, as every client does. The caller frees the reply. */
static int ask_node(const struct cli *c, const struct node *n, const struct tarn_command *command,
                    redisReply **reply_p)
{
    struct tarn_peer_node *r = tarn_peer_node_of(c->client, n->id, (uint32_t)n->epoch);
    redisReply *reply;

    if (!r)
        return tarn_fail(TARN_E_NO_MEMORY, "no memory");
    int rc = tarn_control_conn_call(r, command, tarn_deadline(cli_timeout(c, 0)), NULL, &reply);
    if (rc == 0 && (rc = tarn_peer_node_error(r, reply)) != 0)
        freeReplyObject(reply);
    else if (rc == 0)
        *reply_p = reply;
    return rc;
}

/* --- ping --------------------------------------------------------------------------------------- */

static void ping_node(struct cli *c, const struct node *n, struct cli_table *table, json_t *json)
{
    struct tarn_command ping = {.n = 0};
    redisReply *reply;

    tarn_command_str(&ping, "PING");
    uint64_t begun = tarn_now_ns();
    int rc = ask_node(c, n, &ping, &reply);
    double ms = (double)(tarn_now_ns() - begun) / 1e6;
    tarn_command_free(&ping);
    cli_row(table, n->id, n->address, NULL);
    json_t *o = json_pack("{s:s, s:o, s:s}", "node", n->id, "address", cli_json_text(n->address), "status",
                          cli_status_name(rc));
    if (rc == 0) {
        freeReplyObject(reply);
        cli_cell(table, "%.2f ms", ms);
        json_object_set_new(o, "ms", json_real(ms));
    } else {
        cli_cell_in(table, CLI_RED, "%s", tarn_error_name(rc));
        cli_error(c, rc, "%s", tarn_last_error());
    }
    json_array_append_new(json, o);
}

static int ping_nodes(struct cli *c, const struct nodes *nodes)
{
    struct cli_table table = {.align = "llr"};
    json_t *json = json_array();

    cli_row(&table, "NODE", "ADDRESS", "TIME", NULL);
    for (size_t i = 0; c->nargs == 0 && i < nodes->n; i++)
        ping_node(c, &nodes->all[i], &table, json);
    for (int i = 0; i < c->nargs; i++) {
        const struct node *n = find_node(nodes, c->args[i]);
        if (n)
            ping_node(c, n, &table, json);
        else
            cli_error(c, TARN_E_NOT_FOUND, "%s", tarn_last_error());
    }
    return cli_print_either(c, &table, json_pack("{s:o}", "nodes", json));
}

static int run_ping(struct cli *c, const void *config)
{
    struct nodes nodes = {0};
    int rc = list_nodes(c, cli_connect(c), &nodes);

    (void)config;
    if (rc == 0)
        rc = nodes.n > 0 ? ping_nodes(c, &nodes)
                         : tarn_fail(TARN_E_NODE_DOWN,
                                     "no nodes in namespace %s: start one with `tarnd`, or name another "
                                     "with --ns",
                                     c->common->ns);
    free(nodes.all);
    return rc;
}

static const struct tarn_option common_options[] = {CLI_COMMON_OPTIONS};

static const struct tarn_program ping_program = {
    .name = "tarn ping",
    .arguments = "[NODE...]",
    .brief = "see whether nodes answer, and how fast",
    .description =
        "Asks these nodes, or all of the namespace. TIME is one round trip. It includes connecting "
        "and authenticating if no connection is open.",
    .examples = "tarn ping\n"
                "tarn ping node0 --timeout-ms 500\n",
    CLI_OPTIONS(common_options),
};

const struct cli_command cli_ping = {&ping_program, sizeof(struct cli_common), run_ping};

/* --- administration ----------------------------------------------------------------------------- */

struct admin_config {
    struct cli_common common;
    char *secret;
};

static const struct tarn_option admin_options[] = {
    CLI_COMMON_OPTIONS,
    {.name = "admin-secret",
     .type = TARN_OPT_STRING,
     .offset = offsetof(struct admin_config, secret),
     .unit = "TEXT",
     .flags = TARN_OPT_SECRET,
     .help = "The node's --admin-secret. The node's user and root need none on its host. Better given in the "
             "environment, where other users of the machine do not see it."},
};

/* An administrator's secret is valid wherever --secret is. */
static int list_as_admin(struct cli *c, const struct admin_config *o, struct nodes *nodes)
{
    return list_nodes(c, o->secret ? cli_connect_with(c, o->secret) : cli_connect(c), nodes);
}

/* Another node of this host may have a socket with the same path. */
static bool is_it(struct tarn_resp *r, const struct node *n, uint64_t deadline)
{
    char told[32] = "", epoch[32];
    redisReply *reply;

    snprintf(epoch, sizeof epoch, "%016" PRIx64, n->epoch);
    if (tarn_resp_call(r, deadline, tarn_resp_command(r, "INFO", "node", NULL), &reply) != 0)
        return false;
    tarn_info_value(reply, "\nepoch:", told, sizeof told);
    freeReplyObject(reply);
    return strcmp(told, epoch) == 0;
}

/*
 * Over the Unix socket the node sees the caller's user; the node's own user and root need no secret.
 * False: the caller is neither, or the socket cannot be used.
 */
static bool ask_by_right(const struct cli *c, const struct node *n, const struct tarn_command *command,
                         redisReply **reply_p)
{
    uint64_t deadline = tarn_deadline(cli_timeout(c, 0));
    struct tarn_addr address;
    struct tarn_resp *r;

    if (!*n->local || tarn_addr_parse(n->local, "node", &address) != 0 ||
        tarn_resp_connect(&address, deadline, NULL, &r) != 0)
        return false;
    bool answered = is_it(r, n, deadline) && tarn_resp_call(r, deadline, command, reply_p) == 0;
    tarn_resp_free(r);
    if (answered && tarn_resp_error(*reply_p, n->id, TARN_E_PROTOCOL) == TARN_E_AUTH) {
        freeReplyObject(*reply_p);
        return false;
    }
    return answered;
}

static int ask_as_admin(const struct cli *c, const struct node *n, const struct tarn_command *command,
                        redisReply **reply_p)
{
    if (!ask_by_right(c, n, command, reply_p))
        return ask_node(c, n, command, reply_p);
    int rc = tarn_resp_error(*reply_p, n->id, TARN_E_PROTOCOL);
    if (rc != 0)
        freeReplyObject(*reply_p);
    return rc;
}

/* --- drain -------------------------------------------------------------------------------------- */

static int drain_node(struct cli *c, const struct nodes *nodes, const char *id)
{
    const struct node *n = find_node(nodes, id);
    struct tarn_command drain = {.n = 0};
    redisReply *reply;

    tarn_command_str(&drain, "DRAIN");
    int rc = n ? ask_as_admin(c, n, &drain, &reply) : TARN_E_NOT_FOUND;
    tarn_command_free(&drain);
    if (rc != 0)
        return cli_error(c, rc, "%s", tarn_last_error());
    freeReplyObject(reply);
    return 0;
}

static int run_drain(struct cli *c, const void *config)
{
    struct nodes nodes = {0};
    json_t *json = json_array();
    int rc = cli_want_args(c, 1, INT_MAX, "NODE"), draining = 0;

    if (rc == 0)
        rc = list_as_admin(c, config, &nodes);
    for (int i = 0; rc == 0 && i < c->nargs; i++) {
        int one = drain_node(c, &nodes, c->args[i]);
        draining += one == 0;
        json_array_append_new(
            json, json_pack("{s:o, s:s}", "node", cli_json_text(c->args[i]), "status", cli_status_name(one)));
    }
    if (rc == 0 && c->common->json)
        rc = cli_print_json(json_pack("{s:O, s:i}", "nodes", json, "draining", draining), false);
    else if (rc == 0 && !c->common->quiet)
        printf("%d of %d draining: `tarn info` lists those that are left\n", draining, c->nargs);
    json_decref(json);
    free(nodes.all);
    return rc;
}

static const struct tarn_program drain_program = {
    .name = "tarn drain",
    .arguments = "NODE...",
    .brief = "shut nodes down cleanly; their objects are lost",
    .description =
        "A node takes no more puts then, waits for those in flight (its --drain-timeout-ms), takes its "
        "objects out of the directory and exits with 0, as after SIGTERM.",
    .examples = "tarn drain node0\n",
    CLI_OPTIONS(admin_options),
};

const struct cli_command cli_drain = {&drain_program, sizeof(struct admin_config), run_drain};

/* --- config ------------------------------------------------------------------------------------- */

static int print_settings(const struct cli *c, const redisReply *reply, const char *glob)
{
    struct cli_table table = {.align = "ll"};

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements == 0)
        return tarn_fail(TARN_E_INVALID, "%s: the node has no such setting: `tarn config NODE` lists them",
                         glob);
    json_t *json = json_object();
    cli_row(&table, "SETTING", "VALUE", NULL);
    for (size_t i = 0; i + 1 < reply->elements; i += 2) {
        const char *name = reply->element[i]->str, *value = reply->element[i + 1]->str;
        cli_row(&table, name ? name : "?", value ? value : "", NULL);
        json_object_set_new(json, name ? name : "?", cli_json_text(value ? value : ""));
    }
    return cli_print_either(c, &table, json_pack("{s:s, s:o}", "node", c->args[0], "settings", json));
}

static int config_node(struct cli *c, const struct node *n)
{
    const char *glob = c->nargs > 1 ? c->args[1] : "*", *value = strchr(glob, '=');
    struct tarn_command command = {.n = 0};
    char name[64];
    redisReply *reply;

    snprintf(name, sizeof name, "%.*s", (int)(value ? value - glob : 0), glob);
    if (value)
        tarn_command_strs(&command, "CONFIG", "SET", name, value + 1, NULL);
    else
        tarn_command_strs(&command, "CONFIG", "GET", glob, NULL);
    int rc = ask_as_admin(c, n, &command, &reply);
    tarn_command_free(&command);
    if (rc != 0)
        return rc;
    if (!value)
        rc = print_settings(c, reply, glob);
    else if (c->common->json)
        rc = cli_print_json(
            json_pack("{s:s, s:{s:o}}", "node", n->id, "settings", name, cli_json_text(value + 1)), false);
    else if (!c->common->quiet)
        printf("%s: %s\n", n->id, glob);
    freeReplyObject(reply);
    return rc;
}

static int run_config(struct cli *c, const void *config)
{
    struct nodes nodes = {0};
    const struct node *n = NULL;
    int rc = cli_want_args(c, 1, 2, "NODE");

    if (rc == 0)
        rc = list_as_admin(c, config, &nodes);
    if (rc == 0 && !(n = find_node(&nodes, c->args[0])))
        rc = TARN_E_NOT_FOUND;
    if (rc == 0)
        rc = config_node(c, n);
    free(nodes.all);
    return rc;
}

static const struct tarn_program config_program = {
    .name = "tarn config",
    .arguments = "NODE [GLOB | NAME=VALUE]",
    .brief = "show the settings of a running node, or change one",
    .description =
        "Settings have the names of tarnd's options. What can be changed while the node runs is log-level; "
        "the change ends with the node.",
    .examples = "tarn config node0\n"
                "tarn config node0 'evict*'\n"
                "tarn config node0 log-level=debug\n",
    CLI_OPTIONS(admin_options),
};

const struct cli_command cli_config = {&config_program, sizeof(struct admin_config), run_config};
