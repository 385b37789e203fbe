/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory thread: does all of a node's work with Redis, so that the control thread never waits.
 *
 * But for the usual case of a commit: while all is well the control thread publishes on a connection of
 * its own that its loop watches (direct_publish.c). That saves two wake-ups of threads in a put. What does
 * not succeed there is the directory thread's to settle: a record in the way, a script that Redis has
 * forgotten, a connection that broke. Of publishes, one side at a time has some under way, so that they
 * are run and given back in one order.
 *
 * The control thread hands over requests; each comes back exactly once through its `done`, called on
 * the control thread. What is queued is taken together: one pipelined call publishes all commits that
 * wait, one withdraws. Within a round the order is
 *   beat, publish, recheck, remove, settled, restore, withdraw, background withdrawals, scan, leave
 * A location is only withdrawn after its publish was queued, and a publish that meets a location of
 * this node which is about to be withdrawn sees by the slot's generation that it is dead. That what is
 * sent first is run first holds across connections, too, as long as Redis lets the node kill those
 * that failed (metadata/redis.h). Where it does not, a publish that was given up can be run after its
 * withdrawal: so every publish that got no answer has the directory swept and the node's objects
 * looked up again once Redis answers.
 *
 * A record found in the way of a commit is dead when each of its locations is: on this node, when the
 * slot has another generation; elsewhere, when the node lives under another epoch or not at all. That
 * a node is missing counts only in a calm directory (metadata/directory.h), since nodes need time to report
 * again. Such a record is replaced (only in the version found).
 *
 * While Redis does not answer, requests fail as they come; background withdrawals wait, up to a bound,
 * for the first call that is answered again. One that answers but refuses (out of memory) is still
 * asked to withdraw, now and then: that is what frees memory there. LEAVE does not wait for those.
 *
 * A replace, a remove and SETTLED are believed in a settled directory only, which is looked at before and
 * after. An item is AGAIN when it was not settled, and when a displaced copy could not be written into its
 * node's recheck set; `stored` is set when it was published all the same.
 *
 * A restore takes the place of an older record, and of a newer one only when all its locations are
 * void ones of this node: a newer record of another node says that this copy was replaced, whether
 * that node still lives or not.
 *
 * A restore takes effect only while the record of this node that the last beat has written lives, by Redis's
 * clock: AGAIN for the page when it comes later.
 *
 * Lock: publisher.lock guards the queues; it is never held across a call to Redis.
 */
#ifndef TARN_SERVER_PUBLISHER_H
#define TARN_SERVER_PUBLISHER_H

#include "base/error.h"
#include "metadata/directory.h"
#include "server/loop.h"
#include "transport/node_half.h"

struct tarn_publisher;

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
    struct tarn_reason failure; /* of the request; CANCELED: the publisher stopped before trying it */
    struct tarn_reason partly;  /* PUBLISH without `failure`: why some items are AGAIN or DIRECTORY */

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
    uint64_t direct;            /* of `published`: by the control thread alone */
    struct tarn_reason failure; /* of the last failed call */
    /* As of the last beat: the directory's id, and why it is not settled. */
    char directory[TARN_DIRECTORY_ID_TEXT];
    struct tarn_reason unsettled;
};

int tarn_publisher_start(const struct tarn_publisher_options *o, struct tarn_publisher **p_p);
/* Ends the thread after the call it is in, gives every request back, frees. NULL is allowed. */
void tarn_publisher_stop(struct tarn_publisher *p);

void tarn_publisher_submit(struct tarn_publisher *p, struct tarn_request *r);
/* Every 100 ms or so, on the control thread. */
void tarn_publisher_tick(struct tarn_publisher *p);
/* Takes a request back that was not begun. False: it is being worked on, `done` comes. */
bool tarn_publisher_cancel(struct tarn_publisher *p, struct tarn_request *r);
/*
 * Withdraws in the background, as often as it takes. The key is copied. When too many wait, or memory
 * is out, the location is forgotten and tarn_publisher_doubts() becomes true.
 */
void tarn_publisher_withdraw(struct tarn_publisher *p, const struct tarn_key *key,
                             const struct tarn_location *l, uint64_t bytes, const char *why);
/* True once after withdrawals were forgotten or a publish got no answer: both must be compared again. */
bool tarn_publisher_doubts(struct tarn_publisher *p);

void tarn_publisher_stats(struct tarn_publisher *p, struct tarn_publisher_stats *out);

#endif
