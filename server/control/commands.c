/* SPDX-License-Identifier: Apache-2.0 */
/* The command table, and the commands that move no objects. */
#include "server/control/commands.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/option/option_value.h"
#include "base/text.h"
#include "server/control/info.h"

/* Who may. */
enum right {
    ANYBODY, /* without the secret, too */
    TRUSTED, /* who has shown the secret, and administrators */
    SESSION, /* after HELLO, which wants the secret */
    ADMIN,
};

#define LOG_LEVEL "log-level" /* the option that CONFIG SET changes */

struct command {
    const char *name;
    tarn_command_fn *fn;
    size_t min_args; /* with the name */
    size_t head;     /* arguments before the items, with the name; 0: no items */
    size_t item;     /* arguments of an item */
    enum right right;
    const char *usage;
};

/* --- HELLO, AUTH -------------------------------------------------------------------------------- */

/* Takes as long whatever the two have in common. */
static bool same_secret(const char *secret, const redisReply *given)
{
    size_t bytes = strlen(secret);
    unsigned char differs = bytes != given->len;
    for (size_t i = 0; i < given->len; i++)
        differs |=
            (unsigned char)((unsigned char)given->str[i] ^ (unsigned char)secret[bytes ? i % bytes : 0]);
    return !differs;
}

static int authenticate(struct tarn_conn *c, const redisReply *given)
{
    const char *secret = tarn_node_secret(c->node), *admin = c->node->config->admin_secret;
    bool is_admin = admin && same_secret(admin, given);
    if (is_admin || !secret || same_secret(secret, given)) {
        c->authenticated = true;
        c->admin |= is_admin;
        return 0;
    }
    return tarn_fail(
        TARN_E_AUTH, "node %s: wrong secret: %s", c->node->id,
        c->node->config->secret
            ? "give the one the node was started with (TARN_SECRET or --secret)"
            : "it has made one, which clients find in Redis: unset TARN_SECRET, give no --secret");
}

static int command_auth(struct tarn_conn *c, size_t n, redisReply **args)
{
    int rc = authenticate(c, args[n - 1]);
    if (!rc)
        tarn_resp_add_simple(&c->out, "OK");
    return rc;
}

static void add_pair(struct tarn_buf *out, const char *name, const char *value)
{
    tarn_resp_add_string(out, name, strlen(name));
    tarn_resp_add_string(out, value, strlen(value));
}

static void add_pair_u64(struct tarn_buf *out, const char *name, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof(text), "%" PRIu64, value);
    add_pair(out, name, text);
}

static void greet(struct tarn_conn *c)
{
    const struct tarn_node *n = c->node;
    char epoch[20];
    uint32_t npools;
    const struct tarn_pool_memory *pools = tarn_store_pools(n->store, &npools);
    snprintf(epoch, sizeof(epoch), "%016" PRIx64, n->epoch);
    tarn_resp_add_array(&c->out, 2 * (8 + npools));
    add_pair(&c->out, "node", n->id);
    add_pair(&c->out, "epoch", epoch);
    add_pair(&c->out, "version", tarn_version());
    add_pair_u64(&c->out, "protocol", TARN_PROTOCOL);
    add_pair(&c->out, "host_id", n->record.host_id);
    add_pair_u64(&c->out, "tick_ns", TARN_TICK_NS);
    add_pair_u64(&c->out, "now_ns", tarn_now_ns() - tarn_store_tick_base_ns(n->store));
    add_pair_u64(&c->out, "pools", npools);
    for (uint32_t i = 0; i < npools; i++)
        add_pair(&c->out, "pool", pools[i].name);
}

static int check_protocol(const struct tarn_conn *c, const redisReply *arg)
{
    uint64_t protocol;
    if (tarn_u64_parse(arg->str, arg->len, 10, UINT32_MAX, &protocol) == 0 &&
        protocol >= TARN_PROTOCOL_OLDEST && protocol <= TARN_PROTOCOL)
        return 0;
    return tarn_fail(TARN_E_VERSION, "node %s speaks protocol %d to %d, not %.*s: use a client of version %s",
                     c->node->id, TARN_PROTOCOL_OLDEST, TARN_PROTOCOL, (int)(arg->len < 20 ? arg->len : 20),
                     arg->str, tarn_version());
}

static int join_session(struct tarn_conn *c, const redisReply *arg)
{
    uint64_t id;
    struct tarn_session *session;
    int rc = tarn_arg_u64(arg, "session", 16, UINT64_MAX, &id);
    if (!rc && id == 0)
        rc = tarn_fail(TARN_E_INVALID, "session: 0 is none: choose a random number");
    if (!rc)
        rc = tarn_session_join(c->node->sessions, id, c->local ? c->fd : -1, &session);
    if (rc)
        return rc;
    if (c->session)
        tarn_session_leave(c->session);
    c->session = session;
    tarn_conn_trust(c);
    return 0;
}

static int command_hello(struct tarn_conn *c, size_t n, redisReply **args)
{
    int rc = check_protocol(c, args[1]);
    if (!rc && n < 3)
        rc = tarn_fail(TARN_E_INVALID, "HELLO: no session: HELLO <protocol> <session> [<secret>]");
    if (!rc && n > 3)
        rc = authenticate(c, args[3]);
    if (!rc && !c->authenticated)
        rc = tarn_fail(TARN_E_AUTH,
                       "node %s wants a secret and was shown none: set TARN_SECRET or give --secret",
                       c->node->id);
    if (!rc)
        rc = join_session(c, args[2]);
    if (!rc)
        greet(c);
    return rc;
}

/* --- for people --------------------------------------------------------------------------------- */

static int command_ping(struct tarn_conn *c, size_t n, redisReply **args)
{
    if (n > 1)
        tarn_resp_add_string(&c->out, args[1]->str, args[1]->len);
    else
        tarn_resp_add_simple(&c->out, "PONG");
    return 0;
}

static int command_quit(struct tarn_conn *c, size_t n, redisReply **args)
{
    (void)n, (void)args;
    tarn_resp_add_simple(&c->out, "OK");
    if (c->session)
        tarn_session_quit(c->session);
    c->state = TARN_CONN_CLOSING;
    return 0;
}

static int command_info(struct tarn_conn *c, size_t n, redisReply **args)
{
    struct tarn_buf text = {0};
    tarn_info_text(c->node, n > 1 ? args[1]->str : NULL, &text);
    if (text.failed)
        tarn_resp_add_error(&c->out, TARN_E_NO_MEMORY, "INFO: out of memory");
    else
        tarn_resp_add_string(&c->out, text.data ? text.data : "", text.bytes);
    tarn_buf_free(&text);
    return 0;
}

/* redis-cli asks for it when it starts; no answer is needed for it to work. */
static int command_command(struct tarn_conn *c, size_t n, redisReply **args)
{
    (void)n, (void)args;
    tarn_resp_add_array(&c->out, 0);
    return 0;
}

static void client_line(const struct tarn_conn *c, uint64_t now, struct tarn_buf *text)
{
    tarn_buf_printf(text, "id=%" PRIu64 " addr=%s age=%" PRIu64 " cmds=%" PRIu64 " cmd=%s session=", c->id,
                    c->peer, (uint64_t)((now - c->since_ns) / TARN_NS_PER_S), c->commands, c->last_command);
    if (c->session)
        tarn_buf_printf(text, "%016" PRIx64 " pid=%d\n", c->session->id, (int)c->session->pid);
    else
        tarn_buf_printf(text, "none\n");
}

static int command_client(struct tarn_conn *c, size_t n, redisReply **args)
{
    struct tarn_buf text = {0};
    uint64_t now = tarn_now_ns();
    (void)n;
    if (strcasecmp(args[1]->str, "LIST"))
        return tarn_fail(TARN_E_UNSUPPORTED, "CLIENT: only CLIENT LIST");
    for (const struct tarn_conn *at = tarn_control_first(c->node->control); at; at = at->next)
        client_line(at, now, &text);
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
            tarn_buf_printf(&value, "%s", tarn_log_level_name(c->node->log.level));
        else
            tarn_option_format(&p->options[i], c->node->config, 0, &value);
        add_pair(&list, p->options[i].name, value.data ? value.data : "");
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
        c->node->log.level = level;
        tarn_log(&c->node->log, TARN_LOG_INFO, "control", "msg=\"log level was set\" level=%s peer=%s", value,
                 c->peer);
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
    tarn_log(&c->node->log, TARN_LOG_INFO, "control", "msg=\"drain was asked for\" peer=%s", c->peer);
    c->node->drain(c->node);
    tarn_resp_add_simple(&c->out, "OK");
    return 0;
}

static tarn_command_fn command_help;

/* --- the table ---------------------------------------------------------------------------------- */

static const struct command commands[] = {
    {"HELLO", command_hello, 2, 0, 0, ANYBODY, "<protocol> <session> [<secret>]: begins a client's session"},
    {"AUTH", command_auth, 2, 0, 0, ANYBODY, "[default] <secret>"},
    {"PING", command_ping, 1, 0, 0, ANYBODY, "[text]"},
    {"QUIT", command_quit, 1, 0, 0, ANYBODY,
     ": closes the connection; its session has nothing mapped any more"},
    {"HELP", command_help, 1, 0, 0, ANYBODY, ": this list"},
    {"COMMAND", command_command, 1, 0, 0, ANYBODY, ": nothing, for redis-cli"},
    {"INFO", command_info, 1, 0, 0, TRUSTED, "[section]: figures of this node"},
    {"CLIENT", command_client, 2, 0, 0, ADMIN, "LIST: control connections"},
    {"CONFIG", command_config, 2, 0, 0, ADMIN, "GET <glob> | SET log-level <level>: settings"},
    {"ATTACH", tarn_command_attach, 3, 0, 0, SESSION, "<transport> <r|w> [<offer>]"},
    {"DETACH", tarn_command_detach, 3, 0, 0, SESSION, "<transport> <link>: one link of ATTACH is closed"},
    {"RESERVE", tarn_command_reserve, 10, 6, 4, SESSION,
     "<pool|*> <absent|replace> <version> <ttl_ms> <pin 0|1> {<key> <bytes> <dtype> <shape>}..."},
    {"COMMIT", tarn_command_commit, 6, 3, 3, SESSION,
     "<deadline_ns> <put|join> {<pool index> <slot> <gen>}..."},
    {"ABORT", tarn_command_abort, 4, 1, 3, SESSION, "{<pool index> <slot> <gen>}..."},
    {"DELETE", tarn_command_delete, 2, 1, 1, SESSION, "<key>...: removes objects from all nodes"},
    {"RELEASE", tarn_command_release, 4, 1, 3, SESSION, "{<pool> <slot> <gen>}...: frees displaced copies"},
    {"SETTLED", tarn_command_settled, 3, 1, 2, SESSION,
     "{<key> <location>}...: can nobody read that displaced copy any more?"},
    {"PIN", tarn_command_pin, 3, 2, 1, SESSION, "<ttl_ms> <key>...: keeps objects from eviction"},
    {"UNPIN", tarn_command_unpin, 2, 1, 1, SESSION, "<key>..."},
    {"PINNED", tarn_command_pinned, 2, 1, 1, TRUSTED,
     "<key>...: for how much longer, in ms; -1: until UNPIN"},
    {"TOUCH", tarn_command_touch, 2, 1, 1, SESSION, "<key>...: counts as use"},
    {"EVICT", tarn_command_evict, 3, 0, 0, ADMIN, "<pool> <bytes>: frees least recently used objects"},
    {"DRAIN", command_drain, 1, 0, 0, ADMIN, ": ends the node in order"},
};
#define NCOMMANDS (sizeof(commands) / sizeof(commands[0]))

static int command_help(struct tarn_conn *c, size_t n, redisReply **args)
{
    (void)n, (void)args;
    tarn_resp_add_array(&c->out, NCOMMANDS + 1);
    for (size_t i = 0; i < NCOMMANDS; i++) {
        char line[256];
        int bytes = snprintf(line, sizeof(line), "%s%s%s", commands[i].name,
                             commands[i].usage[0] == ':' ? "" : " ", commands[i].usage);
        tarn_resp_add_string(&c->out, line, (size_t)bytes);
    }
    tarn_resp_add_simple(
        &c->out, "Commands from ATTACH to TOUCH need HELLO 1 <16 hex digits> on the same connection; CLIENT, "
                 "CONFIG, EVICT and DRAIN the Unix socket as the node's user or root, or the admin secret.");
    return 0;
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < NCOMMANDS; i++) {
        if (!strcasecmp(commands[i].name, name))
            return &commands[i];
    }
    return NULL;
}

static int unknown_command(const redisReply *name)
{
    const char *names[NCOMMANDS];
    char upper[24];
    size_t i;
    for (i = 0; i < NCOMMANDS; i++)
        names[i] = commands[i].name;
    for (i = 0; i < name->len && i < sizeof(upper) - 1; i++)
        upper[i] = name->str[i] >= 'a' && name->str[i] <= 'z' ? (char)(name->str[i] - 32) : name->str[i];
    upper[i] = 0;
    const char *nearest = tarn_nearest(upper, names, NCOMMANDS);
    return tarn_fail(TARN_E_UNSUPPORTED, "unknown command \"%.*s\": %s%s",
                     (int)(name->len < 40 ? name->len : 40), name->str,
                     nearest ? "did you mean " : "see HELP", nearest ? nearest : "");
}

static int check_command(const struct tarn_conn *c, const struct command *command, size_t n)
{
    if (command->right == ADMIN && !c->admin)
        return tarn_fail(
            TARN_E_AUTH,
            "%s: administers node %s: connect to its Unix socket %s as its user or root, or say AUTH with "
            "the --admin-secret that it was started with",
            command->name, c->node->id, c->node->record.unix_path);
    if (command->right != ANYBODY && !c->authenticated && !c->admin)
        return tarn_fail(TARN_E_AUTH, "%s: node %s wants its secret first: AUTH <secret>", command->name,
                         c->node->id);
    if (command->right == SESSION && !c->session)
        return tarn_fail(TARN_E_AUTH, "%s: say HELLO %d <16 hex digits> first", command->name, TARN_PROTOCOL);
    if (n < command->min_args || (command->item && (n - command->head) % command->item))
        return tarn_fail(TARN_E_INVALID, "%s: wrong number of arguments: %s %s", command->name, command->name,
                         command->usage);
    return 0;
}

void tarn_command_run(struct tarn_conn *c, const redisReply *request)
{
    struct tarn_node *node = c->node;
    if (!request->elements)
        return;
    const struct command *command = find_command(request->element[0]->str);
    int rc = command ? check_command(c, command, request->elements) : unknown_command(request->element[0]);
    node->stats.commands++;
    c->commands++;
    if (command)
        c->last_command = command->name;
    if (!rc)
        rc = command->fn(c, request->elements, request->element);
    if (rc)
        tarn_reply_failure(c, rc);
}
