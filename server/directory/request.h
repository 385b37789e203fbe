/* SPDX-License-Identifier: Apache-2.0 */
/* What the control thread asks of the directory thread; publisher.h has the rules. */
#ifndef TARN_SERVER_REQUEST_H
#define TARN_SERVER_REQUEST_H

#include "metadata/directory.h"
#include "server/loop.h"
#include "transport/node_half.h"

enum tarn_request_kind {
    TARN_REQUEST_BEAT,
    TARN_REQUEST_PUBLISH, /* commits */
    TARN_REQUEST_RECHECK, /* takes `freed` out of the node's recheck set, reads `found` */
    TARN_REQUEST_REMOVE,  /* objects, everywhere */
    TARN_REQUEST_SETTLED, /* which copies nobody can read any more */
    TARN_REQUEST_RESTORE, /* looks objects up; publishes what the directory lost, when `publish_missing` */
    TARN_REQUEST_WITHDRAW,
    TARN_REQUEST_SCAN, /* one page of the directory: locations of this node, or of dead ones, that are void go
                        */
    TARN_REQUEST_LEAVE, /* takes the node's record away, once nothing else waits */
    TARN_REQUEST_KINDS,
};

struct tarn_request {
    enum tarn_request_kind kind;
    void (*done)(struct tarn_request *r); /* on the control thread; owns the request again */
    struct tarn_request *next;
    int status;                /* of the whole; CANCELED when the publisher stopped before it was tried */
    char error[TARN_SENTENCE]; /* sentence for it */

    size_t n;
    struct tarn_publish *publishes;      /* PUBLISH, RESTORE: each with its own status. RESTORE: 0 when the
                                            directory has the copy (again), EXISTS when a record that wins has
                                            its place, NOT_FOUND when it is not there and stays so */
    struct tarn_withdraw *withdraws;     /* WITHDRAW */
    struct tarn_removal *removals;       /* REMOVE. After AGAIN, too, their answers count */
    struct tarn_copy_seen *copies;       /* SETTLED: n */
    bool *settled;                       /* SETTLED: out, for each */
    struct tarn_location *freed, *found; /* RECHECK: nfreed; n, in the room and out how many */
    size_t nfreed;
    const struct tarn_node_record *record; /* LEAVE */
    struct tarn_beat beat;                 /* BEAT */
    uint64_t cursor;                       /* SCAN: in and out */
    uint64_t seen, withdrawn;              /* SCAN: records looked at, locations removed */
    bool publish_missing;                  /* RESTORE */
    char
        directory[TARN_DIRECTORY_ID_TEXT]; /* RESTORE without it: the one that has been told of all objects */
    bool unsure;       /* RESTORE: it was not that one; what was not found may be there again */
    uint64_t restored; /* RESTORE: how many were missing and are back */
    /* the publisher's own */
    bool sent;     /* from the control thread: may have been run */
    bool asked;    /* ... and was: each succeeded or met a record in the way */
    bool given_up; /* tarn_publisher_cancel() came too late */
};

struct tarn_publisher_options {
    struct tarn_loop *loop;
    struct tarn_directory *directory;
    const struct tarn_logger *log;
    const char *node;
    uint64_t epoch;
    const struct tarn_pool_memory *pools;
    uint32_t npools;
    uint32_t timeout_ms; /* of one call to Redis */
    uint32_t heartbeat_ms;
    uint32_t ttl_ms;                     /* of node records */
    struct tarn_directory_state claimed; /* by the beat that made the node's record; id "": not told */
};

struct tarn_publisher_stats {
    bool away;   /* the last call failed */
    bool silent; /* and was not answered at all */
    uint64_t calls, failed_calls, published, waiting_withdrawals;
    uint64_t direct;           /* of those published, by the control thread alone */
    char error[TARN_SENTENCE]; /* of the last failed call */
    /* As of the last beat: the directory, and why what is missing there means nothing yet; "" it does. */
    char directory[TARN_DIRECTORY_ID_TEXT], unsettled[TARN_SENTENCE];
};

#endif
