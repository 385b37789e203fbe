/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the directory thread, for its own files only:
 *   directory_thread.c           rounds, queues of requests, what the control thread calls
 *   directory_thread_work.c      each kind of request; on the directory thread only
 *   directory_thread_displace.c  the same for displaced copies
 *   directory_thread_settled.c   whether the directory is settled
 *   direct_publish.c      publishing from the control thread; on that thread only
 */
#ifndef TARN_SERVER_DIRECTORY_THREAD_IMPL_H
#define TARN_SERVER_DIRECTORY_THREAD_IMPL_H

#include <pthread.h>

#include "server/directory/directory_thread.h"
#include "server/directory/liveness.h"

struct request_queue {
    struct tarn_request *first, **last;
};

/* Belongs to the control thread. */
struct direct_publish {
    struct tarn_stream *stream; /* NULL: all goes to the directory thread */
    struct tarn_watch *watch;
    int events;
    struct request_queue sent; /* in the order sent */
    size_t answered;           /* items of the first of them */
    uint64_t since_ns;         /* since when the first waits, or when the one before it was answered */
    struct request_queue held; /* go to the directory thread once `sent` is empty */
    size_t with_thread;        /* publishes that the directory thread has */
};

/* Is the directory settled? As the last beat has read it. */
struct settledness {
    char id[TARN_DIRECTORY_ID_TEXT]; /* "": no beat has been answered */
    bool settled;                    /* stays true for this directory */
    char why[TARN_SENTENCE - 40];    /* why it is not settled; without the remaining time */
    uint64_t until_ns;               /* not settled before; 0: unknown */
};

/* A node without a record: when SETTLED asked for it, and at every heartbeat since. */
#define MISSING_MAX 256
struct missing_node {
    char id[TARN_NODE_ID_MAX + 1];
    uint64_t since_ns;
    uint64_t seen_ns;  /* last found missing */
    uint64_t asked_ns; /* last asked about by SETTLED */
};

struct tarn_directory_thread {
    struct tarn_directory_thread_options o;
    struct direct_publish direct;
    struct tarn_living living; /* this and the next three: the directory thread only */
    uint64_t listed_until_ms;  /* the node's record does not expire before, by Redis's time */
    struct missing_node missing[MISSING_MAX];
    uint32_t nmissing;
    pthread_t thread;

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t wake;
    struct request_queue queues[TARN_REQUEST_KINDS];
    struct request_queue finished;
    struct withdrawal *withdrawals, **withdrawals_last;
    bool posted;  /* give_back() is posted and has not run */
    bool streams; /* direct publishes have a stream, or one waits in new_stream */
    struct tarn_stream *new_stream;
    uint64_t stream_ns; /* no stream is opened before */
    uint64_t resume_ns; /* Redis has refused a background withdrawal: retry then; 0: it has not */
    bool stopping, doubts;
    struct settledness directory;
    struct tarn_directory_thread_stats stats; /* written by the thread only, except waiting_withdrawals */
};

/* directory_thread.c */
void queue_init(struct request_queue *q);
void queue_add(struct request_queue *q, struct tarn_request *r);
struct tarn_request *queue_take(struct request_queue *q);
bool queue_remove(struct request_queue *q, const struct tarn_request *r);

/* Gives a request back because the directory thread ends. */
void cancel_request(struct tarn_request *r);
/* Hands a request to the directory thread. */
void thread_submit(struct tarn_directory_thread *dt, struct tarn_request *r);

/* direct_publish.c */
/* Gives back what is under way as CANCELED. */
void direct_publish_stop(struct tarn_directory_thread *dt);
void direct_publish_submit(struct tarn_directory_thread *dt, struct tarn_request *r);
/* The directory thread has made a stream. */
void direct_publish_adopt(struct tarn_directory_thread *dt, struct tarn_stream *s);

/* directory_thread_work.c */
bool any_replace(const struct tarn_publish *items, size_t n);
/* Counts the items that were published. */
void count_published(struct tarn_directory_thread *dt, const struct tarn_publish *items, size_t n);
/* When a call to Redis that begins now must have its answer. */
uint64_t call_deadline(const struct tarn_directory_thread *dt);
/* Counts a call that returned rc. Logs once when Redis fails, and once when it is back. */
int account(struct tarn_directory_thread *dt, int rc);
int withdraw_items(struct tarn_directory_thread *dt, struct tarn_withdraw *w, size_t n);
/* Does all commits of the queue in one call. The functions below do one request. */
void work_publish(struct tarn_directory_thread *dt, struct request_queue *q);
int work_beat(struct tarn_directory_thread *dt, struct tarn_request *r);
int work_restore(struct tarn_directory_thread *dt, struct tarn_request *r);
int work_withdraw(struct tarn_directory_thread *dt, struct tarn_request *r);
int work_scan(struct tarn_directory_thread *dt, struct tarn_request *r);
int work_leave(struct tarn_directory_thread *dt, struct tarn_request *r);
int work_names(struct tarn_directory_thread *dt, struct tarn_request *r);

/*
 * directory_thread_settled.c. The answer to a replace, a remove or SETTLED counts in a settled directory
 * only: 0, or AGAIN with a sentence. settled_before() uses what the last beat has read. settled_behind()
 * reads Redis again, after the answer.
 */
int settled_before(struct tarn_directory_thread *dt);
int settled_behind(struct tarn_directory_thread *dt);
/* Notes what an answered beat has read. On the directory thread only. */
void settled_note(struct tarn_directory_thread *dt, const struct tarn_beat *b);
/* Does Redis have the directory of this id? 0, AGAIN. On the directory thread only. */
int settled_same(struct tarn_directory_thread *dt, const char *id);
/* Why the directory is not settled; code 0: it is. Without the lock. */
struct tarn_reason settled_why(struct tarn_directory_thread *dt);

/* directory_thread_displace.c */
int work_recheck(struct tarn_directory_thread *dt, struct tarn_request *r);
int work_remove(struct tarn_directory_thread *dt, struct tarn_request *r);
int work_settled(struct tarn_directory_thread *dt, struct tarn_request *r);
/* Finds the copies that no reader can get any more. Withdraws those of another run of their node. */
int judge_displaced(struct tarn_directory_thread *dt, struct tarn_copy_seen *copies, size_t n, bool *settled);
/* After a publish: writes displaced copies into their nodes' recheck sets, and checks that the directory is
 * still settled. *why: why items are AGAIN; else it stays. */
void publish_behind(struct tarn_directory_thread *dt, struct tarn_publish *items, size_t n,
                    struct tarn_reason *why);
/* Has the item displaced a copy on another node? Then the directory thread finishes the direct publish. */
bool displaces_elsewhere(const struct tarn_directory_thread *dt, const struct tarn_publish *item);

#endif
