/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event loop. Other threads reach it through the queue of posted calls, the only thing here with a lock,
 * and the eventfd that wakes it. A watch may be freed by any callback, also while epoll has told of it
 * already: it is marked then, and its memory is freed when all that epoll told of has been looked at.
 */
#include "base/loop.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/error.h"

enum { EVENTS = 64 };

struct posted {
    struct posted *next;
    tarn_call_fn fn;
    void *arg;
};

struct tarn_watch {
    struct tarn_loop *loop;
    struct tarn_watch *next_freed;
    int fd, timer_fd; /* timer_fd: its own, -1 for none */
    int events;       /* TARN_READABLE | TARN_WRITABLE */
    bool freed;
    tarn_watch_fn fn;
    tarn_call_fn call; /* of a timer, in place of fn */
    void *arg;
};

struct tarn_loop {
    int epoll_fd, wake_fd;
    struct tarn_watch *wake, *freed;
    atomic_bool stopping;
    pthread_mutex_t lock; /* of the queue */
    struct posted *first, **last_next;
};

/* --- posted calls ------------------------------------------------------------------------------- */

static void wake(struct tarn_loop *l)
{
    uint64_t one = 1;

    /* EAGAIN means that the counter is full, so the loop is being woken already. */
    while (write(l->wake_fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

int tarn_loop_post(struct tarn_loop *l, tarn_call_fn fn, void *arg)
{
    struct posted *p = malloc(sizeof *p);
    if (!p)
        return tarn_fail(TARN_E_NO_MEMORY, "out of memory for a call on the event loop");

    *p = (struct posted){.fn = fn, .arg = arg};
    pthread_mutex_lock(&l->lock);
    bool first = !l->first;
    *l->last_next = p;
    l->last_next = &p->next;
    if (first)
        wake(l); /* inside the lock: once it is released the loop may run the call and be freed */
    pthread_mutex_unlock(&l->lock);
    return 0;
}

static struct posted *take_posted(struct tarn_loop *l)
{
    pthread_mutex_lock(&l->lock);
    struct posted *p = l->first;
    l->first = NULL;
    l->last_next = &l->first;
    pthread_mutex_unlock(&l->lock);
    return p;
}

/* Runs one batch; what these calls post comes with the next. False when there was nothing. */
static bool run_posted(struct tarn_loop *l)
{
    struct posted *p = take_posted(l);
    bool any = p != NULL;

    while (p) {
        struct posted *next = p->next;
        p->fn(p->arg);
        free(p);
        p = next;
    }
    return any;
}

static void on_wake(void *arg, int events)
{
    struct tarn_loop *l = arg;
    uint64_t count;

    (void)events;
    while (read(l->wake_fd, &count, sizeof count) < 0 && errno == EINTR)
        ;
    run_posted(l);
}

/* --- the loop ----------------------------------------------------------------------------------- */

int tarn_loop_new(struct tarn_loop **l_p)
{
    struct tarn_loop *l = calloc(1, sizeof *l);
    if (!l)
        return tarn_fail(TARN_E_NO_MEMORY, "out of memory for an event loop");

    l->last_next = &l->first;
    pthread_mutex_init(&l->lock, NULL);
    l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    l->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int rc = l->epoll_fd < 0 || l->wake_fd < 0
                 ? tarn_fail(TARN_E_SYSTEM, "event loop: %m: is the limit of open files (ulimit -n) reached?")
                 : tarn_watch_new(l, l->wake_fd, TARN_READABLE, on_wake, l, &l->wake);
    if (rc == 0)
        *l_p = l;
    else
        tarn_loop_free(l);
    return rc;
}

static void free_watches(struct tarn_loop *l)
{
    while (l->freed) {
        struct tarn_watch *w = l->freed;
        l->freed = w->next_freed;
        free(w);
    }
}

void tarn_loop_free(struct tarn_loop *l)
{
    if (!l)
        return;
    for (struct posted *p = take_posted(l), *next; p; p = next) {
        next = p->next;
        free(p);
    }
    tarn_watch_free(l->wake);
    free_watches(l);
    if (l->wake_fd >= 0)
        close(l->wake_fd);
    if (l->epoll_fd >= 0)
        close(l->epoll_fd);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

static void dispatch(struct tarn_watch *w, uint32_t told)
{
    uint64_t ticks;
    bool broken = told & (EPOLLERR | EPOLLHUP);
    int events =
        (told & EPOLLIN || broken ? TARN_READABLE : 0) | (told & EPOLLOUT || broken ? TARN_WRITABLE : 0);

    events &= w->events;
    if (w->freed || events == 0) /* an earlier callback of this round has freed or changed it */
        return;
    if (!w->call)
        w->fn(w->arg, events);
    else if (read(w->timer_fd, &ticks, sizeof ticks) == sizeof ticks)
        w->call(w->arg);
}

void tarn_loop_run(struct tarn_loop *l)
{
    while (!atomic_load(&l->stopping)) {
        struct epoll_event events[EVENTS];
        int n = epoll_wait(l->epoll_fd, events, EVENTS, -1);
        for (int i = 0; i < n; i++)
            dispatch(events[i].data.ptr, events[i].events);
        free_watches(l);
    }
    while (run_posted(l))
        ;
    atomic_store(&l->stopping, false);
}

void tarn_loop_stop(struct tarn_loop *l)
{
    /* As in tarn_loop_post: the lock keeps the loop from being freed before it has been woken. */
    pthread_mutex_lock(&l->lock);
    atomic_store(&l->stopping, true);
    wake(l);
    pthread_mutex_unlock(&l->lock);
}

/* --- watches, timers ---------------------------------------------------------------------------- */

/* Tells epoll what the watch waits for, in place of `before`. */
static int tell(struct tarn_watch *w, int before)
{
    struct epoll_event e = {.events = (w->events & TARN_READABLE ? EPOLLIN : 0) |
                                      (w->events & TARN_WRITABLE ? EPOLLOUT : 0),
                            .data.ptr = w};
    int op = !w->events ? EPOLL_CTL_DEL : before ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;

    if (w->events == before || epoll_ctl(w->loop->epoll_fd, op, w->fd, &e) == 0)
        return 0;
    return tarn_fail(TARN_E_SYSTEM, "event loop: descriptor %d cannot be watched: %m", w->fd);
}

static int new_watch(const struct tarn_watch *as, struct tarn_watch **w_p)
{
    struct tarn_watch *w = malloc(sizeof *w);
    if (!w)
        return tarn_fail(TARN_E_NO_MEMORY, "out of memory for a watch of the event loop");
    *w = *as;
    int rc = tell(w, 0);
    if (rc == 0)
        *w_p = w;
    else
        free(w);
    return rc;
}

int tarn_watch_new(struct tarn_loop *l, int fd, int events, tarn_watch_fn fn, void *arg,
                   struct tarn_watch **w_p)
{
    struct tarn_watch as = {.loop = l, .fd = fd, .timer_fd = -1, .events = events, .fn = fn, .arg = arg};
    return new_watch(&as, w_p);
}

int tarn_timer_new(struct tarn_loop *l, uint32_t period_ms, tarn_call_fn fn, void *arg,
                   struct tarn_watch **w_p)
{
    struct timespec period = {.tv_sec = period_ms / 1000, .tv_nsec = period_ms % 1000 * 1000000};
    struct itimerspec spec = {period, period};
    int fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);

    if (fd < 0 || timerfd_settime(fd, 0, &spec, NULL) != 0) {
        int rc = tarn_fail(TARN_E_SYSTEM, "event loop: timer: %m: is the limit of open files reached?");
        if (fd >= 0)
            close(fd);
        return rc;
    }
    struct tarn_watch as = {
        .loop = l, .fd = fd, .timer_fd = fd, .events = TARN_READABLE, .call = fn, .arg = arg};
    int rc = new_watch(&as, w_p);
    if (rc != 0)
        close(fd);
    return rc;
}

int tarn_watch_set(struct tarn_watch *w, int events)
{
    int before = w->events;
    w->events = events;
    return tell(w, before);
}

void tarn_watch_free(struct tarn_watch *w)
{
    if (!w)
        return;
    tarn_watch_set(w, 0);
    if (w->timer_fd >= 0)
        close(w->timer_fd);
    w->freed = true;
    w->next_freed = w->loop->freed;
    w->loop->freed = w;
}
