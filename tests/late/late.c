/* SPDX-License-Identifier: Apache-2.0 */
/*
 * make check-late loads this into all processes of the tests (LD_PRELOAD). It makes threads late at random:
 * some calls that wait or move bytes take up to LATE_US microseconds longer, and some threads stand still
 * behind an unlock. A test that fails then counts on a thread to be quick, or has found a race. LATE_SEED=N
 * which moments; threads that run in another order have others
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { LATE_US = 20000, LATE_UNLOCK_US = 3000 };

static uint64_t new_state(void)
{
    static _Atomic uint64_t threads;
    const char *seed = getenv("LATE_SEED");
    uint64_t base = seed ? strtoull(seed, NULL, 10) : 0;
    return (base + (uint64_t)getpid() * 1000003 + ++threads) * 0x9e3779b97f4a7c15u | 1;
}

/* In `of` of 1000 calls of this, the thread sleeps. */
static void be_late(unsigned of, unsigned most_us)
{
    static _Thread_local uint64_t x;
    int error = errno;
    if (!x)
        x = new_state();
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    if ((x >> 20) % 1000 < of)
        clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){.tv_nsec = (long)((x >> 33) % most_us) * 1000},
                        NULL);
    errno = error;
}

/* The C library's own function. */
static void *own(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

int epoll_wait(int fd, struct epoll_event *events, int most, int ms)
{
    static int (*f)(int, struct epoll_event *, int, int);
    if (!f)
        f = (int (*)(int, struct epoll_event *, int, int))own("epoll_wait");
    int n = f(fd, events, most, ms);
    be_late(60, LATE_US);
    return n;
}

int poll(struct pollfd *fds, nfds_t n, int ms)
{
    static int (*f)(struct pollfd *, nfds_t, int);
    if (!f)
        f = (int (*)(struct pollfd *, nfds_t, int))own("poll");
    int rc = f(fds, n, ms);
    be_late(60, LATE_US);
    return rc;
}

int connect(int fd, const struct sockaddr *to, socklen_t bytes)
{
    static int (*f)(int, const struct sockaddr *, socklen_t);
    if (!f)
        f = (int (*)(int, const struct sockaddr *, socklen_t))own("connect");
    be_late(50, LATE_US);
    return f(fd, to, bytes);
}

ssize_t recv(int fd, void *to, size_t bytes, int flags)
{
    static ssize_t (*f)(int, void *, size_t, int);
    if (!f)
        f = (ssize_t(*)(int, void *, size_t, int))own("recv");
    be_late(10, LATE_US);
    return f(fd, to, bytes, flags);
}

ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
    static ssize_t (*f)(int, struct msghdr *, int);
    if (!f)
        f = (ssize_t(*)(int, struct msghdr *, int))own("recvmsg");
    be_late(10, LATE_US);
    return f(fd, m, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
    static ssize_t (*f)(int, const struct msghdr *, int);
    if (!f)
        f = (ssize_t(*)(int, const struct msghdr *, int))own("sendmsg");
    be_late(10, LATE_US);
    return f(fd, m, flags);
}

int pthread_mutex_unlock(pthread_mutex_t *lock)
{
    static int (*f)(pthread_mutex_t *);
    if (!f)
        f = (int (*)(pthread_mutex_t *))own("pthread_mutex_unlock");
    int rc = f(lock);
    be_late(1, LATE_UNLOCK_US);
    return rc;
}
