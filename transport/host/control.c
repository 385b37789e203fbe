/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/host/control.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/net.h"

#define AT "control"
#define REQUEST_MAX (16u << 20)
#define ARGS_MAX 65536
#define EARLY_REQUEST_MAX (64u << 10) /* the same before HELLO */
#define EARLY_ARGS_MAX 16
#define HOLDS_MAX (256u << 20) /* unfinished requests of all connections */
#define READ_BYTES 65536
#define OUT_BUSY (256u << 10) /* no further request is run while this much waits to be sent */
#define OUT_MAX (64u << 20)
#define OUT_KEEP (64u << 10) /* larger buffers are freed once they are empty */
#define ACCEPT_MAX 64        /* connections taken before others get their turn */
#define ADMISSION_NS (30 * TARN_NS_PER_S)

struct listener {
    struct tarn_control *control;
    struct tarn_watch *watch;
    int fd;
    bool local;
};

struct tarn_control {
    struct tarn_host *host;
    struct listener tcp, local;
    char unix_path[sizeof(((struct tarn_addr *)0)->host)];
    struct tarn_conn *conns;     /* the admitted ones */
    struct tarn_conn *strangers; /* the others, oldest first */
    uint64_t next_id;
    size_t holds; /* sum of the connections' */
    bool paused;  /* out of descriptors: not accepting for a moment */
    char chunk[READ_BYTES];
};

/* --- output ------------------------------------------------------------------------------------- */

static size_t out_waiting(const struct tarn_conn *c)
{
    return c->out.bytes - c->sent;
}

static void drop_fds(struct tarn_conn *c)
{
    for (uint32_t i = 0; i < c->nfds; i++) {
        if (c->close_fds[i])
            close(c->fds[i]);
    }
    c->nfds = 0;
}

/* Sends one stretch: up to the byte the descriptors travel with, or that byte with them, or the rest. */
static ssize_t send_some(struct tarn_conn *c)
{
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(c->fds))];
    } control;
    struct iovec v = {.iov_base = c->out.data + c->sent, .iov_len = out_waiting(c)};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    if (c->nfds && c->sent < c->fds_at) {
        v.iov_len = c->fds_at - c->sent;
    } else if (c->nfds) {
        m.msg_control = control.space;
        m.msg_controllen = CMSG_SPACE(c->nfds * sizeof(int));
        memset(control.space, 0, m.msg_controllen);
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(c->nfds * sizeof(int));
        memcpy(CMSG_DATA(h), c->fds, c->nfds * sizeof(int));
    }
    ssize_t n = sendmsg(c->fd, &m, MSG_NOSIGNAL);
    if (n > 0 && m.msg_control)
        drop_fds(c);
    return n;
}

/* False when the connection is broken. */
static bool flush(struct tarn_conn *c)
{
    if (c->out.failed || out_waiting(c) > OUT_MAX)
        return false;
    while (out_waiting(c)) {
        ssize_t n = send_some(c);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN;
        c->sent += (size_t)n;
    }
    c->out.bytes = c->sent = 0;
    if (c->out.room > OUT_KEEP) {
        tarn_buf_free(&c->out);
        c->out = (struct tarn_buf){0};
    }
    return true;
}

void tarn_conn_send_fds(struct tarn_conn *c, const struct tarn_attach *a)
{
    memcpy(c->fds, a->fds, sizeof(c->fds));
    memcpy(c->close_fds, a->close_fds, sizeof(c->close_fds));
    c->nfds = a->nfds;
    c->fds_at = c->out.bytes;
}

/* --- connections -------------------------------------------------------------------------------- */

static void conn_free(struct tarn_conn *c)
{
    struct tarn_control *control = c->control;
    if (c->admitted)
        DL_DELETE(control->conns, c);
    else
        DL_DELETE(control->strangers, c);
    control->holds -= c->holds;
    if (c->waiter)
        c->waiter->gone(c->waiter);
    tarn_watch_free(c->watch);
    close(c->fd);
    drop_fds(c);
    tarn_buf_free(&c->out);
    tarn_resp_parser_free(c->parser);
    if (c->session)
        tarn_session_leave(c->session);
    free(c);
}

static void admit(struct tarn_conn *c)
{
    if (c->admitted || !(c->authenticated || c->admin))
        return;
    c->admitted = true;
    DL_DELETE(c->control->strangers, c);
    DL_APPEND(c->control->conns, c);
}

void tarn_conn_trust(struct tarn_conn *c)
{
    tarn_resp_parser_limit(c->parser, REQUEST_MAX, ARGS_MAX);
}

/* Counts what the connection's unfinished input takes. */
static void count_input(struct tarn_conn *c)
{
    size_t now = tarn_resp_parser_holds(c->parser);
    c->control->holds += now - c->holds;
    c->holds = now;
}

static void refuse_input(struct tarn_conn *c, int code)
{
    tarn_resp_add_error(&c->out, code, tarn_last_error());
    c->state = TARN_CONN_CLOSING;
}

/* Runs requests until input is missing, output waits or the connection's state changes. True: input is
 * missing. */
static bool run_requests(struct tarn_conn *c)
{
    while (c->state == TARN_CONN_READING && out_waiting(c) < OUT_BUSY && !c->nfds) {
        redisReply *request = NULL;
        if (tarn_resp_parser_next(c->parser, &request)) {
            refuse_input(c, TARN_E_PROTOCOL);
            return false;
        }
        count_input(c);
        if (!request)
            return true;
        c->host->ops->run(c, request);
        if (c->session)
            c->session->last_ns = tarn_now_ns();
        admit(c);
    }
    return c->state != TARN_CONN_READING;
}

/* Does what can be done now and says what to wait for. Frees the connection at its end. */
static void advance(struct tarn_conn *c)
{
    bool idle;
    do {
        idle = run_requests(c);
        if (!c->holds_answers && !flush(c)) {
            conn_free(c);
            return;
        }
    } while (!idle && c->state == TARN_CONN_READING && !out_waiting(c));
    if (c->state == TARN_CONN_CLOSING && !out_waiting(c)) {
        conn_free(c);
        return;
    }
    bool reads = c->state == TARN_CONN_READING && out_waiting(c) < OUT_BUSY && !c->nfds;
    bool writes = out_waiting(c) && !c->holds_answers;
    /* Most waits end before more input comes. Until then the watch stays as it is, which saves two calls. */
    bool rests = c->state == TARN_CONN_WAITING && !c->pushed && (c->events & TARN_READABLE);
    int events = (reads || rests ? TARN_READABLE : 0) | (writes ? TARN_WRITABLE : 0);
    if (events != c->events && tarn_watch_set(c->watch, events)) {
        conn_free(c);
        return;
    }
    c->events = events;
}

/* Reads once; the loop comes back while there is more. False at the peer's end. */
static bool take_input(struct tarn_conn *c)
{
    ssize_t n = recv(c->fd, c->control->chunk, READ_BYTES, 0);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    if (n == 0)
        return false;
    admit(c);
    if (tarn_resp_parser_feed(c->parser, c->control->chunk, (size_t)n))
        refuse_input(c, TARN_E_NO_MEMORY);
    count_input(c);
    if (c->control->holds > HOLDS_MAX) {
        tarn_fail(TARN_E_NO_MEMORY, "unfinished requests take more than %u MiB: send smaller ones",
                  HOLDS_MAX >> 20);
        refuse_input(c, TARN_E_NO_MEMORY);
    }
    return true;
}

static void conn_event(void *arg, int events)
{
    struct tarn_conn *c = arg;
    if ((events & TARN_READABLE) && c->state == TARN_CONN_READING && !take_input(c)) {
        conn_free(c);
        return;
    }
    c->pushed |= (events & TARN_READABLE) && c->state == TARN_CONN_WAITING;
    advance(c);
}

void tarn_conn_hold(struct tarn_conn *c)
{
    c->holds_answers = true;
}

void tarn_conn_tell(struct tarn_conn *c)
{
    if (!c->holds_answers)
        return;
    c->holds_answers = false;
    advance(c);
}

void tarn_conn_wait(struct tarn_conn *c, struct tarn_waiter *w)
{
    c->state = TARN_CONN_WAITING;
    c->waiter = w;
}

void tarn_conn_resume(struct tarn_conn *c)
{
    c->state = TARN_CONN_READING;
    c->waiter = NULL;
    c->pushed = c->holds_answers = false;
    advance(c);
}

/* --- listening ---------------------------------------------------------------------------------- */

/* So that a session ends within a minute when its host vanished. */
static void keep_alive(int fd)
{
    int one = 1, idle = 20, interval = 10, count = 3;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

/* Of a Unix socket; uid and pid are -1 when nobody knows. */
static struct ucred peer_process(int fd)
{
    struct ucred who;
    socklen_t bytes = sizeof(who);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes))
        who = (struct ucred){-1, (uid_t)-1, (gid_t)-1};
    return who;
}

static void name_peer(struct tarn_conn *c, const struct sockaddr_storage *a)
{
    char host[INET6_ADDRSTRLEN] = "";
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)a;
        inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
        snprintf(c->peer, sizeof(c->peer), "%s:%u", host, ntohs(in->sin_port));
    } else if (a->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)a;
        inet_ntop(AF_INET6, &in->sin6_addr, host, sizeof(host));
        snprintf(c->peer, sizeof(c->peer), "[%s]:%u", host, ntohs(in->sin6_port));
    } else {
        struct ucred who = peer_process(c->fd);
        snprintf(c->peer, sizeof(c->peer), "unix:uid=%d,pid=%d", (int)who.uid, (int)who.pid);
    }
}

/* The host's user and root can do all that an administrator can anyway. */
static bool is_ours(int fd)
{
    uid_t uid = peer_process(fd).uid;
    return uid == geteuid() || uid == 0;
}

static void conn_new(struct listener *l, int fd, const struct sockaddr_storage *peer)
{
    struct tarn_control *control = l->control;
    struct tarn_conn *c = calloc(1, sizeof(*c));
    if (!c || !(c->parser = tarn_resp_parser_new(EARLY_REQUEST_MAX, EARLY_ARGS_MAX)) ||
        tarn_watch_new(control->host->loop, fd, TARN_READABLE, conn_event, c, &c->watch)) {
        tarn_log(control->host->log, TARN_LOG_WARN, AT, "msg=\"connection refused\" cause=\"out of memory\"");
        if (c)
            tarn_resp_parser_free(c->parser);
        free(c);
        close(fd);
        return;
    }
    c->control = control;
    c->host = control->host;
    c->fd = fd;
    c->events = TARN_READABLE;
    c->local = l->local;
    c->authenticated = !control->host->ops->wants_secret(control->host);
    c->admin = l->local && is_ours(fd);
    c->id = ++control->next_id;
    c->since_ns = tarn_now_ns();
    c->last_command = "-";
    name_peer(c, peer);
    if (!c->local)
        keep_alive(fd);
    control->host->connections++;
    DL_APPEND(control->strangers, c);
}

static void pause_accepting(struct tarn_control *control)
{
    tarn_log(
        control->host->log, TARN_LOG_WARN, AT,
        "msg=\"not accepting connections for a moment\" cause=\"%m\" remedy=\"raise the limit of open files "
        "(ulimit -n, LimitNOFILE=)\"");
    control->paused = true;
    tarn_watch_set(control->tcp.watch, 0);
    tarn_watch_set(control->local.watch, 0);
}

static void accept_some(void *arg, int events)
{
    struct listener *l = arg;
    (void)events;
    for (int i = 0; i < ACCEPT_MAX; i++) {
        struct sockaddr_storage peer = {0};
        socklen_t bytes = sizeof(peer);
        int fd = accept4(l->fd, (struct sockaddr *)&peer, &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0)
            conn_new(l, fd, &peer);
        else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
            return pause_accepting(l->control);
        else if (errno == EAGAIN)
            return;
    }
}

static int listen_on(struct tarn_control *c, struct listener *l, struct tarn_addr *a, bool local)
{
    l->control = c;
    l->local = local;
    int rc = tarn_net_listen(a, &l->fd);
    if (rc)
        return rc;
    return tarn_watch_new(c->host->loop, l->fd, TARN_READABLE, accept_some, l, &l->watch);
}

int tarn_control_start(struct tarn_host *h, struct tarn_addr *listen_addr, const struct tarn_addr *unix_addr,
                       struct tarn_control **c_p)
{
    struct tarn_addr local = *unix_addr;
    struct tarn_control *c = calloc(1, sizeof(*c));
    if (!c)
        return tarn_fail(TARN_E_NO_MEMORY, "control: out of memory");
    c->host = h;
    c->tcp.fd = c->local.fd = -1;
    int rc = listen_on(c, &c->tcp, listen_addr, false);
    if (!rc)
        rc = listen_on(c, &c->local, &local, true);
    if (!rc)
        snprintf(c->unix_path, sizeof(c->unix_path), "%s", local.host);
    if (rc) {
        tarn_control_stop(c);
        return rc;
    }
    *c_p = c;
    return 0;
}

static void stop_listening(struct listener *l)
{
    tarn_watch_free(l->watch);
    if (l->fd >= 0)
        close(l->fd);
}

void tarn_control_stop(struct tarn_control *c)
{
    if (!c)
        return;
    stop_listening(&c->tcp);
    stop_listening(&c->local);
    if (c->unix_path[0])
        unlink(c->unix_path);
    while (c->conns)
        conn_free(c->conns);
    while (c->strangers)
        conn_free(c->strangers);
    free(c);
}

void tarn_control_tick(struct tarn_control *c)
{
    uint64_t now = tarn_now_ns();
    while (c->strangers && now - c->strangers->since_ns > ADMISSION_NS)
        conn_free(c->strangers);
    if (c->paused) {
        c->paused = false;
        tarn_watch_set(c->tcp.watch, TARN_READABLE);
        tarn_watch_set(c->local.watch, TARN_READABLE);
    }
}

void tarn_control_drop(struct tarn_control *c, const struct tarn_session *s)
{
    struct tarn_conn *conn, *next;
    DL_FOREACH_SAFE(c->conns, conn, next)
    {
        if (conn->session == s)
            conn_free(conn);
    }
}

const struct tarn_conn *tarn_control_first(const struct tarn_control *c)
{
    return c->conns;
}
