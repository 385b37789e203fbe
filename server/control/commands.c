/* SPDX-License-Identifier: Apache-2.0 */
/* The node's table of commands, its secret, and the commands that move no objects. */
#include "server/control/commands.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/option/option_value.h"
#include "server/control/info.h"

#define LOG_LEVEL "log-level" /* the option that CONFIG SET changes */

/* --- HELLO, AUTH -------------------------------------------------------------------------------- */

int tarn_node_authenticate(struct tarn_conn *c, const redisReply *given)
{
    const struct tarn_node *node = tarn_conn_node(c);
    const char *secret = tarn_node_secret(node), *admin = node->config->admin_secret;
    bool is_admin = admin && tarn_secret_is(admin, given);
    if (is_admin || !secret || tarn_secret_is(secret, given)) {
        c->authenticated = true;
        c->admin |= is_admin;
        return 0;
    }
    return tarn_fail(
        TARN_E_AUTH, "node %s: wrong secret: %s", node->id,
        node->config->secret
            ? "give the one the node was started with (TARN_SECRET or --secret)"
            : "it has made one, which clients find in Redis: unset TARN_SECRET, give no --secret");
}

void tarn_node_greet(struct tarn_conn *c)
{
    const struct tarn_node *n = tarn_conn_node(c);
    char epoch[20];
    uint32_t npools;
    const struct tarn_pool_memory *pools = tarn_store_pools(n->store, &npools);
    snprintf(epoch, sizeof(epoch), "%016" PRIx64, n->epoch);
    tarn_resp_add_array(&c->out, 2 * (10 + npools));
    tarn_reply_pair(&c->out, "node", n->id);
    tarn_reply_pair(&c->out, "epoch", epoch);
    tarn_reply_pair(&c->out, "version", tarn_version());
    tarn_reply_pair_u64(&c->out, "protocol", TARN_PROTOCOL);
    tarn_reply_pair(&c->out, "host_id", n->record.host_id);
    tarn_reply_pair_u64(&c->out, "tick_ns", TARN_TICK_NS);
    tarn_reply_pair_u64(&c->out, "now_ns", tarn_now_ns() - tarn_store_tick_base_ns(n->store));
    tarn_reply_pair_u64(&c->out, "term", c->session->term);
    tarn_reply_pair_u64(&c->out, "store_bytes", TARN_STORE_BYTES_MAX);
    tarn_reply_pair_u64(&c->out, "pools", npools);
    for (uint32_t i = 0; i < npools; i++)
        tarn_reply_pair(&c->out, "pool", pools[i].name);
}

/* --- for people --------------------------------------------------------------------------------- */

static int command_info(struct tarn_conn *c, size_t n, redisReply **args)
{
    struct tarn_buf text = {0};
    tarn_info_text(tarn_conn_node(c), n > 1 ? args[1]->str : NULL, &text);
    if (text.failed)
        tarn_resp_add_error(&c->out, TARN_E_NO_MEMORY, "INFO: out of memory");
    else
        tarn_resp_add_string(&c->out, text.data ? text.data : "", text.bytes);
    tarn_buf_free(&text);
    return 0;
}

static int config_get(struct tarn_conn *c, const char *glob)
{
    const struct tarn_program *p = &tarn_node_program;
    struct tarn_buf list = {0};
    size_t found = 0;
    for (size_t i = 0; i < p->noptions; i++) {
        struct tarn_buf value = {0};
        if ((p->options[i].flags & TARN_OPT_FLAG_ONLY) || fnmatch(glob, p->options[i].name, 0))
            continue;
        if (!strcmp(p->options[i].name, LOG_LEVEL))
            tarn_buf_printf(&value, "%s", tarn_log_level_name(tarn_conn_node(c)->log.level));
        else
            tarn_option_format(&p->options[i], tarn_conn_node(c)->config, 0, &value);
        tarn_reply_pair(&list, p->options[i].name, value.data ? value.data : "");
        tarn_buf_free(&value);
        found++;
    }
    tarn_resp_add_array(&c->out, 2 * found);
    tarn_buf_add(&c->out, list.data, list.bytes);
    tarn_buf_free(&list);
    return 0;
}

static int config_set(struct tarn_conn *c, const char *name, const char *value)
{
    enum tarn_log_level level;
    bool known = false;
    if (!strcmp(name, LOG_LEVEL)) {
        int rc = tarn_log_level_parse("CONFIG SET " LOG_LEVEL, value, &level);
        if (rc)
            return rc;
        tarn_conn_node(c)->log.level = level;
        tarn_log(&tarn_conn_node(c)->log, TARN_LOG_INFO, "control",
                 "msg=\"log level was set\" level=%s peer=%s", value, c->peer);
        tarn_resp_add_simple(&c->out, "OK");
        return 0;
    }
    for (size_t i = 0; i < tarn_node_program.noptions; i++)
        known |= strcmp(tarn_node_program.options[i].name, name) == 0;
    if (known)
        return tarn_fail(TARN_E_UNSUPPORTED,
                         "CONFIG SET: %.40s cannot be changed while the node runs, only " LOG_LEVEL
                         " can: restart it with another --%.40s",
                         name, name);
    return tarn_fail(TARN_E_INVALID, "CONFIG SET: \"%.40s\" is no setting of a node: CONFIG GET * lists them",
                     name);
}

static int command_config(struct tarn_conn *c, size_t n, redisReply **args)
{
    if (n == 3 && !strcasecmp(args[1]->str, "GET"))
        return config_get(c, args[2]->str);
    if (n == 4 && !strcasecmp(args[1]->str, "SET"))
        return config_set(c, args[2]->str, args[3]->str);
    return tarn_fail(TARN_E_UNSUPPORTED,
                     "CONFIG: only CONFIG GET <glob> and CONFIG SET " LOG_LEVEL " <level>");
}

static int command_drain(struct tarn_conn *c, size_t n, redisReply **args)
{
    (void)n, (void)args;
    tarn_log(&tarn_conn_node(c)->log, TARN_LOG_INFO, "control", "msg=\"drain was asked for\" peer=%s",
             c->peer);
    tarn_conn_node(c)->drain(tarn_conn_node(c));
    tarn_resp_add_simple(&c->out, "OK");
    return 0;
}

/* --- the table ---------------------------------------------------------------------------------- */

static const struct tarn_control_command commands[] = {
    {"INFO", command_info, 1, 0, 0, TARN_TRUSTED, "[section]: figures of this node"},
    {"CONFIG", command_config, 2, 0, 0, TARN_ADMIN, "GET <glob> | SET log-level <level>: settings"},
    {"RESERVE", tarn_command_reserve, 11, 7, 4, TARN_SESSION,
     "<pool|*> <absent|replace> <version> <ttl_ms> <pin 0|1> <chain> {<key> <bytes> <dtype> <shape>}..."},
    {"COMMIT", tarn_command_commit, 6, 3, 3, TARN_SESSION,
     "<deadline_ns> <put|join> {<pool index> <slot> <gen>}..."},
    {"STORE", tarn_command_store, 3, 0, 0, TARN_SESSION,
     "<deadline_ns> <bytes>: fills what the RESERVE before it was granted, and commits it"},
    {"ABORT", tarn_command_abort, 4, 1, 3, TARN_SESSION, "{<pool index> <slot> <gen>}..."},
    {"DELETE", tarn_command_delete, 2, 1, 1, TARN_SESSION, "<key>...: removes objects from all nodes"},
    {"RELEASE", tarn_command_release, 4, 1, 3, TARN_SESSION,
     "{<pool> <slot> <gen>}...: frees displaced copies"},
    {"SETTLED", tarn_command_settled, 3, 1, 2, TARN_SESSION,
     "{<key> <location>}...: can nobody read that displaced copy any more?"},
    {"PIN", tarn_command_pin, 3, 2, 1, TARN_SESSION, "<ttl_ms> <key>...: keeps objects from eviction"},
    {"UNPIN", tarn_command_unpin, 2, 1, 1, TARN_SESSION, "<key>..."},
    {"PINNED", tarn_command_pinned, 2, 1, 1, TARN_TRUSTED,
     "<key>...: for how much longer, in ms; -1: until UNPIN"},
    {"TOUCH", tarn_command_touch, 2, 1, 1, TARN_SESSION, "<key>...: counts as use"},
    {"LEND", tarn_command_lend, 4, 0, 0, TARN_SESSION,
     "<name> <ttl_ms> <descriptor>: names a client's lease"},
    {"UNLEND", tarn_command_unlend, 2, 0, 0, TARN_SESSION, "<name>"},
    {"EVICT", tarn_command_evict, 3, 0, 0, TARN_ADMIN,
     "<pool> <bytes>: frees objects, in the order of --eviction"},
    {"DRAIN", command_drain, 1, 0, 0, TARN_ADMIN, ": ends the node in order"},
};

const struct tarn_command_table tarn_node_commands = {
    .commands = commands,
    .n = sizeof(commands) / sizeof(commands[0]),
    .note =
        "ATTACH, DETACH and those from RESERVE to UNLEND need HELLO 1 <16 hex digits> on the same "
        "connection; "
        "CLIENT, CONFIG, EVICT and DRAIN the Unix socket as the node's user or root, or the admin secret.",
};
