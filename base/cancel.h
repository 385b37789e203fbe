/* SPDX-License-Identifier: Apache-2.0 */
/* Ends waits early. Every function that waits takes a struct tarn_cancel; NULL: only the deadline ends it. */
#ifndef TARN_BASE_CANCEL_H
#define TARN_BASE_CANCEL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A wait that no descriptor can end looks this often whether it was canceled. */
#define TARN_WAIT_SLICE_MS 50

/*
 * Belongs to one call or operation; one thread waits with it. Another thread cancels it: sets `on`, then
 * writes the descriptor. If one thread runs several operations, a wait for one holds up all, so the cancel of
 * any ends it.
 */
struct tarn_cancel {
    _Atomic bool on;             /* canceled; stays so */
    int fd;                      /* an eventfd, written after `on` was set; -1: waits look in slices */
    bool drained;                /* fd has been read since this was set to false */
    int (*interrupt)(void *arg); /* the application's, called between slices; non-zero cancels. NULL: none */
    void *interrupt_arg;
    uint64_t ask_ns;           /* when to call it next; 0: a slice after the first wait */
    bool (*others)(void *arg); /* has another operation of this thread been canceled? Must not wait, not even
                                  for a lock. NULL: no others */
    void *others_arg;
};

static inline bool tarn_canceled(const struct tarn_cancel *c)
{
    return c && (atomic_load(&c->on) || (c->others && c->others(c->others_arg)));
}

/* The same, but asks the application, too. Call it between two slices of a wait, without locks. */
bool tarn_cancel_ask(struct tarn_cancel *c);
/* Fails with CANCELED. */
int tarn_cancel_fail(void);
/* Its descriptor, or -1. */
static inline int tarn_cancel_fd(const struct tarn_cancel *c)
{
    return c ? c->fd : -1;
}
/* Makes the descriptor unreadable again; look with tarn_canceled() afterwards. */
void tarn_cancel_drain(struct tarn_cancel *c);
/* Milliseconds until the deadline for poll(); at most a slice if there is no descriptor. */
int tarn_cancel_left_ms(const struct tarn_cancel *c, uint64_t deadline_ns);
/* Waits for `ms`; for a slice at most if there is no descriptor. False: the deadline has passed, or it was
 * canceled. */
bool tarn_cancel_pause(struct tarn_cancel *c, uint64_t deadline_ns, int ms);
/* Waits for the condition, a slice at most, with the lock held; unlocks it while it asks the application.
 * False, without waiting: the deadline has passed, or it was canceled. */
bool tarn_cancel_cond(struct tarn_cancel *c, pthread_cond_t *cond, pthread_mutex_t *lock,
                      uint64_t deadline_ns);

#endif
