/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a client lends: its windows, their leases, and which sessions may use which window.
 *
 * A window is a pool to the transports, and a lease a slot. All windows of a client share one array of
 * generations:
 *
 *   free g (odd) --lease--> g + 1 (even) --recall, time--> ending g + 2 (odd) --nobody is at it--> free
 *
 * The generation changes first. Then the lender waits until nobody is at the runs: no pin (transports whose
 * bytes the lender moves) and no mark in a session's hazard page (transports that map the memory). Whoever
 * takes a pin or sets a mark compares the generation after that; so one of the two sees the other.
 *
 * Keys. Who writes by rdma does not compare the generation: it has keys of the window, and keeps them. It may
 * use them under a lease only if it has entered the window under that lease. When a lease ends that somebody
 * has entered, all keys of the window are made void (tarn_lent_cut()), and everyone enters again. A pass
 * tells keys of before from those after.
 *
 * Threads: any. `lock` guards all of it; nothing is waited for under it but the condition.
 */
#ifndef TARN_CLIENT_WINDOW_LENT_H
#define TARN_CLIENT_WINDOW_LENT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <tarn/window.h>

#include "base/buf.h"
#include "base/cancel.h"
#include "client/window/descriptor.h"
#include "transport/node_half.h"
#include "transport/notices.h"

#define TARN_LENT_SLOTS 65536

#define TARN_LENT_NOTICES 1024 /* of a window, or of a lease that is forwarded; not read yet */

/* A notification that nobody has taken. */
struct tarn_lent_notice {
    struct tarn_lent_notice *prev, *next;
    struct tarn_notification n;
};

/* A session that has reached a lease for writing, and has not said QUIT. */
struct tarn_lent_writer {
    struct tarn_lent_writer *next;
    uint64_t session;
    char peer[64];
    bool gone;
    uint32_t entered; /* how often, to write from another host, since that was cut off */
};

/* A session that has shown the token of a window. */
struct tarn_window_grant {
    struct tarn_window_grant *next;
    uint64_t session;
    bool write;
    uint64_t pass; /* of no other grant, and another one once the session was cut off */
};

struct tarn_window {
    struct tarn_lender *lender;
    uint32_t index;
    uint64_t id; /* no other window ever has it; an index may be another's later */
    char tokens[2][TARN_WINDOW_TOKEN / 2 + 1]; /* [write] */
    struct tarn_lease *leases;
    struct tarn_window_grant *grants;
    uint64_t ends, cut; /* leases that ended with entered writers; how many of these were cut off */
    struct tarn_lent_notice *notices; /* oldest first */
    uint32_t nnotices;
    int notice_fd; /* an eventfd: readable while there are notices */
};

/* A node keeps this name of the lease. */
struct tarn_lease_name {
    struct tarn_lease_name *next;
    struct tarn_peer_node *node;
    char *name;
};

struct tarn_lease {
    struct tarn_lease *prev, *next; /* in its window */
    struct tarn_window *window;
    uint32_t slot;
    uint64_t gen, ends_ns; /* ends_ns: 0: never */
    bool write, ended;
    bool receives;          /* it is a receive's, which is under way */
    bool forwarded;         /* its notices wait here, not in the window's queue */
    uint32_t pins, waiters; /* waiters: calls that wait for notices of the lease */
    struct tarn_lent_notice *notices;
    uint32_t nnotices;
    struct tarn_lent_writer *writers;
    struct tarn_lease_name *names;
    struct tarn_runs runs; /* addresses in this process */
};

/* Where a session puts its notifications (transport/notices.h): all those within this host, or those of one
 * link from another. */
struct tarn_lent_ring {
    struct tarn_lent_ring *next;
    uint64_t session, at; /* at: the number of the next pop */
    struct tarn_notice_ring *ring;
    uint32_t places;
    int fd; /* -1: of a link */
};

/* Who waits for a lease's notifications without a thread. */
struct tarn_lent_expecting {
    struct tarn_lent_expecting *prev, *next;
    struct tarn_client *client;
    struct tarn_lease *lease;
    uint64_t tag;
    uint32_t n;
    _Atomic tarn_op op;
};

/* A session's hazard page. */
struct tarn_lent_page {
    struct tarn_lent_page *next;
    const struct tarn_hazard_page *page;
    pid_t pid;
};

struct tarn_lent {
    pthread_mutex_t lock;
    pthread_cond_t unpinned, told;                   /* told: a notice has come, or a writer has gone */
    struct tarn_pool_memory pools[TARN_WINDOWS_MAX]; /* bytes 0: there is no such window */
    struct tarn_window *windows[TARN_WINDOWS_MAX];
    _Atomic uint64_t *gen; /* TARN_LENT_SLOTS */
    int gen_fd;
    struct tarn_lease *leases[TARN_LENT_SLOTS];
    uint32_t nslots, nfree; /* slots from nslots on were never used */
    uint32_t free[TARN_LENT_SLOTS];
    uint64_t next_id, next_pass;
    struct tarn_lent_page *pages;
    struct tarn_lent_ring *rings;
    struct tarn_lent_expecting *expecting;
    int bell;           /* an eventfd: a ring has got something */
    uint32_t spinning;  /* threads that look at the rings by themselves */
    uint64_t waited_ns; /* how long the last notification was waited for */
};

int tarn_lent_init(struct tarn_lent *l, uint64_t epoch);
/* Frees windows and leases that are left. No transport and no session may be left. */
void tarn_lent_free(struct tarn_lent *l);
/* What transports ask. */
struct tarn_guard tarn_lent_guard(struct tarn_lent *l);

/* Adds a window over that memory. BUSY: there are too many. */
int tarn_lent_add(struct tarn_lent *l, const struct tarn_pool_memory *memory, struct tarn_window *w);
/* Its leases have all been freed. */
void tarn_lent_remove(struct tarn_lent *l, struct tarn_window *w);

/* Makes a lease that is still without a slot; `bytes` and the runs are set. */
int tarn_lent_begin(struct tarn_lent *l, struct tarn_window *w, struct tarn_lease *lease);
/* Nothing begins any more under this lease. True: somebody has entered it; tarn_lent_cut() must be called. */
bool tarn_lent_end(struct tarn_lent *l, struct tarn_lease *lease);
/* Calls fn, which makes the window's keys void, if a lease has ended that somebody has entered. Not from two
 * threads at once, nor while a session enters. */
void tarn_lent_cut(struct tarn_lent *l, struct tarn_window *w, void (*fn)(void *arg, uint32_t window),
                   void *arg);
/* Waits until nobody is at the runs, then gives the slot back. BUSY, CANCELED: somebody still is. */
int tarn_lent_recall(struct tarn_lent *l, struct tarn_lease *lease, uint64_t deadline_ns,
                     struct tarn_cancel *cancel);
/* Ends all leases, and waits until nobody is at their runs, or the deadline. */
void tarn_lent_end_all(struct tarn_lent *l, uint64_t deadline_ns);
/* Ends the leases whose time is up. As tarn_lent_cut() for all windows. */
void tarn_lent_expire(struct tarn_lent *l, uint64_t now_ns, void (*fn)(void *arg, uint32_t window),
                      void *arg);

/* A session that enters a window under a lease, or leaves it. */
struct tarn_lent_visitor {
    uint64_t session;
    uint32_t window, slot;
    uint64_t gen;
    bool write;
    bool keys; /* it gets keys, which only tarn_lent_cut() takes from it */
    uint64_t pass;
};
/* Sets the pass. STALE: the lease has ended. AUTH. */
int tarn_lent_enter(struct tarn_lent *l, struct tarn_lent_visitor *v);
/* The session has entered `times` times under that pass, and writes no more under the lease. */
void tarn_lent_leave(struct tarn_lent *l, const struct tarn_lent_visitor *v, uint32_t times);
/* A session shows a window's token: it may use the window from now on. *write_p: for writing, too. AUTH. */
int tarn_lent_admit(struct tarn_lent *l, uint32_t window, const char *token, uint64_t session, bool *write_p);
/* The session is gone; quit: it has said so before. */
void tarn_lent_forget(struct tarn_lent *l, uint64_t session, bool quit);

/* --- lent_notify.c ------------------------------------------------------------------------------ */

/* The session's ring, for peers of this host. */
int tarn_lent_ring_of(struct tarn_lent *l, uint64_t session, int *fd_p);
/* The bell has rung. */
void tarn_lent_rung(struct tarn_lent *l);
/* As tarn_notification_next() and tarn_expect(). */
int tarn_lent_next(struct tarn_lent *l, struct tarn_window *w, uint64_t deadline_ns,
                   struct tarn_cancel *cancel, struct tarn_notification *out);
int tarn_lent_expect(struct tarn_lent *l, struct tarn_lease *lease, uint64_t tag, uint32_t n,
                     uint64_t deadline_ns, struct tarn_cancel *cancel);
/* As tarn_submit_expect(): the lease stays until the last look. */
void tarn_lent_expect_begin(struct tarn_lent *l, struct tarn_lent_expecting *e);
/* TARN_INPROGRESS: nothing has come so far; the operation is woken when it has. Else it has ended. */
int tarn_lent_expect_look(struct tarn_lent *l, struct tarn_lent_expecting *e, uint64_t deadline_ns,
                          const struct tarn_cancel *cancel);
void tarn_lent_expect_end(struct tarn_lent *l, struct tarn_lent_expecting *e);
/*
 * From now on only tarn_lent_take() gets the lease's notices, those that wait already included. BUSY: that is
 * so already.
 */
int tarn_lent_forward_begin(struct tarn_lent *l, struct tarn_lease *lease);
/* The same ends; drops notices that were not taken. */
void tarn_lent_forward_end(struct tarn_lent *l, struct tarn_lease *lease);
/* BUSY if that lease of the window, or any (NULL), is forwarded. */
int tarn_lent_forward_check(struct tarn_lent *l, const struct tarn_window *w, const struct tarn_lease *lease);
/* Waits for notices of a forwarded lease; takes the tags of the oldest, at most `room`. STALE: it has ended,
 * and none is left. CANCELED. */
int tarn_lent_take(struct tarn_lent *l, struct tarn_lease *lease, struct tarn_cancel *cancel, uint64_t *tags,
                   uint32_t room, uint32_t *n_p);
/* Notes whether a receive uses the lease. */
void tarn_lent_receive(struct tarn_lent *l, struct tarn_lease *lease, bool under_way);
/* Is a receive into the window under way? */
bool tarn_lent_receives(struct tarn_lent *l, const struct tarn_window *w);
/* Frees a recalled lease. */
void tarn_lease_free(struct tarn_lease *lease);
void tarn_lease_name_free(struct tarn_lease_name *name);
/*
 * Calls fn with the lease of that slot and generation, with the lock held. STALE: it has ended, or is of
 * another window. The session counts as its writer, if it may write.
 */
int tarn_lent_visit(struct tarn_lent *l, uint64_t session, const char *peer, uint32_t window, uint32_t slot,
                    uint64_t gen, void (*fn)(void *arg, const struct tarn_lease *lease), void *arg);

/* Adds lines for INFO. */
void tarn_lent_info(struct tarn_lent *l, struct tarn_buf *text);

int tarn_lent_page_add(struct tarn_lent *l, const struct tarn_hazard_page *page, pid_t pid);
void tarn_lent_page_remove(struct tarn_lent *l, const struct tarn_hazard_page *page);

#endif
