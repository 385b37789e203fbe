/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event loop, on libevent. libevent itself is used by one thread only. Other threads reach the
 * loop through the queue of posted calls, the only thing here with a lock, and the eventfd that wakes it.
 */
#include "server/loop.h"

#include <errno.h>
#include <event2/event.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/error.h"

struct posted {
    struct posted *next;
    tarn_call_fn fn;
    void *arg;
};

struct tarn_loop {
    struct event_base *base;
    struct event *wake;
    int wake_fd;
    atomic_bool stopping;
    pthread_mutex_t lock; /* of the queue */
    struct posted *first, **last_next;
};

struct tarn_watch {
    struct event *event;
    int events; /* TARN_READABLE | TARN_WRITABLE */
    tarn_watch_fn fn;
    tarn_call_fn call; /* of a signal or timer, in place of fn */
    void *arg;
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

static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    struct tarn_loop *l = arg;
    uint64_t count;

    (void)what;
    while (read(fd, &count, sizeof count) < 0 && errno == EINTR)
        ;
    run_posted(l);
    if (atomic_load(&l->stopping))
        event_base_loopbreak(l->base);
}

/* --- the loop ----------------------------------------------------------------------------------- */

static struct event_base *new_base(void)
{
    struct event_config *config = event_config_new();
    if (!config)
        return NULL;
    event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK);
    struct event_base *base = event_base_new_with_config(config);
    event_config_free(config);
    return base;
}

int tarn_loop_new(struct tarn_loop **l_p)
{
    struct tarn_loop *l = calloc(1, sizeof *l);
    if (!l)
        return tarn_fail(TARN_E_NO_MEMORY, "out of memory for an event loop");

    l->last_next = &l->first;
    l->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (l->wake_fd < 0) {
        tarn_fail(TARN_E_SYSTEM, "eventfd: %m: is the limit of open files (ulimit -n) reached?");
        goto free_loop;
    }
    if (pthread_mutex_init(&l->lock, NULL) != 0) {
        tarn_fail(TARN_E_SYSTEM, "event loop: no mutex");
        goto close_wake;
    }
    l->base = new_base();
    l->wake = l->base ? event_new(l->base, l->wake_fd, EV_READ | EV_PERSIST, on_wake, l) : NULL;
    if (!l->wake || event_add(l->wake, NULL) != 0) {
        tarn_fail(TARN_E_SYSTEM, "event loop: libevent cannot start: is the limit of open files reached?");
        goto free_events;
    }
    *l_p = l;
    return 0;

free_events:
    if (l->wake)
        event_free(l->wake);
    if (l->base)
        event_base_free(l->base);
    pthread_mutex_destroy(&l->lock);
close_wake:
    close(l->wake_fd);
free_loop:
    free(l);
    return TARN_E_SYSTEM;
}

void tarn_loop_free(struct tarn_loop *l)
{
    if (!l)
        return;
    for (struct posted *p = take_posted(l), *next; p; p = next) {
        next = p->next;
        free(p);
    }
    event_free(l->wake);
    event_base_free(l->base);
    pthread_mutex_destroy(&l->lock);
    close(l->wake_fd);
    free(l);
}

void tarn_loop_run(struct tarn_loop *l)
{
    while (!atomic_load(&l->stopping))
        if (event_base_dispatch(l->base) != 0)
            break;
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

void *tarn_loop_base(struct tarn_loop *l)
{
    return l->base;
}

/* --- watches, signals, timers ------------------------------------------------------------------- */

static void on_event(evutil_socket_t fd, short what, void *arg)
{
    struct tarn_watch *w = arg; /* gone after the callback, perhaps */

    (void)fd;
    if (w->call)
        w->call(w->arg);
    else
        w->fn(w->arg, (what & EV_READ ? TARN_READABLE : 0) | (what & EV_WRITE ? TARN_WRITABLE : 0));
}

static short libevent_events(int events)
{
    return (short)(EV_PERSIST | (events & TARN_READABLE ? EV_READ : 0) |
                   (events & TARN_WRITABLE ? EV_WRITE : 0));
}

static int new_watch(struct tarn_loop *l, int fd, short events, const struct timeval *period,
                     const struct tarn_watch *as, struct tarn_watch **w_p)
{
    struct tarn_watch *w = malloc(sizeof *w);
    if (w) {
        *w = *as;
        w->event = event_new(l->base, fd, events, on_event, w);
    }
    if (!w || !w->event) {
        free(w);
        return tarn_fail(TARN_E_NO_MEMORY, "out of memory for a watch of the event loop");
    }
    if ((events != EV_PERSIST || period) && event_add(w->event, period) != 0) {
        tarn_watch_free(w);
        return tarn_fail(TARN_E_SYSTEM, "event loop: descriptor or signal %d cannot be watched: %m", fd);
    }
    *w_p = w;
    return 0;
}

int tarn_watch_new(struct tarn_loop *l, int fd, int events, tarn_watch_fn fn, void *arg,
                   struct tarn_watch **w_p)
{
    struct tarn_watch as = {.events = events, .fn = fn, .arg = arg};
    return new_watch(l, fd, libevent_events(events), NULL, &as, w_p);
}

int tarn_signal_new(struct tarn_loop *l, int signum, tarn_call_fn fn, void *arg, struct tarn_watch **w_p)
{
    struct tarn_watch as = {.call = fn, .arg = arg};
    return new_watch(l, signum, EV_SIGNAL | EV_PERSIST, NULL, &as, w_p);
}

int tarn_timer_new(struct tarn_loop *l, uint32_t period_ms, tarn_call_fn fn, void *arg,
                   struct tarn_watch **w_p)
{
    struct timeval period = {.tv_sec = period_ms / 1000, .tv_usec = period_ms % 1000 * 1000};
    struct tarn_watch as = {.call = fn, .arg = arg};
    return new_watch(l, -1, EV_PERSIST, &period, &as, w_p);
}

int tarn_watch_set(struct tarn_watch *w, int events)
{
    if (events == w->events)
        return 0;

    struct event_base *base = event_get_base(w->event);
    evutil_socket_t fd = event_get_fd(w->event);
    event_del(w->event);
    w->events = events;
    if (events == 0)
        return 0;
    if (event_assign(w->event, base, fd, libevent_events(events), on_event, w) != 0 ||
        event_add(w->event, NULL) != 0)
        return tarn_fail(TARN_E_SYSTEM, "event loop: descriptor %d cannot be watched: %m", (int)fd);
    return 0;
}

void tarn_watch_free(struct tarn_watch *w)
{
    if (!w)
        return;
    event_free(w->event);
    free(w);
}
