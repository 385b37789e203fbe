/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the directory thread, for its own files only:
 *   publisher.c        queues, rounds, what the control thread calls
 *   publisher_work.c   what is done with Redis for each kind of request; the directory thread only
 */
#ifndef TARN_SERVER_PUBLISHER_IMPL_H
#define TARN_SERVER_PUBLISHER_IMPL_H

#include <pthread.h>

#include "server/liveness.h"
#include "server/publisher.h"

struct request_queue {
    struct tarn_request *first, **last;
};

struct tarn_publisher {
    struct tarn_publisher_options o;
    struct tarn_living living; /* the thread's own */
    pthread_t thread;

    pthread_mutex_t lock; /* of all that follows */
    pthread_cond_t wake;
    struct request_queue queues[TARN_REQUEST_KINDS];
    struct request_queue finished;
    struct withdrawal *withdrawals, **withdrawals_last;
    bool posted; /* give_back() is on its way */
    uint64_t resume_ns; /* Redis refused a background withdrawal: none is tried before; 0: it did not */
    bool stopping, doubts;
    struct tarn_publisher_stats stats; /* written by the thread only, except waiting_withdrawals */
};

/* All commits of the queue in one call; the others do one request. */
void work_publish(struct tarn_publisher *p, struct request_queue *q);
void work_beat(struct tarn_publisher *p, struct tarn_request *r);
void work_restore(struct tarn_publisher *p, struct tarn_request *r);
void work_withdraw(struct tarn_publisher *p, struct tarn_request *r);
void work_scan(struct tarn_publisher *p, struct tarn_request *r);
void work_leave(struct tarn_publisher *p, struct tarn_request *r);
int work_withdraw_items(struct tarn_publisher *p, struct tarn_withdraw *w, size_t n);

#endif
