/* SPDX-License-Identifier: Apache-2.0 */
/* The commands that every host has, and how requests find their handlers. */
#include "transport/host/commands.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"

/* --- HELLO, AUTH -------------------------------------------------------------------------------- */

bool tarn_secret_is(const char *secret, const redisReply *given)
{
    size_t bytes = strlen(secret);
    unsigned char differs = bytes != given->len;
    for (size_t i = 0; i < given->len; i++)
        differs |=
            (unsigned char)((unsigned char)given->str[i] ^ (unsigned char)secret[bytes ? i % bytes : 0]);
    return !differs;
}

static int command_auth(struct tarn_conn *c, size_t n, redisReply **args)
{
    int rc = c->host->ops->authenticate(c, args[n - 1]);
    if (!rc)
        tarn_resp_add_simple(&c->out, "OK");
    return rc;
}

void tarn_reply_pair(struct tarn_buf *out, const char *name, const char *value)
{
    tarn_resp_add_string(out, name, strlen(name));
    tarn_resp_add_string(out, value, strlen(value));
}

void tarn_reply_pair_u64(struct tarn_buf *out, const char *name, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof(text), "%" PRIu64, value);
    tarn_reply_pair(out, name, text);
}

static int check_protocol(const struct tarn_conn *c, const redisReply *arg)
{
    uint64_t protocol;
    if (tarn_u64_parse(arg->str, arg->len, 10, UINT32_MAX, &protocol) == 0 &&
        protocol >= TARN_PROTOCOL_OLDEST && protocol <= TARN_PROTOCOL)
        return 0;
    return tarn_fail(TARN_E_VERSION, "node %s speaks protocol %d to %d, not %.*s: use a client of version %s",
                     c->host->id, TARN_PROTOCOL_OLDEST, TARN_PROTOCOL, (int)(arg->len < 20 ? arg->len : 20),
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
        rc = tarn_session_join(c->host->sessions, id, c->local ? c->fd : -1, &session);
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
        rc = c->host->ops->authenticate(c, args[3]);
    if (!rc && !c->authenticated)
        rc = tarn_fail(TARN_E_AUTH,
                       "node %s wants a secret and was shown none: set TARN_SECRET or give --secret",
                       c->host->id);
    if (!rc)
        rc = join_session(c, args[2]);
    if (!rc)
        c->host->ops->greet(c);
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
    for (const struct tarn_conn *at = tarn_control_first(c->host->control); at; at = at->next)
        client_line(at, now, &text);
    tarn_resp_add_string(&c->out, text.data ? text.data : "", text.bytes);
    tarn_buf_free(&text);
    return 0;
}

static tarn_command_fn command_help;

/* --- the table ---------------------------------------------------------------------------------- */

static const struct tarn_control_command common[] = {
    {"HELLO", command_hello, 2, 0, 0, TARN_ANYBODY,
     "<protocol> <session> [<secret>]: begins a client's session"},
    {"AUTH", command_auth, 2, 0, 0, TARN_ANYBODY, "[default] <secret>"},
    {"PING", command_ping, 1, 0, 0, TARN_ANYBODY, "[text]"},
    {"QUIT", command_quit, 1, 0, 0, TARN_ANYBODY,
     ": closes the connection; its session has nothing mapped any more"},
    {"HELP", command_help, 1, 0, 0, TARN_ANYBODY, ": this list"},
    {"COMMAND", command_command, 1, 0, 0, TARN_ANYBODY, ": nothing, for redis-cli"},
    {"CLIENT", command_client, 2, 0, 0, TARN_ADMIN, "LIST: control connections"},
    {"ATTACH", tarn_command_attach, 3, 0, 0, TARN_SESSION, "<transport> <r|w> [<offer>]"},
    {"DETACH", tarn_command_detach, 3, 0, 0, TARN_SESSION,
     "<transport> <link>: one link of ATTACH is closed"},
};
enum { COMMON = sizeof(common) / sizeof(common[0]), COMMANDS_MAX = 64 };

/* The i-th command of a host; NULL behind the last. */
static const struct tarn_control_command *command_at(const struct tarn_host *h, size_t i)
{
    const struct tarn_command_table *own = h->ops->commands;
    if (i < COMMON)
        return &common[i];
    return i - COMMON < own->n ? &own->commands[i - COMMON] : NULL;
}

static int command_help(struct tarn_conn *c, size_t n, redisReply **args)
{
    const struct tarn_control_command *command;
    (void)n, (void)args;
    tarn_resp_add_array(&c->out, COMMON + c->host->ops->commands->n + 1);
    for (size_t i = 0; (command = command_at(c->host, i)) != NULL; i++) {
        char line[256];
        int bytes = snprintf(line, sizeof(line), "%s%s%s", command->name, command->usage[0] == ':' ? "" : " ",
                             command->usage);
        tarn_resp_add_string(&c->out, line, (size_t)bytes);
    }
    tarn_resp_add_simple(&c->out, c->host->ops->commands->note);
    return 0;
}

static const struct tarn_control_command *find_command(const struct tarn_host *h, const char *name)
{
    const struct tarn_control_command *command;
    for (size_t i = 0; (command = command_at(h, i)) != NULL; i++) {
        if (!strcasecmp(command->name, name))
            return command;
    }
    return NULL;
}

static int unknown_command(const struct tarn_host *h, const redisReply *name)
{
    const struct tarn_control_command *command;
    const char *names[COMMANDS_MAX];
    char upper[24];
    size_t i, n;
    for (n = 0; n < COMMANDS_MAX && (command = command_at(h, n)) != NULL; n++)
        names[n] = command->name;
    for (i = 0; i < name->len && i < sizeof(upper) - 1; i++)
        upper[i] = name->str[i] >= 'a' && name->str[i] <= 'z' ? (char)(name->str[i] - 32) : name->str[i];
    upper[i] = 0;
    const char *nearest = tarn_nearest(upper, names, n);
    return tarn_fail(TARN_E_UNSUPPORTED, "unknown command \"%.*s\": %s%s",
                     (int)(name->len < 40 ? name->len : 40), name->str,
                     nearest ? "did you mean " : "see HELP", nearest ? nearest : "");
}

static int check_command(const struct tarn_conn *c, const struct tarn_control_command *command, size_t n)
{
    if (command->right == TARN_ADMIN && !c->admin)
        return tarn_fail(
            TARN_E_AUTH,
            "%s: administers node %s: connect to its Unix socket %s as its user or root, or say AUTH with "
            "the --admin-secret that it was started with",
            command->name, c->host->id, c->host->ops->unix_path(c->host));
    if (command->right != TARN_ANYBODY && !c->authenticated && !c->admin)
        return tarn_fail(TARN_E_AUTH, "%s: node %s wants its secret first: AUTH <secret>", command->name,
                         c->host->id);
    if (command->right == TARN_SESSION && !c->session)
        return tarn_fail(TARN_E_AUTH, "%s: say HELLO %d <16 hex digits> first", command->name, TARN_PROTOCOL);
    if (n < command->min_args || (command->item && (n - command->head) % command->item))
        return tarn_fail(TARN_E_INVALID, "%s: wrong number of arguments: %s %s", command->name, command->name,
                         command->usage);
    return 0;
}

void tarn_command_run(struct tarn_conn *c, const redisReply *request)
{
    if (!request->elements)
        return;
    const struct tarn_control_command *command = find_command(c->host, request->element[0]->str);
    int rc = command ? check_command(c, command, request->elements)
                     : unknown_command(c->host, request->element[0]);
    c->host->commands++;
    c->commands++;
    if (command)
        c->last_command = command->name;
    if (!rc)
        rc = command->fn(c, request->elements, request->element);
    if (rc)
        tarn_reply_failure(c, rc);
}
