/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of the control thread to the directory thread; publisher.h has the rules. */
#ifndef TARN_SERVER_REQUEST_H
#define TARN_SERVER_REQUEST_H

#include "metadata/directory.h"
#include "server/loop.h"
#include "transport/node_half.h"

enum tarn_request_kind {
    TARN_REQUEST_BEAT,
    TARN_REQUEST_PUBLISH, /* commits */
    TARN_REQUEST_RECHECK, /* removes `freed` from the node's recheck set, reads `found` from it */
    TARN_REQUEST_REMOVE,  /* removes objects from the directory */
    TARN_REQUEST_SETTLED, /* which copies nobody can read any more */
    TARN_REQUEST_RESTORE, /* looks objects up; publishes what the directory lost, when `publish_missing` */
    TARN_REQUEST_WITHDRAW,
    TARN_REQUEST_SCAN,  /* one page of the directory: withdraws void locations of this node and of dead nodes
                         */
    TARN_REQUEST_LEAVE, /* removes the node's record, after all other requests */
    TARN_REQUEST_KINDS,
};

struct tarn_request {
    enum tarn_request_kind kind;
    void (*done)(struct tarn_request *r); /* on the control thread; the request is the caller's again */
    struct tarn_request *next;
    int status;                /* of the request; CANCELED: the publisher stopped before trying it */
    char error[TARN_SENTENCE]; /* the sentence of `status` */

    size_t n;
    struct tarn_publish *publishes;      /* PUBLISH, RESTORE: each has a status. Of RESTORE: 0: the directory
                                            has the copy; EXISTS: another record has won its place; NOT_FOUND:
                                            the directory does not have it and will not */
    struct tarn_withdraw *withdraws;     /* WITHDRAW */
    struct tarn_removal *removals;       /* REMOVE. Their answers count after AGAIN, too */
    struct tarn_copy_seen *copies;       /* SETTLED: n */
    bool *settled;                       /* SETTLED: out, for each */
    struct tarn_location *freed, *found; /* RECHECK: nfreed entries; n: room, then how many were read */
    size_t nfreed;
    const struct tarn_node_record *record;  /* LEAVE */
    struct tarn_beat beat;                  /* BEAT */
    uint64_t cursor;                        /* SCAN: in and out */
    uint64_t seen, withdrawn;               /* SCAN: records looked at, locations removed */
    bool publish_missing;                   /* RESTORE */
    char directory[TARN_DIRECTORY_ID_TEXT]; /* RESTORE without publish_missing: the directory in which all
                                               objects were published */
    bool unsure;       /* RESTORE: Redis has another directory; NOT_FOUND means nothing then */
    uint64_t restored; /* RESTORE: how many were missing and were published */
    /* for the publisher only */
    bool sent;     /* sent by the control thread: Redis may have run it */
    bool asked;    /* Redis has run it: each item succeeded or met another record */
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
    struct tarn_directory_state claimed; /* read by the beat that made the node's record; id "": unknown */
};

struct tarn_publisher_stats {
    bool away;   /* the last call failed */
    bool silent; /* the last call got no answer */
    uint64_t calls, failed_calls, published, waiting_withdrawals;
    uint64_t direct;           /* of `published`: by the control thread alone */
    char error[TARN_SENTENCE]; /* of the last failed call */
    /* As of the last beat: the directory's id, and why it is not settled; "": it is. */
    char directory[TARN_DIRECTORY_ID_TEXT], unsettled[TARN_SENTENCE];
};

#endif
