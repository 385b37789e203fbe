/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control connections. Each carries one command at a time, so "the socket is readable" means "the reply
 * has begun to come" and a wait can be ended by a stop flag. HELLO tells the session (the same on all of
 * a client's connections) and proves which incarnation answered; when it came over the node's Unix
 * socket, that also proves that the node is on this host.
 *
 * A command may go along with HELLO (tarn_call_take_early): then both are answered within one round trip, and
 * tarn_call_reply() reads HELLO's answer first. A connection whose HELLO was refused is not used again.
 *
 * A wait that ends early leaves a reply outstanding. The connection is then left to the keeper, which
 * reads the reply when it comes; reservations granted in it are given back.
 */
#include "client/call.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "client/alert.h"
#include "client/client.h"
#include "client/health.h"
#include "client/remote.h"
#include "client/retire.h"

#define TARN_PROTOCOL "1"
#define IDLE_MAX 16
#define CLOCK_FRESH_NS (10 * TARN_NS_PER_S)
#define ELSEWHERE_NS (50 * TARN_NS_PER_MS)
#define PROMPT_NS (5 * TARN_NS_PER_MS) /* whoever waits from so soon on sees the answer come */

/* --- HELLO -------------------------------------------------------------------------------------- */

struct greeting {
    uint64_t epoch, now_ns;
};

static void greeting_parse(const redisReply *reply, struct greeting *g)
{
    memset(g, 0, sizeof *g);
    for (size_t i = 0; i + 1 < reply->elements; i += 2) {
        const redisReply *name = reply->element[i], *value = reply->element[i + 1];
        if (!name->str)
            continue;
        if (strcmp(name->str, "epoch") == 0 && value->str)
            tarn_u64_parse(value->str, value->len, 16, UINT64_MAX, &g->epoch);
        if (strcmp(name->str, "now_ns") == 0) {
            if (value->type == REDIS_REPLY_INTEGER)
                g->now_ns = (uint64_t)value->integer;
            else if (value->str)
                tarn_u64_parse(value->str, value->len, 10, UINT64_MAX, &g->now_ns);
        }
    }
}

/*
 * What the node's clock says. It is taken to have been read when the answer came: that makes deadlines
 * told to the node end too early by the answer's way, never too late. So a quick answer is worth more
 * than a slow one, for as long as the two clocks cannot have drifted apart.
 */
static void clock_learn(struct tarn_remote *r, uint64_t asked_ns, uint64_t node_ns)
{
    uint64_t now = tarn_now_ns();

    pthread_mutex_lock(&r->lock);
    if (r->tick_learned_ns == 0 || now - asked_ns <= r->tick_error_ns ||
        now - r->tick_learned_ns > CLOCK_FRESH_NS) {
        r->tick_base_ns = now - node_ns;
        r->tick_error_ns = now - asked_ns;
        r->tick_learned_ns = now;
    }
    pthread_mutex_unlock(&r->lock);
}

uint64_t tarn_remote_clock(struct tarn_remote *r, uint64_t when_ns)
{
    pthread_mutex_lock(&r->lock);
    uint64_t base = r->tick_base_ns;
    pthread_mutex_unlock(&r->lock);
    return when_ns - base;
}

static int wait_reply(struct tarn_call *call, uint64_t deadline_ns, const struct tarn_stop *stop)
{
    struct pollfd fds[2] = {{tarn_resp_fd(call->resp), POLLIN, 0}, {stop ? stop->fd : -1, POLLIN, 0}};
    char who[352];

    for (;;) {
        if (stop && tarn_stopped(stop))
            return tarn_fail(TARN_E_CANCELED, "canceled by the caller");
        uint64_t now = tarn_now_ns(), ns = now < deadline_ns ? deadline_ns - now : 0;
        struct timespec left = {(time_t)(ns / TARN_NS_PER_S), (long)(ns % TARN_NS_PER_S)};
        int n = ppoll(fds, 2, &left, NULL);
        if (n < 0 && errno != EINTR)
            return tarn_fail(TARN_E_SYSTEM, "%s: poll: %m", tarn_remote_text(call->remote, who));
        if (n > 0 && fds[0].revents) /* also after the deadline: what is there is not silence */
            return 0;
        if (ns == 0)
            return tarn_fail(TARN_E_TIMEOUT,
                             "%s: no answer in time: raise the call's timeout or look at the node",
                             tarn_remote_text(call->remote, who));
        /* An earlier operation's cancel may have written it; the flag, looked at next, is what counts. */
        if (n > 0 && fds[1].revents)
            tarn_stop_drain(stop->fd);
    }
}

/* Its answer is to be read before any other; it is sent with the next command. */
static int say_hello(struct tarn_call *call)
{
    struct tarn_remote *r = call->remote;
    const char *given = r->client->secret;
    char session[17], published[sizeof r->secret];
    const char *argv[] = {"HELLO", TARN_PROTOCOL, session, given ? given : published};

    pthread_mutex_lock(&r->lock);
    memcpy(published, r->secret, sizeof published);
    pthread_mutex_unlock(&r->lock);
    call->published = !given && published[0];
    snprintf(session, sizeof session, "%016" PRIx64, r->client->session);
    call->hello_ns = tarn_now_ns();
    call->greets = true;
    return tarn_resp_append(call->resp, given || call->published ? 4 : 3, argv, NULL);
}

/* Over the Unix socket another host's node may have the path; over TCP the node was restarted. */
static int restarted(struct tarn_call *call)
{
    char who[352];

    if (!call->local)
        atomic_store(&call->remote->superseded, true);
    return tarn_fail(TARN_E_NODE_DOWN, "%s: was restarted; what it held is gone", tarn_remote_text(call->remote, who));
}

static int take_greeting(struct tarn_call *call, const redisReply *reply)
{
    struct tarn_remote *r = call->remote;
    struct greeting g;
    char who[352];
    int rc = tarn_resp_error(reply, tarn_remote_text(r, who), TARN_E_PROTOCOL);

    if (rc == TARN_E_AUTH && call->published) /* it makes another one at each start */
        return restarted(call);
    if (rc == TARN_E_AUTH && r->client->secret_of_env && strstr(tarn_last_error(), "wrong secret"))
        return tarn_fail(rc, "%s; TARN_SECRET is set in the environment", tarn_last_error());
    if (rc != 0)
        return rc;
    greeting_parse(reply, &g);
    if (g.epoch == 0)
        return tarn_fail(TARN_E_PROTOCOL, "%s: the answer to HELLO has no epoch: is that address a tarnd?",
                         tarn_remote_text(r, who));
    if ((uint32_t)g.epoch != r->key.epoch)
        return restarted(call);
    if (call->local)
        atomic_store(&r->local, true);
    clock_learn(r, call->hello_ns, g.now_ns);
    return 0;
}

/* Waits for the answer to HELLO. */
static int greeted(struct tarn_call *call, uint64_t deadline_ns, const struct tarn_stop *stop)
{
    uint64_t began = tarn_now_ns();
    redisReply *reply;
    int rc = wait_reply(call, deadline_ns, stop);

    if (rc != 0)
        return rc;
    uint64_t now = tarn_now_ns();
    rc = tarn_resp_read(call->resp, deadline_ns, &reply);
    call->greets = false;
    if (rc != 0) {
        call->owed = false;
        return rc;
    }
    if (began - call->hello_ns < PROMPT_NS) /* else it may have been there for long */
        tarn_remote_answered(call->remote, now - call->hello_ns);
    rc = take_greeting(call, reply);
    call->refused = rc != 0;
    freeReplyObject(reply);
    return rc;
}

/* --- connecting --------------------------------------------------------------------------------- */

static int connect_to(struct tarn_remote *r, const struct tarn_addr *a, struct tarn_steps *steps,
                      const struct tarn_stop *stop, bool eager, struct tarn_call **call_p)
{
    struct tarn_call *call = calloc(1, sizeof *call);

    if (!call)
        return tarn_fail(TARN_E_NO_MEMORY, "node %s: out of memory", r->key.id);
    call->remote = r;
    call->local = a->is_unix;
    int rc = tarn_resp_connect(a, tarn_step(steps), &call->resp);
    if (rc == 0)
        rc = say_hello(call);
    if (rc == 0 && !(eager && !a->is_unix)) {
        uint64_t until = tarn_step(steps);
        rc = tarn_resp_flush(call->resp, until);
        rc = rc ? rc : greeted(call, until, stop);
    }
    if (rc != 0) {
        tarn_call_drop(call);
        return rc;
    }
    *call_p = call;
    return 0;
}

/* *elsewhere: by its record the node is on another host. */
static int addresses(struct tarn_remote *r, struct tarn_addr *local, struct tarn_addr *tcp, bool *elsewhere)
{
    char control[sizeof r->control], path[sizeof r->unix_path];

    pthread_mutex_lock(&r->lock);
    memcpy(control, r->control, sizeof control);
    memcpy(path, r->unix_path, sizeof path);
    *elsewhere = strcmp(r->host_id, r->client->host_id) != 0;
    pthread_mutex_unlock(&r->lock);
    memset(local, 0, sizeof *local);
    snprintf(local->host, sizeof local->host, "%s", path);
    local->is_unix = true;
    if (control[0] == '\0') {
        tcp->host[0] = '\0';
        return 0;
    }
    return tarn_addr_parse(control, "the node's record", tcp);
}

static int connect_any(struct tarn_remote *r, struct tarn_steps *steps, const struct tarn_stop *stop,
                       bool eager, struct tarn_call **call_p)
{
    struct tarn_addr local, tcp;
    bool elsewhere;
    int rc = addresses(r, &local, &tcp, &elsewhere);

    if (rc == 0 && local.host[0]) {
        /* Containers of one host may share the path though their host ids differ, so it is tried in any
         * case; but on another host the path may be anybody's, who must not use up the time for TCP. */
        struct tarn_steps quick = *steps;
        uint64_t soon = tarn_now_ns() + ELSEWHERE_NS;
        if (elsewhere && soon < quick.deadline_ns)
            quick.deadline_ns = soon;
        rc = connect_to(r, &local, &quick, stop, false, call_p);
        steps->since_ns = quick.since_ns;
        /* On this host and silent or unwilling: its TCP port would say the same. Not where this user may not connect. */
        bool told = rc != TARN_E_NODE_DOWN && rc != TARN_E_SYSTEM && !elsewhere;
        if (rc == 0 || rc == TARN_E_CANCELED || told)
            return rc;
        atomic_store(&r->near, false); /* or its process is gone */
    }
    if (rc == 0 || tcp.host[0])
        rc = tcp.host[0] ? connect_to(r, &tcp, steps, stop, eager, call_p)
                         : tarn_fail(TARN_E_NODE_DOWN, "node %s: not in the directory", r->key.id);
    return rc;
}

int tarn_call_connect(struct tarn_remote *r, struct tarn_steps *steps, const struct tarn_stop *stop,
                      struct tarn_call **call_p)
{
    return connect_any(r, steps, stop, false, call_p);
}

static struct tarn_call *idle_take(struct tarn_remote *r, bool local_only)
{
    struct tarn_call *call = NULL;

    pthread_mutex_lock(&r->lock);
    for (struct tarn_call **at = &r->idle_calls; *at; at = &(*at)->next)
        if (!local_only || (*at)->local) {
            call = *at;
            *at = call->next;
            r->nidle_calls--;
            break;
        }
    pthread_mutex_unlock(&r->lock);
    return call;
}

/* What the end of a step that began at since_ns says of the node. */
static void judge(struct tarn_remote *r, int rc, uint64_t since_ns)
{
    if (rc == TARN_E_NODE_DOWN)
        tarn_remote_aside(r, TARN_GONE, tarn_last_error());
    else if (rc == TARN_E_TIMEOUT)
        tarn_remote_silent(r, since_ns);
}

static int take(struct tarn_remote *r, bool local_only, struct tarn_steps *steps, const struct tarn_stop *stop,
                bool eager, struct tarn_call **call_p)
{
    struct tarn_call *call;
    char who[352];

    while ((call = idle_take(r, local_only)) != NULL) {
        if (!tarn_resp_dead(call->resp)) {
            *call_p = call;
            return 0;
        }
        tarn_call_drop(call);
    }
    int rc = connect_any(r, steps, stop, eager, &call);
    if (rc != 0) {
        judge(r, rc, steps->since_ns);
        return rc;
    }
    if (local_only && !call->local) {
        tarn_call_give(call);
        return tarn_fail(TARN_E_NOT_REACHABLE, "%s: its Unix socket does not answer here: it is on another host, or this user may not open it "
                         "(tarnd --unix-mode, --unix-group)",
                         tarn_remote_text(r, who));
    }
    *call_p = call;
    return 0;
}

int tarn_call_take(struct tarn_remote *r, bool local_only, uint64_t deadline_ns, const struct tarn_stop *stop,
                   struct tarn_call **call_p)
{
    struct tarn_steps steps = {.deadline_ns = deadline_ns, .patience_ns = UINT64_MAX};

    return take(r, local_only, &steps, stop, false, call_p);
}

int tarn_call_take_in(struct tarn_remote *r, bool local_only, struct tarn_steps *steps,
                      const struct tarn_stop *stop, struct tarn_call **call_p)
{
    return take(r, local_only, steps, stop, false, call_p);
}

int tarn_call_take_early(struct tarn_remote *r, struct tarn_steps *steps, const struct tarn_stop *stop,
                         struct tarn_call **call_p)
{
    return take(r, false, steps, stop, true, call_p);
}

static void to_pool(struct tarn_call *call)
{
    struct tarn_remote *r = call->remote;

    pthread_mutex_lock(&r->lock);
    bool keep = r->nidle_calls < IDLE_MAX;
    if (keep) {
        call->next = r->idle_calls;
        r->idle_calls = call;
        r->nidle_calls++;
    }
    pthread_mutex_unlock(&r->lock);
    if (!keep)
        tarn_call_drop(call);
}

/* Another has it, or it is gone. */
static bool is_disposed(struct tarn_call *call)
{
    struct tarn_remote *r = call->remote;

    if (call->owed) {
        tarn_monitor_owe(r->client, call);
        return true;
    }
    bool useless = call->greets || call->refused || atomic_load(&r->health) == TARN_GONE;
    if (useless)
        tarn_call_drop(call);
    return useless;
}

void tarn_call_give(struct tarn_call *call)
{
    if (call && !is_disposed(call) && !tarn_monitor_watch(call->remote, call))
        to_pool(call);
}

void tarn_call_rest(struct tarn_call *call)
{
    if (call && !is_disposed(call))
        to_pool(call);
}

/* --- one command -------------------------------------------------------------------------------- */

int tarn_call_send(struct tarn_call *call, int argc, const char *const *argv, const size_t *lens,
                   uint64_t deadline_ns)
{
    int rc = tarn_resp_append(call->resp, argc, argv, lens);

    if (rc == 0)
        rc = tarn_resp_flush(call->resp, deadline_ns);
    call->owed = rc == 0;
    call->grants = strcmp(argv[0], "RESERVE") == 0;
    call->since_ns = tarn_now_ns();
    return rc;
}

/* The reply to the command, behind HELLO's where that is outstanding. */
static int read_reply(struct tarn_call *call, uint64_t deadline_ns, const struct tarn_stop *stop,
                      redisReply **reply_p)
{
    bool together = call->greets || call->refused; /* both may have come at once */
    int rc = call->greets ? greeted(call, deadline_ns, stop) : 0;

    if (rc != 0)
        return rc;
    rc = together ? tarn_resp_try(call->resp, reply_p) : TARN_E_AGAIN;
    if (rc == TARN_E_AGAIN) {
        if ((rc = wait_reply(call, deadline_ns, stop)) != 0)
            return rc;
        rc = tarn_resp_read(call->resp, deadline_ns, reply_p);
    }
    call->owed = false;
    return rc;
}

int tarn_call_reply(struct tarn_call *call, uint64_t deadline_ns, const struct tarn_stop *stop,
                    redisReply **reply_p)
{
    redisReply *reply;
    char who[352];
    int rc = read_reply(call, deadline_ns, stop, &reply);

    if (rc != 0)
        return rc;
    rc = tarn_resp_error(reply, tarn_remote_text(call->remote, who), TARN_E_PROTOCOL);
    if (rc != 0) {
        freeReplyObject(reply);
        return rc;
    }
    *reply_p = reply;
    return 0;
}

int tarn_words_send(const struct tarn_words *a, struct tarn_call *call, uint64_t deadline_ns)
{
    return tarn_call_send(call, a->n, a->argv, a->lens, deadline_ns);
}

int tarn_words_call(const struct tarn_words *a, struct tarn_remote *r, uint64_t deadline_ns,
                    const struct tarn_stop *stop, redisReply **reply_p)
{
    struct tarn_call *call;
    char who[352];

    bool up = atomic_load(&r->health) == TARN_UP || tarn_remote_settled(r, deadline_ns, stop);
    if (!up && stop && tarn_stopped(stop))
        return tarn_fail(TARN_E_CANCELED, "canceled by the caller");
    if (!up)
        return tarn_fail(TARN_E_NODE_DOWN, "%s: set aside, it does not answer: look at the node",
                         tarn_remote_text(r, who));
    int rc = tarn_call_take(r, false, deadline_ns, stop, &call);
    if (rc != 0)
        return rc;
    rc = tarn_words_send(a, call, deadline_ns);
    if (rc == 0)
        rc = tarn_call_reply(call, deadline_ns, stop, reply_p);
    if (rc != TARN_E_TIMEOUT || call->owed) /* a node that answers TIMEOUT is not silent: Redis is */
        judge(r, rc, call->since_ns);
    if (rc == TARN_E_NODE_DOWN || rc == TARN_E_PROTOCOL)
        tarn_call_drop(call);
    else
        tarn_call_give(call);
    return rc;
}
