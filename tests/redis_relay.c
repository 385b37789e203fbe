/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/redis_relay.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/node_client.h"

static int connect_unix(const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(at.sun_path, sizeof(at.sun_path), "%.107s", path);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof(at))) {
        close(fd);
        return -1;
    }
    return fd;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void from_node(struct redis_relay *r, int i)
{
    char data[16384];
    ssize_t n = recv(r->pairs[i].node, data, sizeof(data), 0);
    if (n > 0 && r->holding < 0 && memmem(data, (size_t)n, r->word, strlen(r->word)) &&
        atomic_exchange(&r->armed, false))
        r->holding = i;
    if (n <= 0) {
        close_fd(&r->pairs[i].node);
        if (i != r->holding)
            close_fd(&r->pairs[i].redis);
    } else if (i != r->holding) {
        raw_send(r->pairs[i].redis, data, (size_t)n);
    } else if (r->nheld + (size_t)n <= RELAY_HELD_MAX) {
        memcpy(r->held + r->nheld, data, (size_t)n);
        r->nheld += (size_t)n;
    }
}

static void from_redis(struct redis_relay *r, int i)
{
    char data[16384];
    ssize_t n = recv(r->pairs[i].redis, data, sizeof(data), 0);
    if (n > 0 && r->pairs[i].node >= 0)
        raw_send(r->pairs[i].node, data, (size_t)n);
    if (n <= 0) {
        close_fd(&r->pairs[i].redis);
        close_fd(&r->pairs[i].node);
    }
    if (i == r->holding && r->deliver)
        r->delivered = true; /* Redis has answered, or closed the connection */
}

static void deliver(struct redis_relay *r)
{
    int fd = r->pairs[r->holding].redis;
    if (fd >= 0)
        raw_send(fd, r->held, r->nheld);
    else
        r->delivered = true;
    r->nheld = 0;
}

static void *relay_thread(void *arg)
{
    struct redis_relay *r = arg;
    while (!r->stop) {
        struct pollfd p[1 + 2 * RELAY_PAIRS_MAX] = {{.fd = r->listener, .events = POLLIN}};
        int n = r->npairs;
        for (int i = 0; i < n; i++) {
            p[1 + 2 * i] = (struct pollfd){.fd = r->pairs[i].node, .events = POLLIN};
            p[2 + 2 * i] = (struct pollfd){.fd = r->pairs[i].redis, .events = POLLIN};
        }
        poll(p, (nfds_t)(1 + 2 * n), 10);
        for (int i = 0; i < n; i++) {
            if (p[1 + 2 * i].revents && r->pairs[i].node >= 0)
                from_node(r, i);
            if (p[2 + 2 * i].revents && r->pairs[i].redis >= 0)
                from_redis(r, i);
        }
        if (r->deliver && r->holding >= 0 && r->nheld)
            deliver(r);
        if (p[0].revents && n < RELAY_PAIRS_MAX) {
            r->pairs[n].node = accept4(r->listener, NULL, NULL, SOCK_CLOEXEC);
            r->pairs[n].redis = connect_unix(r->redis_path);
            r->npairs++;
        }
    }
    for (int i = 0; i < r->npairs; i++) {
        close_fd(&r->pairs[i].node);
        close_fd(&r->pairs[i].redis);
    }
    return NULL;
}

struct redis_relay *redis_relay_start(struct harness *h, const char *redis_path, const char *word)
{
    struct redis_relay *r = calloc(1, sizeof(*r));
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    assert_non_null(r);
    snprintf(r->redis_path, sizeof(r->redis_path), "%s", redis_path);
    r->word = word;
    r->holding = -1;
    snprintf(r->path, sizeof(r->path), "%s", harness_path(h, "relay.sock"));
    snprintf(at.sun_path, sizeof(at.sun_path), "%.107s", r->path);
    r->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(r->listener, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(r->listener, 16), 0);
    assert_int_equal(pthread_create(&r->thread, NULL, relay_thread, r), 0);
    return r;
}

void redis_relay_end(struct redis_relay *r)
{
    r->stop = true;
    pthread_join(r->thread, NULL);
    close_fd(&r->listener);
    unlink(r->path);
    free(r);
}
