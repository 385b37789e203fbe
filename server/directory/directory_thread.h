/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory thread does a node's work with Redis, so that the control thread never waits for Redis.
 *
 * Requests
 * - The control thread submits a request. Each request comes back exactly once: the control thread calls its
 *   done().
 * - A round takes what is queued: the waiting commits, which one pipelined call publishes; the background
 *   withdrawals, which one call does; and one request of each other kind. A batch has a limit.
 * - Order within a round: beat, publish, recheck, remove, settled, restore, withdraw, background withdrawals,
 *   scan, leave.
 *
 * Direct publishes (direct_publish.c)
 * - While all is well, the control thread publishes commits itself, on a connection that its loop watches.
 *   This saves two wake-ups of threads in each put.
 * - The directory thread finishes what fails there: a record in the way, a script that Redis has forgotten, a
 *   broken connection.
 * - Only one of the two has publishes under way at a time. So publishes run and come back in the order in
 *   which they were submitted.
 *
 * Publish before withdraw
 * - A location is withdrawn only after its publish was queued.
 * - A publish may meet a location of this node that will be withdrawn soon. The generation of the slot shows
 *   that this location is dead.
 * - Requests run in the order sent, also across connections, if Redis lets the node kill failed connections
 *   (metadata/redis.h).
 * - If Redis does not, a publish that was given up may run after its withdrawal. Therefore, after every
 *   publish without an answer, the node sweeps the directory and looks up all its objects as soon as Redis
 *   answers again (tarn_directory_thread_doubts()).
 *
 * A record in the way of a commit
 * - The record is dead when all its locations are dead.
 * - A location of this node is dead when its slot has another generation.
 * - A location of another node is dead when that node has another epoch, or no record.
 * - A missing node record counts only in a calm directory (metadata/directory.h): nodes need time to report
 *   again.
 * - A dead record is replaced, but only in the version that was found.
 *
 * While Redis does not answer
 * - Each request fails when its turn comes.
 * - Background withdrawals wait until Redis answers a call. Their number has a limit.
 *
 * While Redis answers but refuses (out of memory)
 * - The thread repeats background withdrawals from time to time: they free memory in Redis.
 *
 * LEAVE waits for background withdrawals, except in these two cases.
 *
 * Replace, remove and SETTLED
 * - The result counts only if the directory is settled. The thread checks this before and after the call.
 * - If the directory is not settled, the item is AGAIN.
 * - If a displaced copy cannot be written into its node's recheck set, the item is AGAIN, too.
 * - `stored` is set if the item was published all the same.
 *
 * Restore
 * - A restore replaces an older record.
 * - A restore replaces a newer record only if all its locations are void ones of this node. A newer record of
 *   another node shows that this copy was replaced, whether that node still lives or not.
 * - A restore takes effect only while the node record that the last beat wrote lives, by Redis's clock. Later
 *   the page is AGAIN.
 *
 * Lock: tarn_directory_thread.lock guards the queues. The thread does not hold it during a call to Redis.
 */
#ifndef TARN_SERVER_DIRECTORY_THREAD_H
#define TARN_SERVER_DIRECTORY_THREAD_H

#include "base/error.h"
#include "base/loop.h"
#include "metadata/directory.h"
#include "transport/node_half.h"

struct tarn_directory_thread;

enum tarn_request_kind {
    TARN_REQUEST_BEAT,
    TARN_REQUEST_PUBLISH, /* commits */
    TARN_REQUEST_RECHECK, /* removes `freed` from the node's recheck set, reads `found` from it */
    TARN_REQUEST_REMOVE,  /* removes objects from the directory */
    TARN_REQUEST_SETTLED, /* finds copies that no reader can get any more */
    TARN_REQUEST_RESTORE, /* looks objects up, or publishes them again */
    TARN_REQUEST_WITHDRAW,
    TARN_REQUEST_NAMES, /* writes, prolongs or removes names of leases */
    TARN_REQUEST_SCAN,  /* one page of the directory: withdraws void locations, its own and dead nodes' */
    TARN_REQUEST_LEAVE, /* removes the node's record, after all other requests */
    TARN_REQUEST_KINDS,
};

struct tarn_request {
    enum tarn_request_kind kind;
    void (*done)(struct tarn_request *r); /* on the control thread; the caller owns the request again */
    struct tarn_request *next;
    struct tarn_reason failure; /* of the request; CANCELED: the directory thread ended before it */
    struct tarn_reason partly;  /* PUBLISH without `failure`: why some items are AGAIN or DIRECTORY */

    size_t n;
    struct tarn_publish *publishes;      /* PUBLISH, RESTORE: each has a status. Of RESTORE: 0: the directory
                                            has the copy; EXISTS: another record has won its place; NOT_FOUND:
                                            the directory does not have it and will not */
    struct tarn_withdraw *withdraws;     /* WITHDRAW */
    struct tarn_window_name *names;      /* NAMES */
    struct tarn_removal *removals;       /* REMOVE. Their answers count after AGAIN, too */
    struct tarn_copy_seen *copies;       /* SETTLED: n */
    bool *settled;                       /* SETTLED: out, for each */
    struct tarn_location *freed, *found; /* RECHECK: nfreed entries; n: room, then how many were read */
    size_t nfreed;
    const struct tarn_node_record *record;  /* LEAVE */
    struct tarn_beat beat;                  /* BEAT */
    uint64_t cursor;                        /* SCAN: in and out */
    uint64_t seen, withdrawn;               /* SCAN: records looked at, locations removed */
    bool again;                             /* RESTORE: publish */
    char directory[TARN_DIRECTORY_ID_TEXT]; /* RESTORE without `again`: the directory in which all
                                               objects were published */
    bool unsure;       /* RESTORE: Redis has another directory; NOT_FOUND means nothing then */
    uint64_t restored; /* RESTORE: how many were published, or were there */
    /* for the directory thread and the direct publish only */
    bool sent;     /* sent by the control thread: Redis may have run it */
    bool asked;    /* Redis has run it: each item succeeded or met another record */
    bool given_up; /* tarn_directory_thread_cancel() came too late */
};

struct tarn_directory_thread_options {
    struct tarn_loop *loop;
    struct tarn_directory *directory;
    const struct tarn_logger *log;
    const char *node;
    const struct tarn_pool_memory *pools;
    uint32_t npools;
    uint32_t timeout_ms; /* of one call to Redis */
    uint32_t heartbeat_ms;
    uint32_t ttl_ms;                     /* of node records */
    struct tarn_directory_state claimed; /* read by the beat that made the node's record; id "": unknown */
};

struct tarn_directory_thread_stats {
    bool away;   /* the last call failed */
    bool silent; /* the last call got no answer */
    uint64_t calls, failed_calls, published, waiting_withdrawals;
    uint64_t direct;            /* of `published`: by the control thread alone */
    struct tarn_reason failure; /* of the last failed call */
    /* As of the last beat: the directory's id, and why it is not settled. */
    char directory[TARN_DIRECTORY_ID_TEXT];
    struct tarn_reason unsettled;
};

int tarn_directory_thread_start(const struct tarn_directory_thread_options *o,
                                struct tarn_directory_thread **dt_p);
/* Waits for the call under way, ends the thread, gives every request back, frees. NULL is allowed. */
void tarn_directory_thread_stop(struct tarn_directory_thread *dt);

void tarn_directory_thread_submit(struct tarn_directory_thread *dt, struct tarn_request *r);
/* The control thread calls it about every 100 ms: it ends direct publishes that get no answer. */
void tarn_directory_thread_tick(struct tarn_directory_thread *dt);
/* Takes back a request that has not begun. False: it has begun, and done() will be called. */
bool tarn_directory_thread_cancel(struct tarn_directory_thread *dt, struct tarn_request *r);
/*
 * Withdraws in the background, and repeats it until it succeeds. The key is copied. If too many wait, or
 * memory is out, the location is forgotten and tarn_directory_thread_doubts() becomes true.
 */
void tarn_directory_thread_withdraw(struct tarn_directory_thread *dt, const struct tarn_key *key,
                                    const struct tarn_location *l, uint64_t bytes, const char *why);
/* True once after withdrawals were forgotten or a publish got no answer: compare node and directory. */
bool tarn_directory_thread_doubts(struct tarn_directory_thread *dt);

void tarn_directory_thread_stats(struct tarn_directory_thread *dt, struct tarn_directory_thread_stats *out);

#endif
