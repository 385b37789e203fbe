/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client side of RESP.
 *
 *   append -> out --send--> socket --recv--> in --16 KiB slices--> redisReader -> replies
 *
 * Commands gather in `out` until a read or flush. One recv takes all that has come. The reader is fed in
 * slices: after each consumed KiB it moves its unread rest to the front, which would cost more than parsing
 * if it held a long pipeline.
 */
#include "base/resp/resp.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

#define IN_ROOM (64 * 1024)
#define IN_ROOM_MAX (1024 * 1024) /* a read grows it up to this; a flush may go beyond */
#define SLICE (16 * 1024)
#define RECEIVES_MAX 64 /* in one tarn_resp_try() */

struct tarn_resp {
    int fd;
    bool is_unix;
    struct tarn_reason failure; /* code not 0: useless from now on. The text is without `peer` */
    redisReader *reader;
    struct tarn_buf out;
    size_t sent;                 /* of out */
    struct tarn_command command; /* for tarn_resp_command() */
    char *in;
    size_t in_at, in_end, in_room; /* in[in_at..in_end) was received and not yet fed */
    uint64_t owed;                 /* replies to what was appended */
    int fds[TARN_RESP_FDS_MAX];
    int nfds;
    char peer[300];
};

int tarn_resp_connect(const struct tarn_addr *a, uint64_t deadline_ns, struct tarn_cancel *cancel,
                      struct tarn_resp **r_p)
{
    struct tarn_resp *r = calloc(1, sizeof *r);

    if (!r)
        goto no_memory;
    r->fd = -1;
    r->is_unix = a->is_unix;
    r->in_room = IN_ROOM;
    r->in = malloc(IN_ROOM);
    r->reader = redisReaderCreate();
    if (!r->in || !r->reader)
        goto no_memory;
    r->reader->maxbuf = IN_ROOM;
    tarn_addr_format(a, r->peer, sizeof r->peer);
    int rc = tarn_net_connect(a, deadline_ns, cancel, &r->fd), error = errno;
    if (rc != 0) {
        tarn_resp_free(r);
        errno = error;
        return rc;
    }
    *r_p = r;
    return 0;

no_memory:
    tarn_resp_free(r);
    return tarn_fail(TARN_E_NO_MEMORY, "out of memory for a connection");
}

void tarn_resp_free(struct tarn_resp *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->nfds; i++)
        close(r->fds[i]);
    if (r->fd >= 0)
        close(r->fd);
    if (r->reader)
        redisReaderFree(r->reader);
    tarn_buf_free(&r->out);
    tarn_command_free(&r->command);
    free(r->in);
    free(r);
}

int tarn_resp_fd(const struct tarn_resp *r)
{
    return r->fd;
}

const char *tarn_resp_cause(const struct tarn_resp *r)
{
    return r->failure.text;
}

redisReader *tarn_resp_reader(struct tarn_resp *r)
{
    return r->reader;
}

bool tarn_resp_dead(const struct tarn_resp *r)
{
    char byte;

    if (r->failure.code)
        return true;
    if (r->owed == 0 && (r->in_at < r->in_end || r->reader->len > r->reader->pos))
        return true;
    ssize_t n = recv(r->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0)
        return errno != EAGAIN && errno != EINTR;
    return n == 0 || r->owed == 0;
}

/* --- sending ------------------------------------------------------------------------------------ */

void tarn_resp_push(struct tarn_resp *r)
{
    while (r->sent < r->out.bytes) {
        ssize_t n = send(r->fd, r->out.data + r->sent, r->out.bytes - r->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EINTR)
            return;
        r->sent += n > 0 ? (size_t)n : 0;
    }
    r->out.bytes = r->sent = 0;
}

/* The peer begins while a long pipeline is still written. */
int tarn_resp_append_command(struct tarn_resp *r, const struct tarn_command *c)
{
    size_t before = r->out.bytes;

    tarn_resp_add_array(&r->out, c->n);
    tarn_buf_add(&r->out, c->strings.data, c->strings.bytes);
    if (r->out.failed || c->strings.failed) {
        r->out.failed = false;
        r->out.bytes = before;
        return tarn_fail(TARN_E_NO_MEMORY, "%s: out of memory for a command", r->peer);
    }
    r->owed++;
    if (r->out.bytes - r->sent >= SLICE)
        tarn_resp_push(r);
    return 0;
}

struct tarn_command *tarn_resp_command(struct tarn_resp *r, ...)
{
    va_list strings;

    tarn_command_empty(&r->command);
    va_start(strings, r);
    tarn_command_vstrs(&r->command, strings);
    va_end(strings);
    return &r->command;
}

int tarn_resp_append_strs(struct tarn_resp *r, ...)
{
    va_list strings;

    tarn_command_empty(&r->command);
    va_start(strings, r);
    tarn_command_vstrs(&r->command, strings);
    va_end(strings);
    return tarn_resp_append_command(r, &r->command);
}

/* The connection is useless from now on. */
static int fail(struct tarn_resp *r, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int fail(struct tarn_resp *r, int code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(r->failure.text, sizeof r->failure.text, fmt, ap);
    va_end(ap);
    r->failure.code = code;
    return tarn_fail(code, "%s: %s", r->peer, r->failure.text);
}

static int closed(struct tarn_resp *r, int error)
{
    return fail(r, TARN_E_NODE_DOWN, "%s", error ? strerror(error) : "closed the connection");
}

static int timed_out(struct tarn_resp *r)
{
    return fail(r, TARN_E_TIMEOUT, "no answer before the deadline");
}

static int wait_for(struct tarn_resp *r, short events, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    int rc = tarn_net_wait(r->fd, events, deadline_ns, cancel);
    if (rc == TARN_E_TIMEOUT)
        return timed_out(r);
    return rc ? tarn_reason_keep(&r->failure, rc) : 0;
}

/* Keeps the descriptors of one message; too many of them are the peer's fault. */
static int keep_fds(struct tarn_resp *r, struct msghdr *m)
{
    bool lost = m->msg_flags & MSG_CTRUNC;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (r->nfds < TARN_RESP_FDS_MAX) {
                r->fds[r->nfds++] = fd;
            } else {
                close(fd);
                lost = true;
            }
        }
    }
    return !lost ? 0
                 : fail(r, TARN_E_PROTOCOL,
                        "sent file descriptors that could not be taken: more than %d, or the "
                        "limit of open files (ulimit -n) is reached",
                        TARN_RESP_FDS_MAX);
}

static ssize_t receive_with_fds(struct tarn_resp *r, char *to, size_t room, int *rc_p)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * TARN_RESP_FDS_MAX)];
    } control;
    struct iovec iov = {.iov_base = to, .iov_len = room};
    struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t n = recvmsg(r->fd, &m, MSG_CMSG_CLOEXEC);

    *rc_p = n < 0 ? 0 : keep_fds(r, &m);
    return n;
}

static bool grow_in(struct tarn_resp *r)
{
    char *in = realloc(r->in, r->in_room * 2);
    if (!in)
        return false;
    r->in = in;
    r->in_room *= 2;
    return true;
}

/* Takes what has arrived behind what is in `in`. *got_p: bytes; 0 when nothing is there now. At EOF it fails.
 */
static int receive(struct tarn_resp *r, size_t *got_p)
{
    ssize_t n;
    int rc = 0;

    *got_p = 0;
    if (r->in_end == r->in_room && !grow_in(r))
        return fail(r, TARN_E_NO_MEMORY, "out of memory for %zu bytes of replies", r->in_room * 2);
    do {
        if (r->is_unix)
            n = receive_with_fds(r, r->in + r->in_end, r->in_room - r->in_end, &rc);
        else
            n = recv(r->fd, r->in + r->in_end, r->in_room - r->in_end, 0);
    } while (n < 0 && errno == EINTR);
    if (rc != 0)
        return rc;
    if (n < 0 && errno == EAGAIN)
        return 0;
    if (n <= 0)
        return closed(r, n < 0 ? errno : 0);
    r->in_end += (size_t)n;
    *got_p = (size_t)n;
    return 0;
}

int tarn_resp_flush(struct tarn_resp *r, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    while (r->sent < r->out.bytes) {
        ssize_t n = send(r->fd, r->out.data + r->sent, r->out.bytes - r->sent, MSG_NOSIGNAL);
        if (n >= 0) {
            r->sent += (size_t)n;
            continue;
        }
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN)
            return closed(r, errno);

        size_t got = 0;
        int rc = receive(r, &got);
        if (rc == 0 && got == 0)
            rc = wait_for(r, POLLIN | POLLOUT, deadline_ns, cancel);
        if (rc != 0)
            return rc;
    }
    r->out.bytes = r->sent = 0;
    return 0;
}

/* --- reading ------------------------------------------------------------------------------------ */

static int reader_failed(struct tarn_resp *r)
{
    if (r->reader->err == REDIS_ERR_OOM)
        return fail(r, TARN_E_NO_MEMORY, "out of memory for a reply");
    return fail(r, TARN_E_PROTOCOL, "does not speak RESP: %s", r->reader->errstr);
}

/* The next reply out of what was received, or NULL when it is not complete. */
static int parse(struct tarn_resp *r, redisReply **reply_p)
{
    void *reply = NULL;

    for (;;) {
        if (redisReaderGetReply(r->reader, &reply) != REDIS_OK)
            return reader_failed(r);
        if (reply || r->in_at == r->in_end)
            break;
        size_t slice = r->in_end - r->in_at < SLICE ? r->in_end - r->in_at : SLICE;
        if (redisReaderFeed(r->reader, r->in + r->in_at, slice) != REDIS_OK)
            return reader_failed(r);
        r->in_at += slice;
    }
    if (r->in_at == r->in_end)
        r->in_at = r->in_end = 0;
    *reply_p = reply;
    return 0;
}

/* Receives, waiting if nothing has come. If that fills the buffer, it is made larger for the next time. */
static int receive_some(struct tarn_resp *r, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    for (;;) {
        size_t got = 0;
        int rc = receive(r, &got);
        if (rc != 0)
            return rc;
        if (got) {
            /* Failing to grow only means more system calls. */
            if (r->in_end == r->in_room && r->in_room < IN_ROOM_MAX)
                grow_in(r);
            return 0;
        }
        rc = wait_for(r, POLLIN, deadline_ns, cancel);
        if (rc != 0)
            return rc;
    }
}

/*
 * A server that refuses a connection says why and closes it. Its words may have arrived although sending
 * failed; then they are the reply. Otherwise the failure of the flush stays.
 */
static int last_words(struct tarn_resp *r, redisReply **reply_p)
{
    struct tarn_reason why = r->failure;
    size_t got = 0;

    receive(r, &got);
    if (parse(r, reply_p) == 0 && *reply_p)
        return 0;
    return fail(r, why.code, "%s", why.text);
}

int tarn_resp_read(struct tarn_resp *r, uint64_t deadline_ns, struct tarn_cancel *cancel,
                   redisReply **reply_p)
{
    redisReply *reply = NULL;
    int rc = tarn_resp_flush(r, deadline_ns, cancel);

    if (rc == TARN_E_NODE_DOWN)
        rc = last_words(r, &reply);
    for (bool late = false; rc == 0 && !reply;) {
        rc = parse(r, &reply);
        if (rc != 0 || reply)
            break;
        rc = late ? timed_out(r) : receive_some(r, deadline_ns, cancel);
        late = !tarn_left_ms(deadline_ns); /* a peer that never ends is given up, too */
    }
    if (rc != 0)
        return rc;
    r->owed -= r->owed > 0;
    *reply_p = reply;
    return 0;
}

bool tarn_resp_unsent(const struct tarn_resp *r)
{
    return r->sent < r->out.bytes;
}

int tarn_resp_try(struct tarn_resp *r, redisReply **reply_p)
{
    redisReply *reply = NULL;
    size_t got = 1;
    int rc = 0;

    tarn_resp_push(r);
    /* Only so often: a peer may never end, and the caller looks at its deadline. */
    for (int i = 0; rc == 0 && !(rc = parse(r, &reply)) && !reply && got && i < RECEIVES_MAX; i++)
        rc = receive(r, &got);
    if (rc == 0 && !reply)
        return TARN_E_AGAIN;
    r->owed -= r->owed > 0 && rc == 0;
    *reply_p = reply;
    return rc;
}

int tarn_resp_call(struct tarn_resp *r, uint64_t deadline_ns, const struct tarn_command *c,
                   redisReply **reply_p)
{
    int rc = tarn_resp_append_command(r, c);
    return rc ? rc : tarn_resp_read(r, deadline_ns, NULL, reply_p);
}

int tarn_resp_take_fds(struct tarn_resp *r, int *fds, int max)
{
    int n = r->nfds < max ? r->nfds : max;

    memcpy(fds, r->fds, (size_t)n * sizeof *fds);
    r->nfds -= n;
    memmove(r->fds, r->fds + n, (size_t)r->nfds * sizeof *fds);
    return n;
}

int tarn_resp_error(const redisReply *reply, const char *who, int unknown)
{
    if (reply->type != REDIS_REPLY_ERROR)
        return 0;

    const char *text = reply->str;
    size_t word = strcspn(text, " ");
    int code = tarn_error_parse(text, word, 0);
    if (code == 0)
        return tarn_fail(unknown, "%s: %s", who, text);
    return tarn_fail(code, "%s: %s", who, text[word] ? text + word + 1 : tarn_strerror(code));
}
