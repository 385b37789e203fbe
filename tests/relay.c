/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/relay.h"

#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/harness.h"

enum { PAIRS = 64, PENDING = 512 << 10, NAME = 16, LOG = 8192, LATE = 4096 };

struct pair {
    int client, node; /* -1: closed */
    char *pending;    /* commands not yet forwarded */
    size_t bytes;
    bool cut; /* replies are held back after `let` bytes */
    size_t let, nlate;
    char late[LATE]; /* what is held back */
};

struct relay {
    char path[128], behind[140], address[160];
    int listener, wake[2];
    pthread_t thread;
    pthread_mutex_t lock; /* protects the fields below */
    struct pair pairs[PAIRS];
    int npairs;
    char hold[NAME], cut[NAME];
    size_t cut_at;
    const char *answered, *answer; /* commands of this name get this answer from the relay; NULL: none do */
    char log[LOG][NAME];
    unsigned nlog;
    bool stop;
};

/* --- commands ----------------------------------------------------------------------------------- */

/* Reads the number after the sign at *at and moves *at past its line. -1: the line is incomplete. */
static long number(const char *from, size_t bytes, size_t *at, char sign)
{
    const char *end = *at < bytes && from[*at] == sign ? memchr(from + *at, '\n', bytes - *at) : NULL;
    if (!end)
        return -1;
    long n = strtol(from + *at + 1, NULL, 10);
    *at = (size_t)(end - from) + 1;
    return n;
}

/* The size of the first command, or 0 if it is incomplete. Copies the command's argument `want` to text. */
static size_t command(const char *from, size_t bytes, unsigned want, char *text, size_t room)
{
    size_t at = 0;
    long n = number(from, bytes, &at, '*');
    text[0] = '\0';
    for (long i = 0; i < n; i++) {
        long len = number(from, bytes, &at, '$');
        if (len < 0 || (size_t)len + 2 > bytes - at)
            return 0;
        if ((unsigned)i == want)
            snprintf(text, room, "%.*s", (int)len, from + at);
        at += (size_t)len + 2;
    }
    return n < 0 ? 0 : at;
}

static bool send_all(int fd, const char *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = send(fd, data, bytes, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        data += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* Forwards the commands that are not held, and the first `held` of those that are. The caller holds the
 * lock. */
static void pass_on(struct relay *r, struct pair *p, unsigned held)
{
    char name[NAME];
    size_t n;
    while ((n = command(p->pending, p->bytes, 0, name, sizeof name)) > 0) {
        if (strcmp(name, r->hold) == 0 && held-- == 0)
            return;
        bool here = r->answered && strcmp(name, r->answered) == 0;
        if (!here && r->nlog < LOG)
            memcpy(r->log[r->nlog++], name, sizeof name);
        int to = here ? p->client : p->node;
        if (r->cut[0] && strcmp(name, r->cut) == 0) {
            p->cut = true;
            p->let = r->cut_at;
        }
        if (to < 0 || !send_all(to, here ? r->answer : p->pending, here ? strlen(r->answer) : n))
            return;
        p->bytes -= n;
        memmove(p->pending, p->pending + n, p->bytes);
    }
}

/* --- connections -------------------------------------------------------------------------------- */

static int connect_to(const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(at.sun_path, sizeof at.sun_path, "%.107s", path);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&at, sizeof at)) {
        close(fd);
        return -1;
    }
    return fd;
}

static void pair_open(struct relay *r)
{
    int client = accept4(r->listener, NULL, NULL, SOCK_CLOEXEC);
    int node = client < 0 ? -1 : connect_to(r->behind);
    char *pending = node < 0 || r->npairs == PAIRS ? NULL : malloc(PENDING);
    if (pending) {
        r->pairs[r->npairs++] = (struct pair){.client = client, .node = node, .pending = pending};
        return;
    }
    if (client >= 0)
        close(client);
    if (node >= 0)
        close(node);
}

static void pair_close(struct pair *p)
{
    if (p->client >= 0)
        close(p->client);
    if (p->node >= 0)
        close(p->node);
    p->client = p->node = -1;
}

static void from_client(struct relay *r, struct pair *p)
{
    ssize_t n = recv(p->client, p->pending + p->bytes, PENDING - p->bytes, 0);
    if (n <= 0) {
        pair_close(p);
        return;
    }
    p->bytes += (size_t)n;
    pass_on(r, p, 0);
}

/* Returns how much of a reply is forwarded now, and keeps the rest. */
static size_t cut_off(struct pair *p, const char *data, size_t bytes)
{
    size_t now = bytes < p->let ? bytes : p->let, rest = bytes - now;
    assert_true(rest <= LATE - p->nlate);
    memcpy(p->late + p->nlate, data + now, rest);
    p->nlate += rest;
    p->let -= now;
    return now;
}

static void from_node(struct pair *p)
{
    char data[65536];
    ssize_t n = recv(p->node, data, sizeof data, 0);
    if (n <= 0 || !send_all(p->client, data, p->cut ? cut_off(p, data, (size_t)n) : (size_t)n))
        pair_close(p);
}

static void *relay_thread(void *arg)
{
    struct relay *r = arg;
    struct pollfd fds[2 + 2 * PAIRS];
    pthread_mutex_lock(&r->lock);
    while (!r->stop) {
        int n = r->npairs;
        char drain[64];
        fds[0] = (struct pollfd){r->listener, POLLIN, 0};
        fds[1] = (struct pollfd){r->wake[0], POLLIN, 0};
        for (int i = 0; i < n; i++) {
            fds[2 + 2 * i] = (struct pollfd){r->pairs[i].client, POLLIN, 0};
            fds[3 + 2 * i] = (struct pollfd){r->pairs[i].node, POLLIN, 0};
        }
        pthread_mutex_unlock(&r->lock);
        poll(fds, (nfds_t)(2 + 2 * n), -1);
        pthread_mutex_lock(&r->lock);
        if (fds[1].revents && read(r->wake[0], drain, sizeof drain) > 0)
            for (int i = 0; i < n; i++)
                pass_on(r, &r->pairs[i], 0);
        for (int i = 0; i < n; i++) {
            if (fds[3 + 2 * i].revents && r->pairs[i].node >= 0)
                from_node(&r->pairs[i]);
            if (fds[2 + 2 * i].revents && r->pairs[i].client >= 0)
                from_client(r, &r->pairs[i]);
        }
        if (fds[0].revents)
            pair_open(r);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static void wake(struct relay *r)
{
    assert_int_equal(write(r->wake[1], "", 1), 1);
}

struct relay *relay_start(const char *path)
{
    struct relay *r = calloc(1, sizeof *r);
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    assert_non_null(r);
    snprintf(r->path, sizeof r->path, "%s", path);
    snprintf(r->behind, sizeof r->behind, "%s.node", path);
    snprintf(r->address, sizeof r->address, "unix:%s", r->behind);
    snprintf(at.sun_path, sizeof at.sun_path, "%.107s", path);
    assert_int_equal(rename(r->path, r->behind), 0);
    r->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(r->listener, (const struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(r->listener, PAIRS), 0);
    assert_int_equal(pipe(r->wake), 0);
    pthread_mutex_init(&r->lock, NULL);
    assert_int_equal(pthread_create(&r->thread, NULL, relay_thread, r), 0);
    return r;
}

void relay_stop(struct relay *r)
{
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_mutex_unlock(&r->lock);
    wake(r);
    pthread_join(r->thread, NULL);
    for (int i = 0; i < r->npairs; i++) {
        pair_close(&r->pairs[i]);
        free(r->pairs[i].pending);
    }
    close(r->listener);
    close(r->wake[0]);
    close(r->wake[1]);
    rename(r->behind, r->path);
    free(r);
}

const char *relay_node(const struct relay *r)
{
    return r->address;
}

/* --- what a test calls -------------------------------------------------------------------------- */

void relay_hold(struct relay *r, const char *name)
{
    pthread_mutex_lock(&r->lock);
    snprintf(r->hold, sizeof r->hold, "%s", name ? name : "");
    pthread_mutex_unlock(&r->lock);
    wake(r);
}

void relay_answer(struct relay *r, const char *name, const char *bytes)
{
    pthread_mutex_lock(&r->lock);
    r->answered = name;
    r->answer = bytes;
    pthread_mutex_unlock(&r->lock);
}

void relay_pass(struct relay *r)
{
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < r->npairs; i++)
        pass_on(r, &r->pairs[i], 1);
    pthread_mutex_unlock(&r->lock);
}

void relay_break(struct relay *r)
{
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < r->npairs; i++)
        pair_close(&r->pairs[i]);
    pthread_mutex_unlock(&r->lock);
    wake(r); /* poll() keeps closed sockets open */
}

unsigned relay_held(struct relay *r, const char *name)
{
    unsigned held = 0;
    char first[NAME];
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < r->npairs; i++)
        held += command(r->pairs[i].pending, r->pairs[i].bytes, 0, first, sizeof first) > 0 &&
                strcmp(first, name) == 0;
    pthread_mutex_unlock(&r->lock);
    return held;
}

void relay_argument(struct relay *r, const char *name, unsigned i, char *text, size_t bytes)
{
    char first[NAME];
    text[0] = '\0';
    pthread_mutex_lock(&r->lock);
    for (int k = 0; k < r->npairs && !text[0]; k++)
        if (command(r->pairs[k].pending, r->pairs[k].bytes, 0, first, sizeof first) > 0 &&
            strcmp(first, name) == 0)
            command(r->pairs[k].pending, r->pairs[k].bytes, i, text, bytes);
    pthread_mutex_unlock(&r->lock);
}

unsigned relay_when(struct relay *r, const char *name, unsigned n)
{
    unsigned when = 0;
    pthread_mutex_lock(&r->lock);
    for (unsigned i = 0; i < r->nlog && when == 0; i++)
        if (strcmp(r->log[i], name) == 0 && --n == 0)
            when = i + 1;
    pthread_mutex_unlock(&r->lock);
    return when;
}

unsigned relay_passed(struct relay *r, const char *name)
{
    unsigned n = 0;
    pthread_mutex_lock(&r->lock);
    for (unsigned i = 0; i < r->nlog; i++)
        n += name[0] == '\0' || strcmp(r->log[i], name) == 0;
    pthread_mutex_unlock(&r->lock);
    return n;
}

void relay_cut(struct relay *r, const char *name, size_t bytes)
{
    pthread_mutex_lock(&r->lock);
    snprintf(r->cut, sizeof r->cut, "%s", name ? name : "");
    r->cut_at = bytes;
    for (int i = 0; !name && i < r->npairs; i++) {
        struct pair *p = &r->pairs[i];
        p->cut = false;
        if (p->client >= 0 && !send_all(p->client, p->late, p->nlate))
            pair_close(p);
        p->nlate = 0;
    }
    pthread_mutex_unlock(&r->lock);
}
