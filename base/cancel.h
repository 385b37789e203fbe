/* SPDX-License-Identifier: Apache-2.0 */
/* What ends a wait early: one struct, handed down to whatever waits on its behalf. NULL: nothing ends it. */
#ifndef TARN_BASE_CANCEL_H
#define TARN_BASE_CANCEL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* How long a wait takes at most that no descriptor ends; then it looks whether it was canceled. */
#define TARN_WAIT_SLICE_MS 50

/*
 * Of one call or operation; one thread waits with it. Another thread cancels it by `on`, then the descriptor.
 * Where one thread runs several operations, a wait for one of them holds up the others: so their cancels end
 * it, too.
 */
struct tarn_cancel {
    _Atomic bool on;             /* canceled; stays so */
    int fd;                      /* an eventfd, written after `on` was set; -1: waits look in slices */
    bool drained;                /* fd was read since this was made false: other waits look, too */
    int (*interrupt)(void *arg); /* the application's, asked between slices; not 0: canceled. NULL: none */
    void *interrupt_arg;
    uint64_t ask_ns;           /* when it is asked; 0: not for a slice from the first wait on */
    bool (*others)(void *arg); /* has another operation of this thread been canceled? Waits for nothing, not
                                  even a lock. NULL: there is none */
    void *others_arg;
};

static inline bool tarn_canceled(const struct tarn_cancel *c)
{
    return c && (atomic_load(&c->on) || (c->others && c->others(c->others_arg)));
}

/* The same, between two slices of a wait: asks the application, too, so no lock is held. */
bool tarn_cancel_ask(struct tarn_cancel *c);
/* CANCELED, in words. */
int tarn_cancel_fail(void);
/* Its descriptor; -1: there is none. */
static inline int tarn_cancel_fd(const struct tarn_cancel *c)
{
    return c ? c->fd : -1;
}
/* Makes the descriptor unreadable again; look with tarn_canceled() afterwards. */
void tarn_cancel_drain(struct tarn_cancel *c);
/* Milliseconds until the deadline, as poll() takes them: not more than a slice where no descriptor tells. */
int tarn_cancel_left_ms(const struct tarn_cancel *c, uint64_t deadline_ns);
/* Waits for that many ms: true. False when the deadline has come, or it was canceled. */
bool tarn_cancel_pause(struct tarn_cancel *c, uint64_t deadline_ns, int ms);
/* Waits for the condition, a slice at most; the lock is held, but not while the application is asked. False,
 * at once: the deadline has come, or it was canceled. */
bool tarn_cancel_cond(struct tarn_cancel *c, pthread_cond_t *cond, pthread_mutex_t *lock,
                      uint64_t deadline_ns);

#endif
