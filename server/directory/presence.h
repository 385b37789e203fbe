/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the others count on this node (docs/consistency.md, "Losing the directory" and "Nodes that were away").
 * A node whose record has expired was given up: its copies may have been replaced and removed since. Redis may
 * also have lost what would tell.
 *
 *              +--------------------- all compared, and the record is still there --------------------+
 *              v                                                                                      |
 *   start --> HERE --the record is gone, and not for everybody's silence---------------------> COMPARING
 *              |  \                                                                            ^      ^
 *              |   \--another directory, found out within a ttl--> HERE, restoring --lost------|      |
 *              |                                                     |      again, given up: all freed
 *              |                                                     v                                |
 *              |                                              HERE, all published                     |
 *              |                                                                                      |
 *              +-----another directory, later, that is younger than a ttl--> WAITING --it was away ---|
 *              |                                                              |  alone, or given up:  |
 *              |         HERE, restoring <--all nodes say: Redis was away-----+  all freed            |
 *              +-----another directory, older than a ttl, or later in the same run of Redis: all freed--+
 *
 * HERE, the record gone for everybody's silence --> RECHECKING --the recheck set is freed--> HERE
 *
 * HERE is listed as ready, the others as returning: nobody reads there, nobody calls the node expired. A comparison
 * begins a heartbeat after the node has listed itself, since who found its record missing before may withdraw its
 * locations for so long; and when no commit is under way. RECHECKING: just before the silence somebody may have been
 * told that a displaced copy here cannot be read any more.
 *
 * Conflict, in any state: other nodes beat with another heartbeat, so this one's beats are refused. It is cut off as
 * from a Redis that is away: its record expires, it commits, restores and compares nothing. The first beat that is
 * taken again finds another directory, and decides.
 *
 * What a record says is decided from one beat's answer and written by the next, which is sent at once. Records
 * that are made come with a time limit by Redis's clock, so that a beat that is held up makes none when the
 * reason for it is gone.
 */
#ifndef TARN_SERVER_PRESENCE_H
#define TARN_SERVER_PRESENCE_H

#include "metadata/directory.h"

struct tarn_node;

struct tarn_presence {
    enum { TARN_HERE, TARN_COMPARING, TARN_RECHECKING, TARN_WAITING } state;
    bool restoring; /* what the store holds is being published again */
    bool begun;     /* COMPARING, or restoring: the scrub does it */
    char known[TARN_DIRECTORY_ID_TEXT], run[64]; /* the directory, and Redis's run then */
    struct tarn_directory_state claimed; /* as the first beat has read it */
    uint64_t last_ms, last_ns; /* the last beat that found the record there as HERE: Redis's time, ours when sent */
    uint64_t nodes;            /* how many nodes were listed then, this one included */
    uint64_t beat_ms;          /* the last beat in any state, by Redis's time */
    uint64_t away_ms;          /* WAITING: last_ms in the directory that was lost */
    bool listed;               /* COMPARING: the record has been made */
    uint64_t listed_ms;        /* COMPARING, RECHECKING: when it was found there, by Redis's time; 0: not yet */
    uint64_t rounds;           /* RECHECKING: so many readings of the recheck set will be enough */
    bool missed;               /* the last beat found the record gone before its time */
    uint64_t make_until_ms;    /* the next beat may make the record until then */
    uint64_t given_up, freed;  /* for INFO: how often, how many objects went for it */
    bool conflict;             /* the last beat that was answered: other nodes have another heartbeat */
    bool evicts;               /* has been warned of */
};

/* The record and the conditions of the next beat. */
void tarn_presence_fill(struct tarn_node *n, struct tarn_beat *b);
/* The first beat, which made the record. */
void tarn_presence_begin(struct tarn_node *n, const struct tarn_beat *b);
/* A beat was answered, and nobody else has the id. True: beat again at once. */
bool tarn_presence_beaten(struct tarn_node *n, const struct tarn_beat *b, uint64_t sent_ns);
/* Other nodes have the directory, with another heartbeat; `cause` says so. */
void tarn_presence_conflict(struct tarn_node *n, const char *cause);
/* The recheck set was read to its end. */
void tarn_presence_rechecked(struct tarn_node *n);
/* May it commit? */
bool tarn_presence_here(const struct tarn_node *n);
/* May objects be compared with the directory now? Not before it has been told of them again. */
bool tarn_presence_scrubs(const struct tarn_node *n);
/* "here", "restoring", "comparing", "rechecking", "waiting". */
const char *tarn_presence_name(const struct tarn_node *n);

#endif
