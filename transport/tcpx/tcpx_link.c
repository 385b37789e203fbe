/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCPX, client half: a link is a connection for requests and the lanes that move bytes. A lane opens with its
 * first work.
 *
 * connect() sends HELLO and waits for the answer; it starts the plugin if this is the process's first link.
 * progress() sets lanes up while their works wait. This takes at most a second, once, since links are kept.
 * If set-up failed before, lanes are set up while works use another transport. The plugin signals nothing, so
 * there is no descriptor to wait for while it is busy: wait() polls, and naps between polls after a while
 * without progress.
 *
 * When a lane fails, the link breaks and all its works end. UNAVAILABLE means that the plugin or the
 * network is at fault, so another transport is tried. NODE_DOWN means that the node closed the connection.
 */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/container.h"
#include "base/error.h"
#include "base/net.h"
#include "transport/answer.h"
#include "transport/tcpx/plugin/tcpx_settings.h"
#include "transport/tcpx/tcpx_lane.h"
#include "transport/tcpx/tcpx_rest.h"

enum { STALL_MS = 3000, SETUP_MOST_MS = 20000, ROUNDS = 64 };
/* Rounds between reads of the link's socket: while bytes move, and while no message of the node is
 * awaited. */
enum { UNHEARD = 2, UNAWAITED = 32 };
/* Longer than a message takes, because its bytes move only while the plugin is polled. */
#define SPIN_NS (5 * TARN_NS_PER_MS)
#define NAP_NS (20 * 1000)

struct tarn_tcpx_link {
    struct tarn_link link;
    struct tarn_tcpx_holder holder; /* its lock also guards the lanes' comms */
    struct tarn_tcpx_local *local;  /* NULL until it is connected: its end does not count */
    struct tarn_tcpx_gear gear;
    struct tarn_tcpx_wire wire;
    struct tarn_tcpx_lane *lanes;
    uint32_t nlanes, npools; /* npools: the node's */
    uint32_t unheard;        /* rounds since the last read */
    uint64_t moved_ns;       /* time of the last progress or new work */
    bool moving;             /* inside move() */
    bool doubted;            /* works do not wait for its lanes to open */
    /* Code 0: it does not, or is not. */
    struct tarn_reason failing; /* what to break with at the next progress() */
    struct tarn_reason broken;  /* what it broke with */
};

static struct tarn_tcpx_link *own(const struct tarn_link *l)
{
    return TARN_CONTAINER_OF(l, struct tarn_tcpx_link, link);
}

/* --- breaking ----------------------------------------------------------------------------------- */

/* Remembers a failure of the plugin, or a set-up given up for taking too long, for the next link. */
static void note_end(const struct tarn_tcpx_link *l)
{
    bool moved = false, late = false;
    for (const struct tarn_tcpx_lane *n = l->lanes; n; n = n->next) {
        moved |= n->moved;
        late |= n->first && !n->up && !tarn_tcpx_lane_opens(n);
    }
    bool failed = l->broken.code == TARN_E_UNAVAILABLE || l->broken.code == TARN_E_PROTOCOL;
    char why[TARN_SENTENCE];
    if (failed)
        snprintf(why, sizeof(why), "%s", l->broken.text);
    else
        snprintf(why, sizeof(why), "node %s: tcpx: no connection of the plugin's within the operation's time",
                 l->link.node);
    tarn_tcpx_rest_note(l->local, l->link.node, moved, late, failed || late ? why : NULL);
}

static void break_link(struct tarn_tcpx_link *l, int code)
{
    struct tarn_tcpx_lane *n = NULL;
    struct tarn_reason why;
    if (l->broken.code)
        return;
    tarn_reason_keep(&why, code);
    tarn_reason_keep(&l->broken, tarn_fail(code, "node %s: %s", l->link.node, why.text));
    if (l->local)
        note_end(l);
    for (n = l->lanes; n; n = n->next)
        tarn_tcpx_lane_cut(n);
    tarn_tcpx_gear_close(&l->gear);
    tarn_tcpx_wire_close(&l->wire);
    for (n = l->lanes; n; n = n->next)
        tarn_tcpx_lane_fail(n, &l->broken);
    tarn_reason_fail(&l->broken);
}

/* --- moving ------------------------------------------------------------------------------------- */

static int node_failed(const struct tarn_tcpx_message *m)
{
    return tarn_fail(m->frame.status == TARN_E_NO_MEMORY ? m->frame.status : TARN_E_UNAVAILABLE,
                     "at the node: %.*s", TARN_SENTENCE, (const char *)m->body);
}

static int hear_one(struct tarn_tcpx_link *l, const struct tarn_tcpx_message *m)
{
    if (m->frame.op == TARN_TCPX_FAIL)
        return node_failed(m);
    for (struct tarn_tcpx_lane *n = l->lanes; n; n = n->next)
        if (n->id == m->frame.lane)
            return tarn_tcpx_lane_hear(n, m);
    return tarn_fail(TARN_E_PROTOCOL, "tcpx: received a message for no lane");
}

/* 1: a message came. */
static int hear(struct tarn_tcpx_link *l)
{
    struct tarn_tcpx_message m;
    int moved = 0, r;
    while ((r = tarn_tcpx_wire_next(&l->wire, &m)) > 0) {
        moved = 1;
        r = hear_one(l, &m);
        if (r)
            return r;
    }
    return r ? r : moved;
}

/* A lane has failed. The node may have failed first: then it has said so or closed the connection. */
static int blame(struct tarn_tcpx_link *l, int code)
{
    struct tarn_reason why;
    tarn_reason_keep(&why, code);
    int r = hear(l);
    if (r < 0)
        return r;
    tarn_reason_fail(&why);
    return code == TARN_E_NODE_DOWN ? TARN_E_UNAVAILABLE : code;
}

/* Open at both ends. */
static bool is_open(const struct tarn_tcpx_lane *n)
{
    return n->up && n->state == TARN_TCPX_LANE_OPEN;
}

/* 1: progress was made. Negative: the link must break. While bytes move, or nothing is awaited, the socket
 * is read only now and then; that also notices its end. */
static int move(struct tarn_tcpx_link *l)
{
    int moved = 0;
    bool awaits = false;
    l->moving = true;
    for (struct tarn_tcpx_lane *n = l->lanes; n && moved >= 0; n = n->next) {
        bool waits = n->first || !is_open(n) || tarn_tcpx_lane_polls(n);
        int r = waits ? tarn_tcpx_lane_advance(n) : 0;
        awaits |= waits && r >= 0 && tarn_tcpx_lane_awaits(n);
        moved = r < 0 ? blame(l, r) : moved | r;
    }
    int heard = 0, sent = 0;
    if (moved >= 0 && ++l->unheard >= (!awaits ? UNAWAITED : moved ? UNHEARD : 1)) {
        l->unheard = 0;
        heard = hear(l);
    }
    if (moved >= 0 && heard >= 0)
        sent = tarn_tcpx_wire_flush(&l->wire);
    int broken = moved < 0 ? moved : heard < 0 ? heard : sent < 0 ? sent : 0;
    l->moving = false;
    return broken ? broken : moved | heard | sent;
}

static int advance(struct tarn_tcpx_link *l)
{
    pthread_mutex_lock(&l->holder.lock);
    int r = l->failing.code ? tarn_reason_fail(&l->failing) : move(l);
    if (r < 0)
        break_link(l, r);
    pthread_mutex_unlock(&l->holder.lock);
    return r;
}

/* A set-up shows no progress, but counts as activity. */
static bool opens(const struct tarn_tcpx_link *l)
{
    for (const struct tarn_tcpx_lane *n = l->lanes; n; n = n->next)
        if (tarn_tcpx_lane_opens(n))
            return true;
    return false;
}

static int tcpx_progress(struct tarn_link *link)
{
    struct tarn_tcpx_link *l = own(link);
    int moved = 0, r = l->broken.code;
    for (int i = 0; !l->broken.code && i < ROUNDS; i++) {
        r = advance(l);
        if (r <= 0)
            break;
        moved = 1;
    }
    return r < 0 ? r : moved || opens(l);
}

static bool has_works(const struct tarn_tcpx_link *l)
{
    for (const struct tarn_tcpx_lane *n = l->lanes; n; n = n->next)
        if (n->first)
            return true;
    return false;
}

static bool polls(const struct tarn_tcpx_link *l)
{
    for (const struct tarn_tcpx_lane *n = l->lanes; n; n = n->next)
        if (tarn_tcpx_lane_polls(n))
            return true;
    return false;
}

static int tcpx_wait_fd(const struct tarn_link *link, short *events)
{
    const struct tarn_tcpx_link *l = own(link);
    *events = 0;
    if (l->broken.code || polls(l) || !has_works(l))
        return -1;
    *events = POLLIN | (l->wire.out.bytes ? POLLOUT : 0);
    return l->wire.fd;
}

static int tcpx_wait(struct tarn_link *link, uint64_t deadline_ns)
{
    struct tarn_tcpx_link *l = own(link);
    uint64_t until = tarn_slice_end(deadline_ns);
    while (!l->broken.code && has_works(l)) {
        int r = advance(l);
        uint64_t now = tarn_now_ns();
        if (r > 0)
            l->moved_ns = now;
        if (r || now >= until)
            return r ? r : opens(l);
        if (!polls(l))
            return tarn_wait_by_poll(&tarn_tcpx_ops, link, until);
        if (now - l->moved_ns < SPIN_NS)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
    return l->broken.code;
}

/* --- works -------------------------------------------------------------------------------------- */

/* All lanes are in use for other memory. A link without works ends, so the next link starts with a lane
 * for this work. */
static int too_many_lanes(struct tarn_tcpx_link *l, struct tarn_tcpx_lane **n_p)
{
    int rc =
        tarn_fail(has_works(l) ? TARN_E_NOT_REACHABLE : TARN_E_NODE_DOWN,
                  "node %s: tcpx: %u lanes of this link are open: use fewer GPUs and pools by one thread",
                  l->link.node, l->nlanes);
    if (has_works(l))
        return rc;
    tarn_reason_keep(&l->failing, rc);
    *n_p = l->lanes;
    return 0;
}

static int lane_of(struct tarn_tcpx_link *l, const struct tarn_work *w, bool puts,
                   struct tarn_tcpx_lane **n_p)
{
    int gpu = (int)w->gpu - 1;
    struct tarn_tcpx_lane **end = &l->lanes;
    for (; *end; end = &(*end)->next)
        if ((*end)->pool == w->pool && (*end)->gpu == gpu && (*end)->puts == puts) {
            *n_p = *end;
            return 0;
        }
    if (l->nlanes == TARN_TCPX_LANES)
        return too_many_lanes(l, n_p);
    int rc = tarn_tcpx_lane_new(&l->gear, &l->wire, l->nlanes, w->pool, gpu, puts, end);
    if (rc)
        return rc;
    l->nlanes++;
    *n_p = *end;
    tarn_log(l->link.log, TARN_LOG_DEBUG, "tcpx", "msg=\"opens a lane\" node=%s for=%s pool=%u gpu=%d",
             l->link.node, puts ? "puts" : "gets", w->pool, gpu);
    return 0;
}

/* Continues a set-up that no work waits for. False: it has ended, successfully or not. */
static bool still_opens(struct tarn_tcpx_link *l, const struct tarn_tcpx_lane *n)
{
    int r = l->failing.code || l->moving || is_open(n) ? 0 : move(l);
    if (r < 0)
        tarn_reason_keep(&l->failing, r);
    return !l->failing.code && !is_open(n);
}

static int queue(struct tarn_tcpx_link *l, struct tarn_work *w, bool puts)
{
    struct tarn_tcpx_lane *n = NULL;
    if (l->broken.code)
        return tarn_reason_fail(&l->broken);
    if (w->pool >= l->npools)
        return tarn_fail(TARN_E_STALE, "node %s: tcpx: there is no pool %u", l->link.node, w->pool);
    int rc = lane_of(l, w, puts, &n);
    if (rc)
        return rc;
    if (l->doubted && !l->failing.code && still_opens(l, n))
        return tarn_fail(TARN_E_NOT_REACHABLE,
                         "node %s: tcpx: has failed before, and is being connected with again", l->link.node);
    tarn_tcpx_lane_queue(n, w);
    l->moved_ns = tarn_now_ns();
    return TARN_INPROGRESS;
}

static int queue_locked(struct tarn_tcpx_link *l, struct tarn_work *w, bool puts)
{
    pthread_mutex_lock(&l->holder.lock);
    int rc = queue(l, w, puts);
    pthread_mutex_unlock(&l->holder.lock);
    return rc;
}

static int tcpx_get(struct tarn_link *l, struct tarn_work *w)
{
    return queue_locked(own(l), w, false);
}

static int tcpx_put(struct tarn_link *l, struct tarn_work *w)
{
    return queue_locked(own(l), w, true);
}

/* --- connecting --------------------------------------------------------------------------------- */

struct answer {
    struct tarn_addr address;
    char token[TARN_TOKEN + 2], plugin[TARN_TCPX_NAME];
    uint32_t npools;
};

/* "v1 <host>:<port> <token> <name of the plugin> <pools>" */
static int parse_answer(const struct tarn_tcpx_link *l, const char *text, struct answer *out)
{
    struct tarn_answer a;
    char address[300];
    int rc = tarn_answer_begin(&a, &l->link, text);
    if (rc)
        return rc;
    if (sscanf(a.at, "%299s %33s %63s %u", address, out->token, out->plugin, &out->npools) != 4 ||
        strlen(out->token) != TARN_TOKEN || tarn_addr_parse(address, "address", &out->address) ||
        out->address.is_unix)
        return tarn_answer_malformed(&a);
    return 0;
}

/* Time limit of a set-up; nodes allow SETUP_MOST_MS. A client without another transport uses nearly all of
 * the operation's time, unless configured otherwise; the rest is left to report the error. */
static uint32_t setup_ms(const struct tarn_peer *p, const struct tarn_tcpx_settings *s, uint32_t usual_ms)
{
    uint32_t left_ms = p->alone && !s->stall_ms ? (uint32_t)tarn_left_ms(p->deadline_ns) / 10 * 9 : 0;
    if (left_ms > SETUP_MOST_MS)
        left_ms = SETUP_MOST_MS;
    return left_ms > usual_ms ? left_ms : usual_ms;
}

static int open_gear(struct tarn_tcpx_link *l, const struct tarn_peer *peer, const struct answer *a)
{
    struct tarn_tcpx_settings settings;
    struct tarn_tcpx_plugin *p;
    int rc = tarn_tcpx_settings(&settings);
    if (!rc)
        rc = tarn_tcpx_plugin_open(settings.plugin, l->link.log, &p);
    if (rc)
        return rc;
    l->gear.way = settings.way;
    l->npools = a->npools;
    l->gear.plugin = p;
    l->gear.chunk_bytes = p->chunk_bytes;
    l->gear.stall_ms = settings.stall_ms ? settings.stall_ms : STALL_MS;
    l->gear.setup_ms = setup_ms(peer, &settings, l->gear.stall_ms + p->wait_ms);
    return strcmp(p->word, a->plugin) == 0
               ? 0
               : tarn_fail(TARN_E_NOT_REACHABLE,
                           "node %s: tcpx: it uses the plugin %s, and this process %s, which do not "
                           "understand each other: name the same with TARN_TCPX_PLUGIN",
                           l->link.node, a->plugin, p->word);
}

static int next_message(struct tarn_tcpx_link *l, const struct tarn_peer *p, struct tarn_tcpx_message *m)
{
    for (uint64_t until = tarn_peer_until(p);;) {
        int r = tarn_tcpx_wire_next(&l->wire, m);
        if (r)
            return r < 0 ? r : 0;
        r = tarn_net_wait(l->wire.fd, POLLIN, until, p->cancel);
        if (r == TARN_E_TIMEOUT)
            return tarn_fail(r, "node %s: tcpx: no answer to HELLO before the deadline", l->link.node);
        if (r)
            return r;
    }
}

static int say_hello(struct tarn_tcpx_link *l, const struct tarn_peer *p, const char *token)
{
    struct tarn_tcpx_message m;
    uint8_t body[TARN_TCPX_BODY] = {0};
    memcpy(body, token, TARN_TOKEN);
    tarn_tcpx_wire_say(
        &l->wire,
        (struct tarn_tcpx_frame){.op = TARN_TCPX_HELLO, .gen = p->session, .bytes = l->gear.chunk_bytes},
        body);
    int r = tarn_tcpx_wire_flush(&l->wire);
    if (r >= 0)
        r = next_message(l, p, &m);
    if (r < 0)
        return r;
    if (m.frame.op != TARN_TCPX_HELLO)
        return m.frame.op == TARN_TCPX_FAIL
                   ? node_failed(&m)
                   : tarn_fail(TARN_E_PROTOCOL, "node %s: tcpx: the answer to HELLO is none", l->link.node);
    if (m.frame.status == TARN_E_AUTH)
        return tarn_fail(TARN_E_AUTH,
                         "node %s: tcpx: the token is not that of a living session: attach again",
                         l->link.node);
    if (m.frame.status || m.frame.bytes == 0 || m.frame.bytes > l->gear.chunk_bytes)
        return tarn_fail(TARN_E_PROTOCOL, "node %s: tcpx: HELLO was refused with an unknown status",
                         l->link.node);
    l->gear.chunk_bytes = (uint32_t)m.frame.bytes;
    return 0;
}

/* The holder's callback: memory was unmapped. Also needed when idle, since no message may follow soon. */
static void drop_unmapped(struct tarn_tcpx_holder *h)
{
    struct tarn_tcpx_link *l = TARN_CONTAINER_OF(h, struct tarn_tcpx_link, holder);
    for (struct tarn_tcpx_lane *n = l->lanes; n; n = n->next)
        if (n->comm)
            tarn_tcpx_ranges_drop_gone(n->comm);
}

static void tcpx_close(struct tarn_link *link)
{
    struct tarn_tcpx_link *l = own(link);
    tarn_tcpx_holder_remove(&l->holder);
    if (!l->broken.code)
        break_link(l, tarn_fail(TARN_E_CANCELED, "tcpx: the link was closed"));
    while (l->lanes) {
        struct tarn_tcpx_lane *n = l->lanes;
        l->lanes = n->next;
        free(n);
    }
    if (l->gear.plugin)
        tarn_tcpx_plugin_close(l->link.log);
    free(l);
}

static int tcpx_connect(const struct tarn_peer *p, struct tarn_link **l_p)
{
    struct answer a;
    struct tarn_reason failure;
    struct tarn_tcpx_local *local = tarn_tcpx_local(p->local);
    struct tarn_tcpx_link *l = tarn_link_new("tcpx", p, sizeof(*l));
    if (!l)
        return TARN_E_NO_MEMORY;
    l->link.writable = true;
    l->wire.fd = -1;
    tarn_tcpx_holder_add(local, &l->holder, drop_unmapped);
    int rc = parse_answer(l, p->text, &a);
    if (!rc && !p->alone) /* do not rest if there is no other transport */
        rc = tarn_tcpx_rest_check(local, l->link.node);
    if (!rc)
        rc = open_gear(l, p, &a);
    if (!rc)
        rc = tarn_net_connect(&a.address, tarn_peer_until(p), p->cancel, &l->wire.fd);
    if (!rc)
        rc = say_hello(l, p, a.token);
    if (rc) {
        tarn_reason_keep(&failure, rc);
        tcpx_close(&l->link);
        return tarn_reason_fail(&failure);
    }
    l->local = local;
    l->gear.mappings = tarn_tcpx_local_mappings(local);
    l->doubted = !p->alone && tarn_tcpx_rest_doubts(local, l->link.node);
    if (l->doubted) /* nobody waits */
        l->gear.setup_ms = SETUP_MOST_MS;
    *l_p = &l->link;
    return 0;
}

/* Called when a client opens, before tcpx has threads and often before the program has any. */
static int tcpx_local_open(const char *devices, struct tarn_local **local_p)
{
    struct tarn_tcpx_settings settings;
    int rc = tarn_tcpx_settings(&settings);
    if (rc)
        return rc;
    tarn_tcpx_plugin_prepare(settings.plugin);
    return tarn_tcpx_local_open(devices, local_p);
}

const struct tarn_transport_ops tarn_tcpx_ops = {
    .name = "tcpx",
    .caps = TARN_TCPX_CAPS,
    .probe = tarn_tcpx_probe,
    .local_open = tcpx_local_open,
    .local_close = tarn_tcpx_local_close,
    .map = tarn_tcpx_local_map,
    .unmap = tarn_tcpx_local_unmap,
    .ready = tarn_no_ready,
    .offer = tarn_no_offer,
    .connect = tcpx_connect,
    .learn = tarn_no_learn,
    .get = tcpx_get,
    .put = tcpx_put,
    .progress = tcpx_progress,
    .wait_fd = tcpx_wait_fd,
    .wait = tcpx_wait,
    .touch = tarn_no_touch,
    .view = tarn_no_view,
    .unview = tarn_no_unview,
    .address = tarn_no_address,
    .close = tcpx_close,
};
